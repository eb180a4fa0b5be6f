"""Two pipelines on Spark, and what they make of some orders. Needs Java and pip install 'headrace[spark]'.

With a broker of yours: headrace run examples/07_pipelines.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr
from headrace import testing
from headrace.client import Admin, Client, Producer

COMMAND = str(Path(sys.executable).with_name("headrace"))
ORDERS = "id long, city string, amount decimal(12,2), placed_at timestamp"


@hr.pipeline(sink=hr.sinks.console())
def revenue_per_minute(spark: SparkSession) -> DataFrame:
    orders = hr.stream(spark, "orders", schema=ORDERS).withWatermark("placed_at", "1 minute")
    minutes = orders.groupBy(F.window("placed_at", "1 minute")).agg(F.sum("amount").alias("revenue"))
    return minutes.select(F.col("window.start").alias("minute"), "revenue")


@hr.pipeline(sink=hr.sinks.topic("large-orders", key="city"))
def large_orders(spark: SparkSession) -> DataFrame:
    return hr.stream(spark, "orders", schema=ORDERS).where("amount >= 100")


def main(bootstrap: str) -> None:
    with Client(bootstrap) as client:
        Admin(client).create_topic("orders", partitions=2)
        Admin(client).create_topic("large-orders", partitions=1)
        with Producer(client) as producer:
            for number in range(600):
                placed_at = f"2026-01-31T10:{number // 60:02}:{number % 60:02}Z"
                order = {"id": number, "city": "Oslo", "amount": f"{number % 200}.50", "placed_at": placed_at}
                producer.send("orders", json.dumps(order).encode(), key=b"%d" % number)
    with tempfile.TemporaryDirectory() as folder:
        program = [COMMAND, "run", str(Path(__file__).resolve()), "--available-now", "--bootstrap", bootstrap]
        subprocess.run(program, cwd=folder, check=True)
    print("the first large orders:", flush=True)
    subprocess.run([COMMAND, "consume", "large-orders", "--bootstrap", bootstrap, "-e", "-c", "3"], check=True)


if __name__ == "__main__":
    given = os.environ.get("HEADRACE_BOOTSTRAP")
    with nullcontext() if given else testing.broker(in_process=False) as broker:
        main(given or broker.bootstrap)
