"""``headrace queue`` against headrace and RabbitMQ: what it shows, what it moves, and how it says no."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from click.testing import CliRunner, Result

from headrace import testing
from headrace.cli.main import cli
from headrace.client import BindingInfo, Client, NoQueues, Queues
from headrace.errors import HeadraceError
from headrace.testing import TestBroker
from tests.servers.rabbitmq import RabbitMqServer

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with testing.broker(amqp=True) as running:
        yield running


def channel_of(port: int) -> Any:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)).channel()


class Tool:
    """``headrace queue`` and an AMQP channel, on one broker."""

    def __init__(self, port: int, *options: str) -> None:
        self.channel = channel_of(port)
        self.channel.confirm_delivery()
        self._options = options

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(cli, ["queue", *arguments, *self._options], catch_exceptions=True)

    def said(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.exit_code == 0, (done.output, done.exception)
        return done.stderr.strip()

    def json(self, *arguments: str) -> Any:
        done = self.run(*arguments, "--output", "json")
        assert done.exit_code == 0, (done.output, done.exception)
        return json.loads(done.stdout)

    def declare(self, name: str, **arguments: Any) -> None:
        self.channel.queue_delete(name)
        named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
        self.channel.queue_declare(name, durable=True, arguments=named)

    def publish(self, queue: str, *bodies: str, **headers: Any) -> None:
        for body in bodies:
            self.channel.basic_publish("", queue, body.encode(), pika.BasicProperties(2 * "x", headers=headers))

    def drained(self, queue: str) -> list[tuple[str, bool]]:
        found = []
        while (got := self.channel.basic_get(queue, auto_ack=True))[0] is not None:
            found.append((got[2].decode(), got[0].redelivered))
        return found

    def bodies(self, queue: str) -> list[str]:
        return [body for body, _ in self.drained(queue)]


@pytest.fixture(params=["headrace", "rabbitmq"])
def tool(request: pytest.FixtureRequest) -> Iterator[Tool]:
    """On both."""
    if request.param == "headrace":
        running: TestBroker = request.getfixturevalue("broker")
        used = Tool(running.amqp_port, "--bootstrap", running.bootstrap)
    else:
        server: RabbitMqServer = request.getfixturevalue("rabbitmq")
        used = Tool(server.port, "--management", f"http://127.0.0.1:{server.management_port}")
    yield used
    used.channel.connection.close()


@pytest.fixture
def ours(broker: TestBroker) -> Iterator[Tool]:
    used = Tool(broker.amqp_port, "--bootstrap", broker.bootstrap)
    yield used
    used.channel.connection.close()


@pytest.fixture
def theirs(rabbitmq: RabbitMqServer) -> Iterator[Tool]:
    used = Tool(rabbitmq.port, "--management", f"http://127.0.0.1:{rabbitmq.management_port}")
    yield used
    used.channel.connection.close()


def test_a_queue_is_listed_and_described_with_its_bindings(tool: Tool) -> None:
    tool.declare("shown", max_length=100)
    tool.channel.queue_bind("shown", "amq.topic", "eu.#")
    tool.publish("shown", "a", "b")
    [row] = [each for each in tool.json("list") if each["name"] == "shown"]
    assert row["kind"] == ["durable"]
    [found] = tool.json("describe", "shown")
    assert found["arguments"] == [{"argument": "x-max-length", "value": 100}]
    assert [(each["exchange"], each["routing_key"]) for each in found["bindings"]] == [("amq.topic", "eu.#")]
    assert "shown" in tool.run("list").stdout
    assert "eu.#" in tool.run("describe", "shown").stdout


def test_looking_takes_nothing(tool: Tool) -> None:
    tool.declare("peeked")
    tool.publish("peeked", "a", kind="red")
    tool.publish("peeked", "b", kind="blue")
    assert [each["body"] for each in tool.json("peek", "peeked")] == ["a", "b"]
    [chosen] = tool.json("peek", "peeked", "--header", "kind=blue")
    assert (chosen["body"], chosen["properties"]["headers"]["kind"]) == ("b", "blue")
    assert "blue" not in tool.run("peek", "peeked", "-n", "1").stdout
    assert tool.bodies("peeked") == ["a", "b"]


def test_messages_that_fit_a_filter_are_moved_and_the_others_stay(tool: Tool) -> None:
    tool.declare("from")
    tool.declare("to")
    for number in range(6):
        tool.publish("from", str(number), parity=str(number % 2))
    assert tool.said("move", "from", "to", "-H", "parity=1", "--dry-run") == "would move to queue to 3 messages"
    assert tool.said("move", "from", "to", "-H", "parity=1", "-n", "2", "--yes") == "moved 2 messages"
    assert tool.bodies("to") == ["1", "3"]
    assert tool.bodies("from") == ["0", "2", "4", "5"]


def test_a_whole_dead_letter_queue_goes_back_to_where_its_messages_came_from(tool: Tool) -> None:
    tool.declare("dead")
    for name in ("one", "two"):
        tool.declare(name, dead_letter_exchange="", dead_letter_routing_key="dead")
        tool.publish(name, f"of {name}")
        method, _, _ = tool.channel.basic_get(name)
        tool.channel.basic_reject(method.delivery_tag, requeue=False)
    tool.publish("dead", "never died")
    said = tool.said("redrive", "dead", "--yes")
    assert said.splitlines() == ["brought back 2 messages", "headrace: 1 have no queue to go to, and stay"]
    assert (tool.bodies("one"), tool.bodies("two")) == (["of one"], ["of two"])
    assert tool.bodies("dead") == ["never died"]


def test_a_queue_is_purged_whole_or_by_a_filter(tool: Tool) -> None:
    tool.declare("purged")
    tool.publish("purged", "a", "b", kind="red")
    tool.publish("purged", "c", kind="blue")
    assert tool.said("purge", "purged", "-H", "kind=blue", "--yes") == "removed 1 messages"
    assert tool.said("purge", "purged", "--yes").startswith("removed ")
    assert tool.bodies("purged") == []


def test_a_queue_that_is_not_there_is_one_clear_line(tool: Tool) -> None:
    done = tool.run("peek", "nowhere")
    assert isinstance(done.exception, HeadraceError)
    assert "no queue 'nowhere' in vhost '/'" in str(done.exception)
    assert "\n" not in str(done.exception)


def test_a_virtual_host_that_is_not_there_is_one_clear_line(tool: Tool) -> None:
    done = tool.run("list", "--vhost", "shop")
    assert isinstance(done.exception, HeadraceError)
    assert "vhost shop not found" in str(done.exception)


def test_a_misspelt_reason_of_dead_letters_lists_the_reasons(ours: Tool) -> None:
    ours.declare("reasons")
    done = ours.run("peek", "reasons", "--reason", "reject")
    assert done.exit_code == 2
    assert "'rejected', 'expired', 'maxlen', 'delivery_limit'" in str(done.exception) + done.output


def test_messages_of_a_stream_are_shown_and_nothing_moves_them(ours: Tool) -> None:
    ours.declare("followed", queue_type="stream")
    ours.declare("beside")
    ours.publish("followed", "a", "b")
    assert [(each["body"], each["state"]) for each in ours.json("peek", "followed")] == [
        ("a", "ready"),
        ("b", "ready"),
    ]
    [found] = ours.json("describe", "followed")
    assert [(each["floor"], each["cursor"], each["end"]) for each in found["lanes"]] == [(0, 0, 2)]
    for arguments in (["move", "followed", "beside"], ["redrive", "followed"], ["purge", "followed", "-n", "1"]):
        done = ours.run(*arguments, "--yes")
        assert "not supported by stream queues" in str(done.exception)
    assert ours.bodies("beside") == []


def test_what_rabbitmq_shows_of_a_long_queue_is_not_taken_for_all_of_it(theirs: Tool) -> None:
    theirs.declare("long")
    theirs.publish("long", *[str(number) for number in range(1_001)])
    done = theirs.run("purge", "long", "--dry-run")
    assert "would remove 1000 messages" in done.stderr
    assert "RabbitMQ shows at most 1,000 messages" in done.stderr
    assert "RabbitMQ shows at most 1,000 messages" in theirs.run("peek", "long", "-H", "a=b").stderr
    assert "RabbitMQ shows" not in theirs.run("peek", "long", "-n", "1").stderr
    theirs.channel.queue_delete("long")


def test_what_rabbitmq_refuses_is_said_in_its_words(theirs: Tool) -> None:
    theirs.declare("log-of-rabbitmq", queue_type="stream")
    done = theirs.run("peek", "log-of-rabbitmq")
    assert "RabbitMQ refuses: 540 basic.get not supported by stream queues" in str(done.exception)


def test_what_destroys_or_moves_asks_first(ours: Tool) -> None:
    ours.declare("asked")
    for arguments in (["purge", "asked"], ["redrive", "asked"], ["move", "asked", "other"], ["delete", "asked"]):
        assert "--yes" in str(ours.run(*arguments).exception)


def test_acknowledged_messages_come_back_by_time_or_offset(ours: Tool) -> None:
    ours.declare("kept", headrace_retention_ms=-1)
    ours.publish("kept", "a", "b", "c")
    assert ours.bodies("kept") == ["a", "b", "c"]
    assert [each["state"] for each in ours.json("peek", "kept", "--gone")] == ["acknowledged"] * 3
    assert ours.said("restore", "kept", "--until", "-1h", "--yes") == "restored 0 messages"
    assert ours.said("restore", "kept", "--offsets", "1-2", "--dry-run") == "would restore 2 messages"
    assert ours.said("restore", "kept", "--offsets", "1-2", "--yes") == "restored 2 messages"
    assert ours.drained("kept") == [("b", True), ("c", True)]
    assert ours.said("restore", "kept", "--since", "-1h", "--yes") == "restored 3 messages"
    assert ours.bodies("kept") == ["a", "b", "c"]


def test_a_queue_is_made_bound_and_deleted(ours: Tool) -> None:
    ours.said("create", "made", "--argument", "x-max-length=3", "--bind", "amq.direct:key")
    ours.channel.basic_publish("amq.direct", "key", b"x", mandatory=True)
    assert ours.said("delete", "made", "--yes") == "deleted; 1 messages were ready"
    assert "made" not in {each["name"] for each in ours.json("list")}


def test_a_queue_that_cannot_be_bound_is_not_made(ours: Tool) -> None:
    done = ours.run("create", "unbound", "--bind", "no-such-exchange:key")
    assert "no exchange 'no-such-exchange'" in str(done.exception)
    assert "unbound" not in {each["name"] for each in ours.json("list")}


def test_messages_of_all_priorities_are_moved(ours: Tool) -> None:
    ours.declare("ranked", max_priority=3)
    ours.declare("plain")
    for priority in (0, 3, 1):
        ours.channel.basic_publish("", "ranked", str(priority).encode(), pika.BasicProperties(priority=priority))
    assert ours.said("move", "ranked", "plain", "--yes") == "moved 3 messages"
    assert ours.bodies("plain") == ["3", "1", "0"]


def test_exchanges_and_bindings_by_the_client(broker: TestBroker) -> None:
    with Client(broker.bootstrap) as client:
        queues = Queues(client)
        queues.create_exchange("made", "topic")
        queues.create_queue("bound")
        binding = BindingInfo(source="made", destination="bound", routing_key="a.*")
        queues.bind(binding)
        found = {each.name: each for each in queues.exchanges()}
        assert (found["made"].kind, found["made"].bindings) == ("topic", (binding,))
        queues.unbind(binding)
        queues.delete_exchange("made", if_unused=True)
        assert "made" not in {each.name for each in queues.exchanges()}


def test_a_broker_that_is_not_headrace_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, broker: TestBroker) -> None:
    with Client(broker.bootstrap) as client:
        connection = client.connection()
        for key in [each for each in connection.versions if each >= 10_000]:
            del connection.versions[key]
        with pytest.raises(NoQueues, match=r"is not a headrace broker .* --management URL"):
            list(Queues(client).list_all())


def test_an_address_that_is_no_management_api_is_one_clear_line() -> None:
    done = CliRunner().invoke(cli, ["queue", "list", "--management", "amqp://guest:secret@127.0.0.1"])
    assert "is no address of a management API" in str(done.exception)
    assert "secret" not in str(done.exception)


def test_a_move_to_a_queue_that_does_not_exist_is_refused_also_when_there_is_nothing_to_move(
    ours: Tool,
) -> None:
    ours.declare("nothing-to-move")
    done = ours.run("move", "nothing-to-move", "no-such-queue", "--yes")
    assert done.exit_code != 0
    assert "no queue 'no-such-queue'" in str(done.exception)
