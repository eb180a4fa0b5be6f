"""What a benchmark reports: our median beside the peer's, the ratio of the two, and how far the rounds lay apart."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

__all__ = ["Figure", "as_json", "number", "record", "recorded", "table"]


@dataclass(slots=True, kw_only=True)
class Figure:
    """One line of the results. ``ours`` and ``peers`` hold one value per round.

    ``goal`` is a bound on the ratio, or on our own value where ``absolute``; a figure without a goal only informs.
    """

    hop: str
    case: str
    unit: str
    ours: list[float]
    peers: list[float] = field(default_factory=list)
    peer: str = "Apache Kafka"
    higher_is_better: bool = True
    goal: float | None = None
    absolute: bool = False
    note: str = ""

    @property
    def our_median(self) -> float:
        return median(self.ours)

    @property
    def peer_median(self) -> float | None:
        return median(self.peers) if self.peers else None

    @property
    def ratio(self) -> float | None:
        """Ours divided by the peer's."""
        return self.our_median / self.peer_median if self.peer_median else None

    @property
    def spread(self) -> float:
        """How far the rounds lie apart, as a share of the median: below it a difference means nothing."""
        rounds = [values for values in (self.ours, self.peers) if len(values) > 1]
        return max(((max(values) - min(values)) / median(values) for values in rounds if median(values)), default=0.0)

    @property
    def met(self) -> bool | None:
        value = self.our_median if self.absolute else self.ratio
        if self.goal is None or value is None:
            return None
        return value >= self.goal if self.higher_is_better else value <= self.goal


def as_json(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    return [
        {
            **asdict(figure),
            "our_median": figure.our_median,
            "peer_median": figure.peer_median,
            "ratio": figure.ratio,
            "spread": figure.spread,
            "met": figure.met,
        }
        for figure in figures
    ]


def record(folder: Path, name: str, machine: Mapping[str, Any], figures: Sequence[Figure]) -> Path:
    """Write every round of every figure to a file that can be committed, with what it was measured on. The next call in
    the same run replaces the file, so that what was measured is kept if a later benchmark fails."""
    folder.mkdir(parents=True, exist_ok=True)
    when = str(machine["date"]).replace(" UTC", "").replace(":", "").replace(" ", "-")
    path = folder / f"{when}-{name}.json"
    path.write_text(json.dumps({"machine": machine, "figures": as_json(figures)}, indent=1, ensure_ascii=False) + "\n")
    return path


def recorded(folder: Path) -> dict[str, tuple[dict[str, Any], list[Figure]]]:
    """The newest recorded figures of each hop, with the machine of their run."""
    found: dict[str, tuple[dict[str, Any], list[Figure]]] = {}
    for path in sorted(folder.glob("*.json")):
        run = json.loads(path.read_text())
        figures = [Figure(**{name: each[name] for name in Figure.__slots__}) for each in run["figures"]]
        for hop in {figure.hop for figure in figures}:
            found[hop] = run["machine"], [figure for figure in figures if figure.hop == hop]
    return found


COLUMNS: tuple[tuple[str, Callable[[Figure], str]], ...] = (
    ("case", lambda figure: figure.case),
    ("unit", lambda figure: figure.unit),
    ("headrace", lambda figure: number(figure.our_median)),
    ("peer", lambda figure: number(figure.peer_median)),
    ("ratio", lambda figure: number(figure.ratio, suffix="×")),
    ("spread", lambda figure: f"±{figure.spread / 2:.0%}" if figure.spread else ""),
    ("goal", lambda figure: goal_text(figure)),
    ("note", lambda figure: figure.note if figure.peer == "Apache Kafka" else f"peer: {figure.peer}. {figure.note}"),
)


def number(value: float | None, *, suffix: str = "") -> str:
    if value is None:
        return "–"
    if value >= 10_000:
        return f"{value:,.0f}{suffix}"
    return f"{value:.3g}{suffix}"


def goal_text(figure: Figure) -> str:
    if figure.goal is None:
        return ""
    sign = "≥" if figure.higher_is_better else "≤"
    bound = number(figure.goal, suffix="" if figure.absolute else "×")
    return f"{sign} {bound} {'yes' if figure.met else 'NO'}"


def table(figures: Sequence[Figure], *, padded: bool = True) -> str:
    """A Markdown table, padded so that it reads well on a terminal too."""
    rows = [[name for name, _ in COLUMNS], *([show(figure).strip() for _, show in COLUMNS] for figure in figures)]
    widths = [max(len(row[column]) for row in rows) if padded else 1 for column in range(len(COLUMNS))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)
