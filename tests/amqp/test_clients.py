"""Clients that know nothing of headrace, doing what their users do."""

from __future__ import annotations

import asyncio
import datetime
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import aio_pika
import aiormq
import celery
import celery.contrib.testing.worker
import kombu
import pytest

from tests.servers.rabbitmq_java import rabbitmq_client_jars
from tests.skips import or_skip, skip_or_fail

pytestmark = pytest.mark.servers

JAVA_SOURCE = Path(__file__).parent / "java" / "AmqpClient.java"
JVM = ("-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")


def test_aio_pika_publishes_with_confirms_and_consumes(amqp_port: int) -> None:
    async def run() -> list[bytes]:
        connection = await aio_pika.connect_robust(f"amqp://guest:guest@127.0.0.1:{amqp_port}/")
        async with connection:
            channel = await connection.channel(publisher_confirms=True)
            await channel.set_qos(prefetch_count=10)
            exchange = await channel.declare_exchange("orders", aio_pika.ExchangeType.TOPIC, durable=True)
            queue = await channel.declare_queue("aio", durable=True)
            await queue.bind(exchange, "order.*.created")
            for number in range(50):
                message = aio_pika.Message(b"%d" % number, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
                await exchange.publish(message, f"order.{number}.created")
            found: list[bytes] = []
            async with queue.iterator() as messages:
                async for incoming in messages:
                    async with incoming.process():
                        found.append(incoming.body)
                    if len(found) == 50:
                        break
            await queue.delete()
            return found

    assert asyncio.run(run()) == [b"%d" % number for number in range(50)]


def test_aio_pika_calls_a_function_at_the_other_end_and_gets_its_result(amqp_port: int) -> None:
    async def run() -> Any:
        connection = await aio_pika.connect_robust(f"amqp://guest:guest@127.0.0.1:{amqp_port}/")
        async with connection:
            server = await aio_pika.patterns.RPC.create(await connection.channel())
            await server.register("double", _doubled, auto_delete=True)
            client = await aio_pika.patterns.RPC.create(await connection.channel())
            return await client.call("double", {"number": 21})

    assert asyncio.run(run()) == 42


async def _doubled(number: int) -> int:
    return 2 * number


def test_kombu_routes_and_drains(amqp_port: int) -> None:
    exchange = kombu.Exchange("media", "direct", durable=True)
    queue = kombu.Queue("video", exchange, routing_key="video")
    found: list[Any] = []

    def received(body: Any, message: kombu.Message) -> None:
        found.append(body)
        message.ack()

    with kombu.Connection(f"amqp://guest:guest@127.0.0.1:{amqp_port}//") as connection:
        producer = connection.Producer(serializer="json")
        for number in range(10):
            producer.publish({"n": number}, exchange=exchange, routing_key="video", declare=[queue])
        with connection.Consumer(queue, callbacks=[received]):
            while len(found) < 10:
                connection.drain_events(timeout=10)
        queue(connection.channel()).delete()
    assert found == [{"n": number} for number in range(10)]


def test_celery_runs_tasks_with_retries_delays_chains_and_chords(amqp_port: int) -> None:
    """With quorum queues Celery delays by 28 exchanges and queues, bound to one another by patterns."""
    queue_type = "quorum"
    app = celery.Celery("shop", broker=f"amqp://guest:guest@127.0.0.1:{amqp_port}//", backend="cache+memory://")
    app.conf.update(
        task_default_queue=f"celery-{queue_type}",
        task_default_queue_type=queue_type,
        broker_transport_options={"confirm_publish": True},
        worker_detect_quorum_queues=True,
        broker_native_delayed_delivery_queue_type=queue_type,
        worker_prefetch_multiplier=1,
        broker_heartbeat=2,  # its loop looks at the socket when it beats: every 10 s by default, on RabbitMQ too
    )
    attempts: list[float] = []

    @app.task(bind=True, max_retries=3, name="flaky")
    def flaky(task: Any, number: int) -> int:
        attempts.append(time.monotonic())
        if len(attempts) < 3:
            raise task.retry(countdown=1)
        return number + 1

    @app.task(name="double")
    def double(number: int) -> int:
        return 2 * number

    @app.task(name="total")
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    worker = celery.contrib.testing.worker.start_worker(app, perform_ping_check=False, pool="solo", loglevel="ERROR")
    with worker:
        assert double.delay(4).get(timeout=30) == 8
        assert (flaky.s(1) | double.s()).apply_async().get(timeout=60) == 4
        eta = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=1)
        assert double.apply_async((5,), eta=eta).get(timeout=30) == 10
        assert celery.chord([double.s(number) for number in range(5)])(total.s()).get(timeout=60) == 20
    assert len(attempts) == 3
    assert attempts[1] - attempts[0] >= 0.9


def test_aiormq_consumes_with_a_prefetch_and_sees_its_queue_go(amqp_port: int) -> None:
    async def run() -> tuple[list[bytes], str]:
        connection = await aiormq.connect(f"amqp://guest:guest@127.0.0.1:{amqp_port}/")
        channel = await connection.channel(publisher_confirms=True)
        declared = await channel.queue_declare("aiormq", durable=True, arguments={"x-max-length": 100})
        for number in range(30):
            properties = aiormq.spec.Basic.Properties(delivery_mode=2, priority=number % 3)
            await channel.basic_publish(b"%d" % number, routing_key="aiormq", properties=properties)
        await channel.basic_qos(prefetch_count=7)
        found: list[bytes] = []
        done = asyncio.Event()

        async def take(message: Any) -> None:
            found.append(message.body)
            await channel.basic_ack(message.delivery.delivery_tag)
            if len(found) == 30:
                done.set()

        await channel.basic_consume("aiormq", take)
        await asyncio.wait_for(done.wait(), 30)
        await channel.queue_delete("aiormq")
        await connection.close()
        return found, declared.queue

    assert asyncio.run(run()) == ([b"%d" % number for number in range(30)], "aiormq")


def test_amqp_tools_declare_publish_get_and_consume(amqp_port: int) -> None:
    if shutil.which("amqp-publish") is None:
        skip_or_fail("amqp-tools are not installed: apt-get install amqp-tools")
    server = ["--server=127.0.0.1", f"--port={amqp_port}"]

    def run(program: str, *arguments: str) -> str:
        command = [program, *server, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    assert run("amqp-declare-queue", "--queue=tools", "--durable").strip() == "tools"
    for body in ("one", "two", "three"):
        run("amqp-publish", "--routing-key=tools", "--persistent", f"--body={body}")
    assert run("amqp-get", "--queue=tools") == "one"
    assert run("amqp-consume", "--queue=tools", "--count=2", "cat") == "twothree"
    assert run("amqp-delete-queue", "--queue=tools").strip() == "0"


def test_the_java_client_finds_what_it_expects(amqp_port: int) -> None:
    with or_skip():
        jars = rabbitmq_client_jars()
    command = ["java", *JVM, "-cp", f"{jars}/*", str(JAVA_SOURCE), str(amqp_port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.split("\n")[:-1] == [
        f"{each} ok" for each in ("confirmed", "returned", "replies", "stream", "refused")
    ]
