"""Under HEADRACE_REQUIRE_SERVERS=1 a skip fails, unless it is one of the listed ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.skips import ALLOWED, VARIABLE, allowed

ROOT = Path(__file__).resolve().parents[2]

TESTS = """
import pytest
from tests.servers.process import CannotRun
from tests.skips import or_skip

@pytest.fixture
def server():
    pytest.skip("no program")

@pytest.fixture
def broken():
    with or_skip():
        raise CannotRun("it ended with 3")

def test_of_a_server(server): ...
def test_of_another(broken): ...
@pytest.mark.skipif(True, reason="a mark")
def test_by_mark(): ...
def test_listed(): pytest.skip("kafka-python has no schema of it; other tests have")
@pytest.mark.xfail(reason="known")
def test_expected_to_fail(): assert False
def test_passes(): ...
"""

MODULE = "import pytest\npytest.importorskip('there_is_no_such_module')\n"


def run(folder: Path, required: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.skips", "-p", "no:cacheprovider", str(folder)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, VARIABLE: required, "PYTHONPATH": path}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False).stdout


def test_a_skip_is_a_skip_where_servers_are_not_required(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_module.py").write_text(MODULE)
    assert "1 passed, 5 skipped, 1 xfailed" in run(tmp_path, "")


def test_a_skip_fails_where_servers_are_required_and_the_listed_ones_are_counted(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    output = run(tmp_path, "1")
    assert "allowed skips: 1 × kafka-python has no schema of it" in output
    assert "no skip for: no program" in output
    assert "no skip for: a mark" in output
    assert f"it ended with 3 ({VARIABLE}=1)" in output
    assert "1 passed, 1 skipped, 1 xfailed, 3 errors" in output


def test_a_module_that_skips_itself_fails_where_servers_are_required(tmp_path: Path) -> None:
    (tmp_path / "test_module.py").write_text(MODULE)
    output = run(tmp_path, "1")
    assert "no skip for: could not import 'there_is_no_such_module'" in output
    assert "1 error" in output


def test_an_exception_that_does_not_hold_on_this_machine_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert allowed("root may write everywhere") is None
    assert allowed("only root may mount a filesystem") is not None
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert allowed("root may write everywhere") is not None
    assert allowed("only root may mount a filesystem") is None


def test_every_listed_skip_says_why() -> None:
    assert [each.begins for each in ALLOWED if len(each.why) < 20] == []
