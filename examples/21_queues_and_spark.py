"""Messages of queues through Spark, exactly once: read by the offsets of a queue's log, or bridged into a topic first.

A queue of headrace is read as it is. A queue of RabbitMQ cannot be read twice, so its messages go into a topic first
(here the "RabbitMQ" is headrace's AMQP port; set AMQP_URL to use a real one). Results go to an exchange.
"""

import os
import tempfile

import pika
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr
from headrace import testing
from headrace.client import Admin, Client
from headrace.client.bridge import bridge


def publish(url: str, queue: str, *bodies: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    for number, body in enumerate(bodies):
        properties = pika.BasicProperties(delivery_mode=2, message_id=f"{queue}-{number}")
        channel.basic_publish("", queue, body.encode(), properties)
    connection.close()


def taken(url: str, queue: str) -> list[str]:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(got[2].decode())
    connection.close()
    return sorted(found)


with testing.broker(amqp=True) as broker, tempfile.TemporaryDirectory() as checkpoints:
    spark = hr.session(app_name="queues", master="local[2]")
    rabbit = os.environ.get("AMQP_URL", broker.amqp_url)
    publish(broker.amqp_url, "orders", "coffee", "bagel", "tea")
    publish(broker.amqp_url, "results")

    # A queue of headrace: read by offsets, acknowledged when a micro-batch is committed.
    orders = hr.queue(spark, "orders", bootstrap=broker.bootstrap, acknowledge=True)
    shouted = orders.select(F.upper(orders.body.cast("string")).alias("body"))
    sink = hr.sinks.exchange(broker.amqp_url, routing_key="results")
    query = sink.stream(shouted, "append", f"{checkpoints}/orders").option(
        "checkpointLocation", f"{checkpoints}/orders"
    )
    query.trigger(availableNow=True).start().awaitTermination()
    print("from the queue:", taken(broker.amqp_url, "results"))

    # A queue of RabbitMQ: bridged into a topic, repetitions removed by the message's id.
    publish(rabbit, "payments", "10", "20", "10")
    with Client(broker.bootstrap) as client:
        Admin(client).create_topic("payments", partitions=1)
        print("bridged:", bridge(rabbit, "payments", client, "payments", idle_s=0.5))
    payments = hr.batch(spark, "payments", bootstrap=broker.bootstrap, includeHeaders=True)
    once = payments.dropDuplicates(["key"])
    print("paid:", once.agg(F.sum(once.value.cast("string").cast("int"))).first()[0])
    spark.stop()
