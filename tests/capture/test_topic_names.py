"""Distinct tables never share a topic, and a topic's name depends on its table alone."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from headrace.capture.shapes import table_topic, topic_name

names = st.text(st.sampled_from("abé._-/ "), min_size=1, max_size=4)


def test_a_name_that_kafka_takes_is_the_topic_as_in_debezium() -> None:
    assert table_topic("shop", "public", "order_lines-2") == "shop.public.order_lines-2"


def test_names_that_lose_characters_stay_different() -> None:
    first, second = table_topic("shop", "public", "größe"), table_topic("shop", "public", "gräße")
    assert first.startswith("shop.public.gr__e-")
    assert first != second
    assert table_topic("shop", "public", "gr__e") == "shop.public.gr__e"


@given(st.tuples(names, names), st.tuples(names, names))
@example(("a.b", "c"), ("a", "b.c"))
@example(("a", "é"), ("a", "_"))
def test_different_tables_have_different_topics(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (table_topic("p", *one) == table_topic("p", *other)) == (one == other)


def test_a_name_longer_than_kafka_takes_is_cut_and_stays_different() -> None:
    one, other = topic_name("p." + "a" * 300), topic_name("p." + "a" * 301)
    assert len(one) == len(other) == 249
    assert one != other
