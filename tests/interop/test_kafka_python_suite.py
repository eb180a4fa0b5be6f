"""kafka-python's own integration suite, from its source package on PyPI, run against headrace.

Somebody else's idea of what a broker does is worth more than ours. What is left out stands in LEFT_OUT with its
reason, and in docs/compatibility.md with the score; a test that begins to pass must be taken off the list, one that
stops fails here.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pytest

from tests.servers.headrace import headrace_server
from tests.servers.process import CACHE, CannotRun
from tests.skips import or_skip

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(2000)]

VERSION = "3.0.12"
COMPATIBILITY = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"

RETRIES = 2
"""Some of these tests give a broker a second or two, which a busy machine may not have: what fails is tried again."""

# What the suite's own broker is configured with, where it differs from Kafka's defaults.
SETTINGS = {"num.partitions": "4", "broker.id": "0", "group.min.session.timeout.ms": "1000"}

OWN_BROKER = "starts its own Apache Kafka, with TLS, from files that the source package lacks"
LEFT_OUT = {
    "test_create_describe_delete_acls": "there is no access control yet: ACLs are answered with SECURITY_DISABLED",
    "test_ssl_handshake": OWN_BROKER,
    "test_legacy_kafka_client_ssl": OWN_BROKER,
}

# The source package lacks these two files of its test folder. With an external broker nothing in them is used but a
# place to remember its address.
MISSING_FILES = {
    "test/__init__.py": "",
    "test/service.py": """
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass


class SpawnedService:
    pass
""",
}


def suite() -> Path:
    """The unpacked source package; fetched on first use. Raises CannotRun with the reason."""
    folder = CACHE / f"kafka-python-{VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    unpacked = folder / f"kafka_python-{VERSION}"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            fetch(folder)
            for name, text in MISSING_FILES.items():
                (unpacked / name).write_text(text)
            (folder / "complete").touch()
    return unpacked


def fetch(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", ":all:", "--dest", str(folder), f"kafka-python=={VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    if done.returncode != 0:
        raise CannotRun(f"pip could not fetch the source of kafka-python {VERSION}: {done.stderr.strip()[-300:]}")
    with tarfile.open(folder / f"kafka_python-{VERSION}.tar.gz") as archive:
        archive.extractall(folder, filter="data")


def outcomes(report: Path) -> dict[str, str]:
    """Each test with what became of it; parametrised ones by their full name."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = [kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None]
        found[case.get("name") or ""] = kinds[0] if kinds else "passed"
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    with or_skip():
        where = suite()
    folder = tmp_path_factory.mktemp("kafka-python")
    with headrace_server(settings=SETTINGS) as server:
        # KAFKA_ROOT only has to exist: the suite looks for it even where it is given a broker.
        address = {"KAFKA_URI": f"kafka://{server.bootstrap}", "KAFKA_VERSION": "4.3.0", "KAFKA_ROOT": str(where)}
        found = played(where, folder, address)
        for _ in range(RETRIES):
            if not_passed(found) == set(LEFT_OUT):
                break
            found |= played(where, folder, address, "--last-failed")
    return found


def played(where: Path, folder: Path, address: dict[str, str], *more: str) -> dict[str, str]:
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "test/integration", "-q", "-o", f"cache_dir={folder / 'cache'}", *more]
    command += ["--timeout=180", "--timeout-method=signal", f"--junitxml={report}", "-o", "log_level=WARNING"]
    environment = {**os.environ, **address}
    done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert report.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    return outcomes(report)


def not_passed(found: dict[str, str]) -> set[str]:
    return {name for name, outcome in found.items() if outcome in ("failure", "error")}


def test_every_test_passes_but_those_left_out_for_a_reason(results: dict[str, str]) -> None:
    assert not_passed(results) == set(LEFT_OUT)


def test_the_score_in_the_docs_is_the_score(results: dict[str, str]) -> None:
    count = Counter(results.values())
    stated = re.search(r"(\d+) pass, (\d+) are left out, (\d+) skip themselves", COMPATIBILITY.read_text())
    assert stated is not None
    left_out = count["failure"] + count["error"]
    assert [int(number) for number in stated.groups()] == [count["passed"], left_out, count["skipped"]]


def test_every_test_left_out_stands_in_the_docs_with_its_reason() -> None:
    text = COMPATIBILITY.read_text()
    assert [name for name, reason in LEFT_OUT.items() if name not in text or reason not in text] == []
