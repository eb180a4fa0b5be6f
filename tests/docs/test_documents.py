"""What the documents show is what happens: their commands and programs are run, and their outputs compared."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace import testing
from tests.servers.headrace import headrace_server
from tests.servers.process import RunningServer, spare_port

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")])
LONG = (pytest.mark.spark, pytest.mark.slow)
"""Examples that start Spark for themselves; ``make test`` runs what they show in tests/spark."""
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    text: str


def blocks(document: str, replaced: Mapping[str, str] | None = None) -> list[Block]:
    """The blocks of code; ``replaced`` has what stands for a name of the document here, such as an address."""
    text = (ROOT / document).read_text()
    for name, here in (replaced or {}).items():
        text = text.replace(name, here)
    return [Block(*found.groups()) for found in BLOCK.finditer(text)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    """``headrace up``, as the documents start it: data in ./headrace-data."""
    with headrace_server(data=tmp_path / "headrace-data") as running:
        yield running


def run(command: list[str], server: RunningServer, folder: Path) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    environment = {**kept, "HEADRACE_BOOTSTRAP": server.bootstrap, "PATH": f"{BIN}:{kept['PATH']}"}
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def play(document: str, server: RunningServer, folder: Path, replaced: Mapping[str, str] | None = None) -> int:
    """Run the blocks of a document in order; a text block is what the shell block before it prints."""
    printed, ran = "", 0
    for block in blocks(document, replaced):
        if block.language == "sh" and block.text.strip() != "headrace up":
            printed = run(["bash", "-euo", "pipefail", "-c", block.text], server, folder)
            ran += 1
        elif block.language == "python":
            program = block.text.replace("127.0.0.1:9092", server.bootstrap)
            run([sys.executable, "-W", "error", "-c", program], server, folder)
            ran += 1
        elif block.language == "text":
            assert printed == block.text, document
    return ran


@pytest.mark.parametrize(
    ("document", "count"),
    [("README.md", 3), ("docs/quickstart.md", 7), ("docs/capture.md", 3), ("docs/sourcing.md", 8)],
)
def test_every_command_and_program_of_a_document_runs_and_prints_what_it_says(
    document: str, count: int, server: RunningServer, tmp_path: Path
) -> None:
    assert play(document, server, tmp_path) == count


def test_a_topic_moves_from_kafka_as_the_page_says(server: RunningServer, tmp_path: Path) -> None:
    """docs/howto/from-kafka.md, with a second broker in the place of the old one."""
    with testing.broker() as old:
        run(["headrace", "topic", "create", "orders", "-p", "3", "--bootstrap", old.bootstrap], server, tmp_path)
        lines = ["bash", "-c", f"printf 'anna:1\\nben:2\\n' | headrace produce orders -K : -b {old.bootstrap}"]
        run(lines, server, tmp_path)
        assert play("docs/howto/from-kafka.md", server, tmp_path, {"kafka-1:9092": old.bootstrap}) == 4
    copied = run(["headrace", "consume", "orders", "-e", "-f", "%k=%v\\n"], server, tmp_path)
    assert sorted(copied.split()) == sorted(["anna=1", "ben=2", 'anna={"amount":', "3.20}"])


@pytest.mark.timeout(660)  # the Spark examples start a session of their own
@pytest.mark.parametrize(
    "example",
    [
        pytest.param(path, id=path.name, marks=LONG if "headrace.spark" in path.read_text() else ())
        for path in sorted(ROOT.glob("examples/*.py"))
    ],
)
def test_every_example_runs_by_itself(example: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    done = subprocess.run(
        [sys.executable, str(example)], env=kept, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.strip(), "an example shows what it saw"


def test_every_example_is_on_the_path_that_their_page_describes() -> None:
    page = (ROOT / "examples/README.md").read_text()
    names = sorted(path.name for path in ROOT.glob("examples/*.py"))
    assert [f"({name})" in page for name in names] == [True] * len(names)
    assert [int(name[:2]) for name in names] == list(range(1, len(names) + 1))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(document: Path) -> None:
    targets = [target for target in LINK.findall(document.read_text()) if "://" not in target]
    assert [target for target in targets if not (document.parent / target).exists()] == []


def test_the_settings_file_of_the_quick_start_is_one_that_headrace_reads(tmp_path: Path) -> None:
    (block,) = [each for each in blocks("docs/quickstart.md") if each.language == "toml"]
    (tmp_path / "headrace.toml").write_text(block.text)
    done = subprocess.run(
        [str(BIN / "headrace"), "config", "--changed"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.count("file headrace.toml") == 3


def test_up_says_where_it_listens_before_it_is_ready(tmp_path: Path) -> None:
    """The lines that scripts rely on."""
    port = spare_port()
    command = [str(BIN / "headrace"), "up", "--data", str(tmp_path / "data"), "--kafka", f"127.0.0.1:{port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == f"kafka   127.0.0.1:{port}\n"
            assert child.stdout.readline() == "ready\n"
        finally:
            child.terminate()
        assert child.wait(60) == 0
