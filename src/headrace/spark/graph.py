"""What a query is made of, to be drawn: sources, operators, a sink, and which feeds which.

    {"nodes": [{"id": "n0", "kind": "source", "title": "payments", "topics": ["payments"], …},
               {"id": "n1", "kind": "operator", "title": "windows", "text": "by shop", "state": 0, …},
               {"id": "n2", "kind": "sink", "title": "topic revenue", …}],
     "edges": [["n0", "n1"], ["n1", "n2"]]}

Filters, projections and unions are part of the edges. ``plan.graph_of`` reads a graph from Spark's plan. ``state`` is
the operator's place among those with state, in the order of the plan and of Spark's progress reports; ``metric`` is the
name under which an operator of ours reports.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from headrace.spark.shape import Operator, Source

__all__ = ["Graph", "Node"]

SUBSCRIBE = "subscribe "
PARAMETERS_MAX = 20
TEXT_CHARACTERS_MAX = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    id: str
    kind: Literal["source", "operator", "sink"]
    title: str
    text: str = ""
    topics: tuple[str, ...] = ()
    parameters: tuple[tuple[str, str], ...] = ()
    state: int | None = None
    metric: str = ""


@dataclass(slots=True)
class Graph:
    """Nodes are added from the sink up or from the sources down; edges name them by id."""

    nodes: list[Node] = field(default_factory=list)
    edges: list[tuple[str, str]] = field(default_factory=list)

    def add_source(self, source: Source) -> str:
        topics = tuple(source.reads.removeprefix(SUBSCRIBE).split(",")) if source.reads.startswith(SUBSCRIBE) else ()
        title = ", ".join(topics) or source.reads
        node = Node(id=self._free_id(), kind="source", title=_short(title), text=source.kind, topics=topics)
        return self._added(node, ())

    def add_operator(
        self, operator: Operator, inputs: Iterable[str], *, state: int | None = None, metric: str = ""
    ) -> str:
        by = ", ".join(each.text for each in operator.keys)
        parameters = tuple((each.name, _short(each.text)) for each in operator.parameters[:PARAMETERS_MAX])
        node = Node(
            id=self._free_id(),
            kind="operator",
            title=operator.kind,
            text=_short(f"by {by}") if by else "",
            parameters=parameters,
            state=state,
            metric=metric,
        )
        return self._added(node, inputs)

    def add_sink(self, title: str, inputs: Iterable[str], *, topic: str = "") -> str:
        node = Node(id=self._free_id(), kind="sink", title=_short(title), topics=(topic,) if topic else ())
        return self._added(node, inputs)

    def of_kind(self, kind: str) -> list[Node]:
        return [each for each in self.nodes if each.kind == kind]

    def to_json(self) -> dict[str, Any]:
        return {"nodes": [asdict(each) for each in self.nodes], "edges": [list(each) for each in self.edges]}

    def _free_id(self) -> str:
        return f"n{len(self.nodes)}"

    def _added(self, node: Node, inputs: Iterable[str]) -> str:
        self.nodes.append(node)
        self.edges += [(each, node.id) for each in dict.fromkeys(inputs)]
        return node.id


def _short(text: str) -> str:
    return text if len(text) <= TEXT_CHARACTERS_MAX else text[: TEXT_CHARACTERS_MAX - 1] + "…"
