"""``headrace consume``: where it starts and where it stops."""

from __future__ import annotations

import pytest

from headrace import testing
from headrace.cli.main import run
from headrace.client import Admin, Client, Producer, TransactionalProducer


def test_until_holds_beside_exit(capsys: pytest.CaptureFixture[str]) -> None:
    with testing.broker() as broker:
        with Client(broker.bootstrap) as client, Producer(client) as producer:
            Admin(client).create_topic("orders", partitions=1)
            for number in range(10):
                producer.send("orders", b"%d" % number)
        for until, count in (("3", 3), ("99", 10), ("-4", 6)):
            assert run(["consume", "orders", "-e", "--until", until, "--bootstrap", broker.bootstrap]) == 0
            assert len(capsys.readouterr().out.splitlines()) == count


def test_the_last_records_are_counted_without_markers_of_transactions(capsys: pytest.CaptureFixture[str]) -> None:
    with testing.broker() as broker:
        with Client(broker.bootstrap) as client:
            Admin(client).create_topic("orders", partitions=1)
            producer = TransactionalProducer(client, "capture", timeout_ms=60_000)
            producer.init()
            for number in range(12):
                producer.begin()
                producer.send("orders", b"%d" % number, partition=0)
                producer.abort() if number % 3 == 2 else producer.commit()
        for count, expected in ((1, "10"), (3, "7 9 10"), (7, "1 3 4 6 7 9 10"), (99, "0 1 3 4 6 7 9 10"), (0, "")):
            assert run(["consume", "orders", "-e", "-o", f"-{count}", "--bootstrap", broker.bootstrap]) == 0
            assert capsys.readouterr().out.split() == expected.split()
