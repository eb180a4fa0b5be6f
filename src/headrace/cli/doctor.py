"""``headrace doctor``: what this machine lacks, and the command that fixes it."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from headrace.cli.settings import load_settings, settings_options
from headrace.cli.shared import output_option, show
from headrace.errors import UsageError
from headrace.spark.run.class_archive import archive_path
from headrace.spark.run.java import JAVA_HINT, find_java

if TYPE_CHECKING:
    from headrace.config import Settings

__all__ = ["Finding", "command"]

GIB = 1 << 30
MIB = 1 << 20
DISK_FREE_BYTES_MIN = 1 * GIB
MEMORY_BYTES_MIN = 512 * MIB
SYNC_MS_MAX = 25.0
PORT_TIMEOUT_MS = 1_000
SYNC_TRIES = 10
PYTHON_MIN = (3, 11)
JAVA_GOOD = (17, 21)
SPARK_PACKAGES = ("pyspark", "pyarrow", "pandas", "protobuf")
MARKS = {"ok": "green", "note": "yellow", "wrong": "red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: a *note* is worth knowing, what is *wrong* keeps headrace from working as it should."""

    check: str
    status: Literal["ok", "note", "wrong"]
    found: str
    fix: str = ""


@click.command("doctor")
@settings_options
@click.option(
    "--prepare-spark",
    is_flag=True,
    help="Check nothing, but make Spark start faster: keep its classes, loaded once, in a file. Takes about half a "
    "minute and 180 MB; once for each installation.",
)
@output_option
def command(
    data: str | None,
    kafka: str | None,
    amqp: str | None,
    metrics: str | None,
    http: str | None,
    file: Path | None,
    insecure: bool | None,
    pairs: tuple[str, ...],
    prepare_spark: bool,
    output: str,
) -> int:
    """Check this machine; say what is wrong and how to fix it.

    Takes the same options as "headrace up" and checks the addresses and the folder that "up" would use. Exits 1 when
    something is wrong.
    """
    if prepare_spark:
        return _prepare_spark()
    settings = load_settings(
        file, pairs, data=data, kafka=kafka, amqp=amqp, metrics=metrics, http=http, insecure=insecure
    )
    findings = examine(settings)
    if output == "json":
        show([asdict(each) for each in findings], output, columns=[])
    else:
        for each in findings:
            mark = click.style(f"{each.status:<5}", fg=MARKS[each.status])
            click.echo(f"{mark}  {each.check:<8}  {each.found}")
            if each.fix:
                click.echo(f"{'':17}→ {each.fix}")
    return 1 if any(each.status == "wrong" for each in findings) else 0


def _prepare_spark() -> int:
    """A broker is started for this, and stopped afterwards."""
    missing = check_spark()
    if missing.status != "ok":
        raise UsageError(missing.found, missing.fix)
    path = archive_path()
    if path.is_file():
        click.echo(f"Spark is prepared: {path}")
        return 0
    from headrace import testing
    from headrace.spark.run.archive_training import make_archive

    with tempfile.TemporaryDirectory(prefix="headrace-doctor-") as folder, testing.broker(in_process=False) as broker:
        make_archive(broker.bootstrap, Path(folder) / "spark.log", lambda text: click.echo(f"{text} …"))
    click.echo(f"Spark is prepared: {path} ({path.stat().st_size / MIB:.0f} MiB)")
    return 0


def examine(settings: Settings) -> list[Finding]:
    folder = Path(settings.text("data")).absolute()
    checks: list[Callable[[], Finding]] = [
        check_python,
        check_packages,
        check_java,
        check_spark,
        lambda: check_port(settings.text("kafka")),
        lambda: check_amqp(settings.text("amqp")),
        lambda: check_metrics(settings.text("metrics")),
        lambda: check_console(settings.text("http")),
        lambda: check_folder(folder),
        lambda: check_space(folder),
        lambda: check_sync(folder),
        check_memory,
        lambda: check_files(settings.integer("max.connections")),
    ]
    return [check() for check in checks]


def check_python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < PYTHON_MIN:
        return Finding("python", "wrong", f"{version}; headrace needs 3.11", "install Python 3.11 or newer")
    return Finding("python", "ok", version)


def check_packages() -> Finding:
    """Without the native checksum every byte goes through Python: it works, a hundred times slower."""
    import google_crc32c

    if google_crc32c.implementation != "c":
        fix = "pip install --force-reinstall google-crc32c"
        return Finding("packages", "wrong", "google-crc32c has no native part here; checksums would be slow", fix)
    try:
        version = importlib.metadata.version("uvloop")
    except importlib.metadata.PackageNotFoundError:
        return Finding("packages", "note", "uvloop is missing; the broker runs slower", "pip install uvloop")
    return Finding("packages", "ok", f"native checksums, uvloop {version}")


def check_java() -> Finding:
    """The broker needs no Java; pipelines on Spark do. It is the one that they would use."""
    try:
        _, version = find_java()
    except UsageError as error:
        is_there = bool(os.environ.get("JAVA_HOME") or shutil.which("java"))
        return Finding("java", "wrong" if is_there else "note", f"{error.message}; the broker needs none", error.hint)
    text = ".".join(map(str, version))
    if version[0] not in JAVA_GOOD:
        return Finding("java", "note", f"{text}; Spark is tested with 17 and 21", JAVA_HINT)
    return Finding("java", "ok", text)


def check_spark() -> Finding:
    """What ``headrace[spark]`` brings."""
    versions = {}
    for package in SPARK_PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            fix = "pip install 'headrace[spark]'"
            return Finding("spark", "note", f"{package} is missing; the broker needs none, pipelines do", fix)
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    if _can_be_prepared():
        return Finding("spark", "ok", f"{found}; starts faster when it is prepared", "headrace doctor --prepare-spark")
    return Finding("spark", "ok", found)


def _can_be_prepared() -> bool:
    try:
        return not archive_path().is_file()
    except UsageError:  # no Java, which is a finding too
        return False


def check_port(address: str) -> Finding:
    if address == "off":
        return Finding("kafka", "ok", "off")
    from headrace.server import parse_address

    error = _bind_error(*parse_address(address, "kafka"))
    return Finding("kafka", "ok", f"{address} is free") if error is None else _port_taken(address, error)


def check_amqp(address: str) -> Finding:
    if address == "off":
        return Finding("amqp", "ok", "off; headrace up --amqp HOST:PORT serves queues")
    from headrace.server import parse_address

    error = _bind_error(*parse_address(address, "amqp"))
    if error is None:
        return Finding("amqp", "ok", f"{address} is free")
    reason = (error.strerror or str(error)).lower() + _owner(address)
    fix = "headrace up --amqp 127.0.0.1:0 (a spare port) or --amqp off (no queues), or stop what uses it"
    return Finding("amqp", "note", f"{address} cannot be used: {reason}", fix)


def _bind_error(host: str, port: int) -> OSError | None:
    """Why the address cannot be taken, or None."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return error
    return None


def check_metrics(address: str) -> Finding:
    if address == "off":
        return Finding("metrics", "ok", "off; headrace up --metrics HOST:PORT serves /metrics, /health and /ready")
    from headrace.server import parse_address

    error = _bind_error(*parse_address(address, "metrics"))
    if error is None:
        return Finding("metrics", "ok", f"{address} is free")
    ready = _readiness(address)
    if ready is None:
        reason = (error.strerror or str(error)).lower()
        fix = "headrace up --metrics 127.0.0.1:0 (a spare port), or stop what uses it"
        return Finding("metrics", "wrong", f"{address} cannot be used: {reason}", fix)
    if ready:
        return Finding("metrics", "note", f"{address} is served, and not ready: {ready}", "read the broker's log")
    return Finding("metrics", "ok", f"{address} is served by a broker that is ready")


def check_console(address: str) -> Finding:
    if address == "off":
        return Finding("console", "ok", "off; headrace up --http HOST:PORT serves the web console")
    from headrace.server import parse_address

    error = _bind_error(*parse_address(address, "http"))
    if error is None:
        return Finding("console", "ok", f"{address} is free")
    reason = (error.strerror or str(error)).lower() + _owner(address)
    fix = "headrace up --http 127.0.0.1:0 (a spare port), or stop what uses it"
    return Finding("console", "note", f"{address} cannot be used: {reason}", fix)


def _readiness(address: str) -> str | None:
    """Why the broker there is not ready, nothing if it is, or None where none answers."""
    import json
    from http.client import HTTPConnection, HTTPException

    connection = HTTPConnection(address, timeout=PORT_TIMEOUT_MS / 1000)
    try:
        connection.request("GET", "/ready")
        answer = json.loads(connection.getresponse().read())
        return "" if answer["status"] == "ready" else ", ".join(answer["reasons"])
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return None
    finally:
        connection.close()


def _port_taken(address: str, error: OSError) -> Finding:
    """Either a broker serves there, which is fine, or another program does."""
    from headrace.client import Client, ClientOptions
    from headrace.errors import HeadraceError

    patience = ClientOptions(
        connect_timeout_ms=PORT_TIMEOUT_MS, request_timeout_ms=PORT_TIMEOUT_MS, retry_timeout_ms=PORT_TIMEOUT_MS
    )
    try:
        with Client(address, patience) as client:
            client.brokers()
            found = f"{address} is served by cluster {client.cluster_id}{_owner(address)}: one more cannot start there"
            return Finding("kafka", "note", found, "headrace up --kafka 127.0.0.1:0 (a spare port) for another one")
    except HeadraceError:
        reason = (error.strerror or str(error)).lower() + _owner(address)
        fix = "headrace up --kafka 127.0.0.1:0 (a spare port), or stop what uses it"
        return Finding("kafka", "wrong", f"{address} cannot be used: {reason}", fix)


def _owner(address: str) -> str:
    from headrace.server.port_owner import port_owner

    owner = port_owner(int(address.rpartition(":")[2]))
    return f", {owner}" if owner else ""


def _nearest(folder: Path) -> Path:
    """The folder itself, or the closest one above it that exists."""
    while not folder.exists():
        folder = folder.parent
    return folder


def check_folder(folder: Path) -> Finding:
    place = _nearest(folder)
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return Finding(
            "data", "wrong", f"{place} cannot be written", "headrace up --data DIR, or change its owner: chown"
        )
    kind = _filesystem(place)
    if kind in ("tmpfs", "ramfs"):
        found = f"{folder} is in memory ({kind}): it does not survive a restart of the machine"
        return Finding("data", "note", found, "headrace up --data DIR on a disk")
    if kind.startswith(("nfs", "cifs", "smb", "fuse.sshfs")):
        found = f"{folder} is on a network ({kind}), where a flush may not mean what it says"
        return Finding("data", "wrong", found, "headrace up --data DIR on a local disk")
    return Finding("data", "ok", f"{folder} ({kind or 'unknown filesystem'})")


def _filesystem(place: Path) -> str:
    """The filesystem's type from the mount table; the longest mount point that holds the place wins."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    mounts = [line.split()[1:3] for line in lines]
    holding = [(len(point), kind) for point, kind in mounts if place.is_relative_to(point.replace("\\040", " "))]
    return max(holding, default=(0, ""))[1]


def check_space(folder: Path) -> Finding:
    place = _nearest(folder)
    usage = shutil.disk_usage(place)
    found = f"{usage.free / GIB:.1f} of {usage.total / GIB:.1f} GiB free"
    if usage.free < DISK_FREE_BYTES_MIN:
        fix = "free some space, or keep less: headrace up --set log.retention.bytes=N"
        return Finding("space", "wrong", found, fix)
    return Finding("space", "ok", found)


def check_sync(folder: Path) -> Finding:
    """An acknowledgement waits for the disk, so its time to sync is the floor of every producer's latency."""
    try:
        took_ms = sorted(_sync_times_ms(_nearest(folder)))
    except OSError as error:
        return Finding("sync", "wrong", f"a test file cannot be synced: {error.strerror}", "headrace up --data DIR")
    middle = took_ms[len(took_ms) // 2]
    found = f"{middle:.2f} ms to sync 4 KiB (median of {len(took_ms)}, worst {took_ms[-1]:.2f})"
    if middle > SYNC_MS_MAX:
        fix = "use a faster disk, or give up durability where you can: headrace.flush=interval per topic"
        return Finding("sync", "note", found, fix)
    return Finding("sync", "ok", found)


def _sync_times_ms(place: Path) -> list[float]:
    from headrace.log.disk import sync_data

    with tempfile.TemporaryFile(dir=place, prefix=".headrace-doctor-") as file:
        times = []
        for _ in range(SYNC_TRIES):
            file.write(b"\0" * 4096)
            file.flush()
            start = time.perf_counter()
            sync_data(file.fileno())
            times.append((time.perf_counter() - start) * 1000)
    return times


def check_memory() -> Finding:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return Finding("memory", "note", "this system does not tell")
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    available = kilobytes.get("MemAvailable", 0) * 1024
    found = f"{available / GIB:.1f} GiB available"
    if available < MEMORY_BYTES_MIN:
        return Finding("memory", "wrong", found, "end what uses memory: ps --sort=-rss -eo rss,comm | head")
    return Finding("memory", "ok", found)


def check_files(connections: int) -> Finding:
    """Connections and segments are open files; the broker raises its own limit as far as it may."""
    import resource

    from headrace.server.descriptors import DESCRIPTORS_MIN, DescriptorPlan, descriptors_for

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return Finding("files", "ok", "any number of open files")
    fix = f"ulimit -Hn {descriptors_for(connections)} as root, or LimitNOFILE= in the service file"
    if hard < DESCRIPTORS_MIN:
        return Finding("files", "wrong", f"at most {hard} open files; the broker needs {DESCRIPTORS_MIN}", fix)
    room = DescriptorPlan.of(hard, connections).connections_max
    if room < connections:
        found = f"at most {hard} open files: room for {room} connections, not for max.connections={connections}"
        return Finding("files", "note", found, fix)
    return Finding("files", "ok", f"up to {hard} open files: room for {connections} connections")
