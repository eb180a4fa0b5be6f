"""Write the parts of docs/ that are printed from the code; ``--check`` only says whether they are up to date."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from headrace.broker.bounds import bounds_document
from headrace.config import BROKER_SETTINGS, GROUP_SETTINGS, TOPIC_SETTINGS, Setting, show_value
from headrace.metrics.families import FAMILIES
from headrace.wire.kafka.apis import support_matrix

DOCS = Path(__file__).parent


def configuration() -> str:
    """The text of docs/configuration.md."""
    lines = [
        "# Settings",
        "",
        "Printed from the code by `make docs`; a test compares. A value comes from the first of: a change made while",
        "running (`headrace topic alter`, or any Kafka admin tool), a flag, the environment (`num.partitions` is",
        "`HEADRACE_NUM_PARTITIONS`), the file `headrace.toml`, the default. `headrace config` prints the effective",
        "values and where each came from.",
        "",
        "```toml",
        "# headrace.toml: Kafka's names as they stand; a name that is also the beginning of another needs quotes",
        'data = "/var/lib/headrace"',
        'kafka = "127.0.0.1:9092"',
        "num.partitions = 4",
        '"headrace.flush" = "ack"',
        "```",
        "",
        "## Topics",
        "",
        "Given per topic at creation or later; the default comes from the broker setting in the third column.",
        "",
        *table(TOPIC_SETTINGS.values(), third="broker setting"),
        "",
        "## The broker",
        "",
        *table(each for each in BROKER_SETTINGS.values() if not each.doc.startswith("default of ")),
        "",
        "## Groups",
        "",
        *table(GROUP_SETTINGS.values(), third="broker setting"),
    ]
    return "\n".join(lines) + "\n"


def table(settings: Iterable[Setting], third: str = "") -> list[str]:
    head = f"| setting | default | {third + ' | ' if third else ''}what it does |"
    rows = [head, "|---|---|" + ("---|" if third else "") + "---|"]
    for each in sorted(settings, key=lambda each: each.name):
        default = show_value(each.default) or "(empty)"
        choices = f" One of: {', '.join(each.choices)}." if each.choices else ""
        middle = f" `{each.synonym}` |" if third and each.synonym else (" |" if third else "")
        rows.append(f"| `{each.name}` | `{default}` |{middle} {each.doc}.{choices} |")
    return rows


def between_marks(document: str, what: str, table: str) -> str:
    """The text of a document as it stands, with ``table`` between its marks."""
    text = (DOCS / document).read_text()
    before, begin, rest = text.partition(f"<!-- {what}: printed from the code by `make docs` -->\n")
    _, end, after = rest.partition(f"<!-- end of {what} -->\n")
    return before + begin + table + end + after


def compatibility() -> str:
    """The text of docs/compatibility.md, with the table of what differential tests do not compare."""
    sys.path.insert(0, str(DOCS.parent))
    from tests.differential.masks import document

    return between_marks("compatibility.md", "masks", document())


def operations() -> str:
    """The text of docs/operations.md, with the table of metrics."""
    rows = ["| metric | kind | labels | what it is |", "|---|---|---|---|"]
    rows += [f"| `{each.name}` | {each.kind.value} | {' '.join(each.labels)} | {each.meaning} |" for each in FAMILIES]
    return between_marks("operations.md", "metrics", "\n".join(rows) + "\n")


def spark_source() -> str:
    """The text of docs/spark-source.md, with the table of options."""
    from headrace.spark.source.options import KAFKA_OPTIONS, SOURCE

    rows = ["| option | default | |", "|---|---|---|"]
    for each in SOURCE:
        default = str(each.default).lower() if isinstance(each.default, bool) else each.default
        rows.append(f"| `{each.name}` | {'' if default is None else f'`{default}`'} | {each.meaning} |")
    kafka = ", ".join(f"`{name}`" for name in KAFKA_OPTIONS)
    return between_marks("spark-source.md", "options", "\n".join([*rows, "", f"Of the client: {kafka}."]) + "\n")


PRINTED: dict[str, Callable[[], str]] = {
    "compatibility.md": compatibility,
    "bounds.md": bounds_document,
    "configuration.md": configuration,
    "operations.md": operations,
    "spark-source.md": spark_source,
    "support-matrix.md": support_matrix,
}


def main(check: bool) -> int:
    stale = [name for name, text in PRINTED.items() if not _is(DOCS / name, text())]
    if check:
        for name in stale:
            print(f"docs/{name} is not what the code says; run `make docs`")
        return 1 if stale else 0
    for name in stale:
        (DOCS / name).write_text(PRINTED[name]())
        print(f"docs/{name} written")
    return 0


def _is(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
