"""Confirms: which numbers are answered, with what, and when."""

from __future__ import annotations

from headrace.broker.queues.confirms import Confirms


def test_a_refused_message_alone_is_answered_with_a_nack() -> None:
    sent: list[tuple[int, bool, bool]] = []
    confirms = Confirms(lambda *answer: sent.append(answer))
    for number in range(1, 6):
        group = confirms.published()
        if number in (1, 4):
            confirms.refuse(group)
    confirms.end_turn()
    assert sent == [(1, False, False), (3, True, True), (4, False, False), (5, False, True)]


def test_a_group_is_answered_at_the_end_of_its_turn_and_after_those_before_it() -> None:
    sent: list[tuple[int, bool, bool]] = []
    confirms = Confirms(lambda *answer: sent.append(answer))
    first = confirms.published(2)
    first.add_waits(1)
    confirms.end_turn()
    second = confirms.published()
    second.add_waits(1)
    second.one_done()
    assert sent == []
    first.one_done()
    assert sent == [(2, True, True)], "the second group may get more messages in this turn"
    confirms.published()
    confirms.end_turn()
    assert sent == [(2, True, True), (4, True, True)]
