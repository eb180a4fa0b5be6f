"""Apache Kafka's own message schemas, brought into the same shape as our declarations."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headrace.wire.kafka.schema import Field, fields_of, spec_of
from tests.servers.kafka import kafka_jars
from tests.servers.process import CACHE
from tests.skips import or_skip, servers_required

OPEN_END = 1 << 15

RENAMED = {"TxnOffsetCommitRequest.GenerationId": "generation_id_or_member_epoch"}
"""Fields that a later Kafka gave another name; the wire has no names."""


@dataclass(frozen=True)
class Laid:
    """One field as it lies on the wire in one version."""

    name: str
    kind: str
    nullable: bool
    tag: int | None
    default: Any
    inner: tuple[Laid, ...] = ()


# ---- Kafka's side ---------------------------------------------------------------------------------------------------


@cache
def kafka_schemas() -> dict[str, dict[str, Any]]:
    """By message name, from kafka-python's wheel."""
    kafka_python = find_spec("kafka")
    assert kafka_python is not None
    assert kafka_python.submodule_search_locations
    folder = Path(kafka_python.submodule_search_locations[0]) / "protocol/schemas/resources"
    return dict(load(path.read_text()) for path in folder.glob("*.json"))


@cache
def kafka_schemas_of_the_jar() -> dict[str, dict[str, Any]]:
    """By message name, from the Java client in the cache; empty where no run has fetched it and none has to."""
    if servers_required():
        with or_skip():
            kafka_jars()  # fetches them where no earlier run has
    found = sorted(Path(CACHE).glob("kafka-*/jars/kafka-clients-*.jar"))
    if not found:
        return {}
    with zipfile.ZipFile(found[-1]) as jar:
        names = [name for name in jar.namelist() if name.startswith("common/message/") and name.endswith(".json")]
        return dict(load(jar.read(name).decode()) for name in names)


def load(text: str) -> tuple[str, dict[str, Any]]:
    plain = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("//"))
    schema: dict[str, Any] = json.loads(re.sub(r"//[^\"\n]*$", "", plain, flags=re.MULTILINE))
    return schema["name"], schema


def versions(text: str) -> tuple[int, int]:
    """'3+', '0-4', '2', 'none'."""
    if text == "none":
        return OPEN_END, -1
    if text.endswith("+"):
        return int(text[:-1]), OPEN_END
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def inside(version: int, text: str) -> bool:
    first, last = versions(text)
    return first <= version <= last


def kafka_layout(schema: dict[str, Any], version: int) -> tuple[Laid, ...]:
    common = {each["name"]: each["fields"] for each in schema.get("commonStructs", [])}
    laid = tuple(kafka_fields(schema["fields"], common, version))
    renamed = {snake(old.partition(".")[2]): new for old, new in RENAMED.items() if old.startswith(schema["name"])}
    return tuple(replace(each, name=renamed.get(each.name, each.name)) for each in laid)


def kafka_fields(fields: list[dict[str, Any]], common: dict[str, Any], version: int) -> Iterator[Laid]:
    for field in fields:
        if inside(version, field["versions"]):
            yield kafka_field(field, common, version)


def kafka_field(field: dict[str, Any], common: dict[str, Any], version: int) -> Laid:
    kind = field["type"]
    item = kind.removeprefix("[]")
    inner: tuple[Laid, ...] = ()
    if item[0].isupper():
        inner = tuple(kafka_fields(field.get("fields") or common[item], common, version))
        kind = kind.replace(item, "struct")
    tag = field["tag"] if "tag" in field and inside(version, field["taggedVersions"]) else None
    nullable = inside(version, field.get("nullableVersions", "none"))
    return Laid(snake(field["name"]), kind, nullable, tag, kafka_default(field, kind), inner)


def kafka_default(field: dict[str, Any], kind: str) -> Any:
    given = field.get("default")
    if given in ("null", None) and given is not None:
        return None
    if kind.startswith("[]") or kind == "struct":
        return "empty"
    if kind == "bool":
        return str(given).lower() == "true"
    if kind in ("string", "bytes"):
        return given or ""
    if kind == "uuid":
        return bytes(16)
    if kind == "records":
        return None
    if kind == "float64":
        return float(given or 0)
    return int(str(given or 0), 0)


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


# ---- our side -------------------------------------------------------------------------------------------------------


def our_layout(cls: type, version: int) -> tuple[Laid, ...]:
    return tuple(
        our_field(name, wire, default, version) for name, wire, default in fields_of(cls) if wire.present(version)
    )


def our_field(name: str, wire: Field, default: Any, version: int) -> Laid:
    kind = wire.kind
    struct = wire.type
    if kind == "array":
        assert wire.item is not None
        kind = f"[]{wire.item.kind}"
        struct = wire.item.type
    inner = our_layout(struct, version) if struct is not None else ()
    tag = wire.tag if wire.tagged(version) else None
    shown = "empty" if default is MISSING else "" if default == b"" else default
    return Laid(name, kind, wire.nullable(version), tag, shown, inner)


def declared_versions(cls: type) -> range:
    spec = spec_of(cls)
    return range(spec.first_version, spec.last_version + 1)
