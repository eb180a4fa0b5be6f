"""A changed query and its checkpoint: what breaks, what mixes, what only is worth a note."""

from __future__ import annotations

import dataclasses
import json

import pytest

from headrace.spark.shape import Change, Column, Operator, Parameter, Shape, Source, changes, refuse

MINUTE = Column("window", "struct<start:timestamp,end:timestamp>", "60000000L")
SUM = Column("sum(amount)", "decimal(22,2)")
BASE = Shape(
    sources=(Source("headrace", "subscribe orders", "127.0.0.1:9092"),),
    operators=(Operator("aggregation", (MINUTE,), (SUM,)),),
    watermarks=1,
    output_mode="append",
    sink="topic revenue",
)


def severities(new: Shape, old: Shape = BASE) -> list[str]:
    return [each.severity for each in changes(old, new)]


def with_operator(**changed: object) -> Shape:
    return dataclasses.replace(BASE, operators=(dataclasses.replace(BASE.operators[0], **changed),))  # type: ignore[arg-type]


def test_the_same_query_fits() -> None:
    assert changes(BASE, BASE) == []


def test_a_shape_survives_being_written_and_read() -> None:
    assert Shape.from_json(BASE.to_json()) == BASE


def test_a_shape_from_before_there_was_a_choice_of_where_state_is_can_be_read() -> None:
    written = json.loads(BASE.to_json())
    del written["state"]
    assert Shape.from_json(json.dumps(written)) == BASE


def test_state_that_is_asked_for_elsewhere_stays_where_the_checkpoint_has_it_and_that_is_told() -> None:
    (found,) = changes(BASE, dataclasses.replace(BASE, state="memory"))
    assert found.severity == "note"
    assert "stays where its checkpoint has it" in found.text
    stateless = dataclasses.replace(BASE, operators=())
    assert changes(stateless, dataclasses.replace(stateless, state="memory")) == []


@pytest.mark.parametrize(
    ("new", "word"),
    [
        (dataclasses.replace(BASE, sources=BASE.sources * 2), "source by source"),
        (dataclasses.replace(BASE, sources=(Source("rate", "rate"),)), "with the source headrace"),
        (dataclasses.replace(BASE, sources=(Source("headrace", "subscribe users"),)), "read orders and reads users"),
        (dataclasses.replace(BASE, operators=()), "would keep state for: nothing"),
        (with_operator(kind="removal of duplicates"), "kept state for: aggregation by window"),
        (with_operator(keys=(MINUTE, Column("city", "string"))), "is by window (struct"),
        (with_operator(values=(Column("sum(amount)", "double"),)), "would keep sum(amount) (double)"),
        (dataclasses.replace(BASE, output_mode="complete"), "output mode was append and is complete"),
    ],
)
def test_what_the_checkpoint_cannot_serve_breaks_and_is_told(new: Shape, word: str) -> None:
    (found,) = changes(BASE, new)
    assert found.severity == "breaks"
    assert word in found.text


def test_a_sum_that_becomes_a_maximum_of_the_same_type_mixes() -> None:
    assert severities(with_operator(values=(Column("max(amount)", "decimal(22,2)"),))) == ["mixes"]


def test_a_window_of_another_width_under_the_same_name_mixes() -> None:
    assert severities(with_operator(keys=(dataclasses.replace(MINUTE, definition="300000000L"),))) == ["mixes"]


def test_one_more_topic_is_only_noted_and_one_less_breaks() -> None:
    both = dataclasses.replace(BASE, sources=(Source("headrace", "subscribe orders,returns"),))
    assert changes(BASE, both) == [Change("note", "it reads returns too, from the beginning")]
    assert severities(BASE, old=both) == ["breaks"]


def test_another_address_of_the_broker_is_no_change() -> None:
    moved = dataclasses.replace(BASE, sources=(Source("headrace", "subscribe orders", "kafka-1:9092"),))
    assert changes(BASE, moved) == []


def test_another_sink_is_noted_after_what_breaks() -> None:
    assert severities(dataclasses.replace(BASE, sink="console", operators=())) == ["breaks", "note"]


def test_without_state_the_output_mode_may_change() -> None:
    plain = dataclasses.replace(BASE, operators=())
    assert changes(plain, dataclasses.replace(plain, output_mode="update")) == []


def test_notes_alone_refuse_nothing() -> None:
    assert refuse("revenue", "ck/revenue", [Change("note", "other sink")], "headrace run shop.py") is None


def test_what_breaks_is_refused_with_the_way_out() -> None:
    error = refuse("revenue", "ck/revenue", [Change("breaks", "it read a and reads b")], "headrace run shop.py")
    assert error is not None
    assert "'revenue' has changed and no longer fits its checkpoint ck/revenue: it read a and reads b" in error.message
    assert "headrace run shop.py --only revenue --start-over" in error.hint
    assert "--accept-changes" not in error.hint


def test_what_mixes_may_be_accepted() -> None:
    error = refuse("revenue", "ck/revenue", [Change("mixes", "a sum became a maximum")], "headrace run shop.py")
    assert error is not None
    assert "headrace run shop.py --only revenue --accept-changes" in error.hint


def test_where_the_target_can_be_rebuilt_that_is_the_cure() -> None:
    for severity in ("breaks", "mixes"):
        found = [Change(severity, "a window became wider")]  # type: ignore[arg-type]
        error = refuse("revenue", "ck", found, "headrace run shop.py", "headrace rebuild shop.py revenue")
        assert error is not None
        assert "to compute everything again: headrace rebuild shop.py revenue" in error.hint
        assert "--start-over" not in error.hint


OURS = Operator("dedup", (Column("user", "string"),), (Column("state", "struct<…>"),), (Parameter("within", "60 s"),))


def test_a_parameter_of_an_operator_mixes_unless_it_is_free() -> None:
    before = dataclasses.replace(BASE, operators=(OURS,))
    assert Shape.from_json(before.to_json()) == before
    for free, severity in ((False, "mixes"), (True, "note")):
        old, new = (
            dataclasses.replace(
                BASE, operators=(dataclasses.replace(OURS, parameters=(Parameter("within", text, free),)),)
            )
            for text in ("60 s", "120 s")
        )
        assert changes(old, new) == [Change(severity, "within of dedup was 60 s and is 120 s")]  # type: ignore[arg-type]


def test_state_of_another_layout_is_explained_by_the_parameters_that_changed() -> None:
    old = dataclasses.replace(BASE, operators=(OURS,))
    state = (Column("state", "struct<other>"),)
    other = dataclasses.replace(OURS, values=state, parameters=(Parameter("within", "90 s"),))
    assert changes(old, dataclasses.replace(BASE, operators=(other,))) == [
        Change("breaks", "within of dedup was 60 s and is 90 s")
    ]
    unexplained = dataclasses.replace(OURS, values=state)
    (found,) = changes(old, dataclasses.replace(BASE, operators=(unexplained,)))
    assert found.severity == "breaks"
    assert "struct<other>" in found.text


def test_a_parameter_that_came_or_went_is_found() -> None:
    before = dataclasses.replace(BASE, operators=(OURS,))
    after = dataclasses.replace(BASE, operators=(dataclasses.replace(OURS, parameters=()),))
    assert changes(before, after) == [Change("mixes", "within of dedup was 60 s and is not there")]


def test_of_a_long_parameter_that_changed_what_differs_is_told() -> None:
    old, new = (
        with_operator(parameters=(Parameter("patterns", "A " * 300 + f"amount > {limit} " + "B " * 300),))
        for limit in (500, 600)
    )
    (found,) = changes(old, new)
    assert "amount > 500" in found.text
    assert "amount > 600" in found.text
    assert len(found.text) < 400
