"""Three readers in one group: the broker divides the partitions among them, and every record is read by one."""

from __future__ import annotations

import os
import threading
from contextlib import nullcontext

from headrace import testing
from headrace.client import Admin, Client, ConsumerOptions, GroupConsumer, GroupOptions, Groups, Producer

TOPIC = "jobs"
GROUP = "workers"
JOBS = 600


def work(name: str, bootstrap: str, done: list[bytes], finished: threading.Event) -> None:
    options = GroupOptions(consumer=ConsumerOptions(reset="earliest"))
    count = 0
    with Client(bootstrap) as client, GroupConsumer(client, GROUP, [TOPIC], options) as member:
        while not finished.is_set():
            for records in member.poll(timeout_ms=100).values():
                done.extend(record.value or b"" for record in records)
                count += len(records)
            if len(done) >= JOBS:
                finished.set()
        print(f"{name}: {count} jobs, partitions {sorted(each.partition for each in member.assignment)}")


def main(bootstrap: str) -> None:
    done: list[bytes] = []
    finished = threading.Event()
    with Client(bootstrap) as client:
        Admin(client).create_topic(TOPIC, partitions=6)
        workers = [
            threading.Thread(target=work, args=(f"worker {number}", bootstrap, done, finished)) for number in range(3)
        ]
        for worker in workers:
            worker.start()
        with Producer(client) as producer:
            for job in range(JOBS):
                producer.send(TOPIC, b"job %d" % job, partition=job % 6)
        for worker in workers:
            worker.join()
        print(f"{len(done)} jobs done, {len(set(done))} different ones")
        print(f"lag of the group: {sum(each.lag for each in Groups(client).lag(GROUP))}")


if __name__ == "__main__":
    given = os.environ.get("HEADRACE_BOOTSTRAP")
    with nullcontext() if given else testing.broker() as broker:
        main(given or broker.bootstrap)
