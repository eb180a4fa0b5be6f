"""Write the parts of docs/ that are printed from the code; ``--check`` only says whether they are up to date."""

from __future__ import annotations

import functools
import sys
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path

import api_reference
import command_reference

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
        "Printed from the code by `make docs`; a test compares. A setting has the first of these values:",
        "",
        "1. a change at run time (`headrace topic alter`, or any Kafka admin tool)",
        "2. a flag of the command",
        "3. the environment: `num.partitions` is `HEADRACE_NUM_PARTITIONS`",
        "4. the file `headrace.toml`",
        "5. the default",
        "",
        "`headrace config` prints the values in effect and where each came from.",
        "",
        "```toml",
        "# headrace.toml: Kafka's names; a name that is also the beginning of another needs quotes",
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
    return filled((DOCS / document).read_text(), f"{what}: printed from the code by `make docs`", what, table)


def filled(text: str, begin_mark: str, what: str, table: str) -> str:
    before, begin, rest = text.partition(f"<!-- {begin_mark} -->\n")
    _, end, after = rest.partition(f"<!-- end of {what} -->\n")
    if not (begin and end):
        raise SystemExit(f"a page lacks the marks between which the table of {what} belongs: <!-- {begin_mark} -->")
    return before + begin + table + end + after


def benchmarks() -> str:
    """The text of docs/benchmarks.md, with the newest recorded run of each benchmark."""
    sys.path.insert(0, str(DOCS.parent))
    from benchmarks.figures import recorded
    from benchmarks.figures import table as figures_table

    text = (DOCS / "benchmarks.md").read_text()
    for hop, (machine, figures) in recorded(DOCS.parent / "benchmarks" / "results").items():
        when = (
            f"{machine['date']}, commit {machine['commit']}, load average {machine['load_before']} before the run and "
            f"{machine['load_after']} after it."
        )
        shown = f"{when}\n\n{figures_table(figures, padded=False)}\n"
        text = filled(text, f"{hop}: printed from benchmarks/results by `make docs`", hop, shown)
    return text


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
    client = textwrap.fill(f"Of the client: {kafka}.", 100, break_on_hyphens=False)
    return between_marks("spark-source.md", "options", "\n".join([*rows, "", client]) + "\n")


def command_line() -> str:
    """The text of docs/cli.md, with the options of every command."""
    return command_reference.with_options((DOCS / "cli.md").read_text())


PRINTED: dict[str, Callable[[], str]] = {
    "cli.md": command_line,
    "benchmarks.md": benchmarks,
    "compatibility.md": compatibility,
    "bounds.md": bounds_document,
    "configuration.md": configuration,
    "operations.md": operations,
    "spark-source.md": spark_source,
    "support-matrix.md": support_matrix,
    **{path: functools.partial(api_reference.page, name) for name, path in api_reference.MODULES.items()},
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
