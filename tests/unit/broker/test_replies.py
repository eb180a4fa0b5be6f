"""Replies that wait."""

from __future__ import annotations

from collections.abc import Callable

from headrace.broker.replies import PendingReply, once_flushed


class Journal:
    def __init__(self, flushed: int) -> None:
        self.flushed = flushed
        self.waiting: list[Callable[[], None]] = []

    def when_flushed(self, offset: int, callback: Callable[[], None]) -> None:
        if offset < self.flushed:
            callback()
        else:
            self.waiting.append(callback)


def test_a_reply_is_taken_when_the_last_thing_it_waits_for_has_happened() -> None:
    taken: list[str | None] = []
    reply = PendingReply("response", waits=2)
    reply.taker = lambda: taken.append(reply.response)
    reply.one_done()
    assert (taken, reply.ready) == ([], False)
    reply.one_done()
    assert (taken, reply.ready) == (["response"], True)


def test_a_reply_that_was_given_keeps_its_response() -> None:
    taken: list[str | None] = []
    reply: PendingReply[str] = PendingReply()
    reply.taker = lambda: taken.append(reply.response)
    reply.deliver("first")
    reply.deliver("second")
    assert taken == ["first"]


def test_what_is_flushed_is_answered_at_once_and_what_is_not_waits() -> None:
    journal = Journal(flushed=5)
    assert once_flushed(journal, -1, "nothing was written") == "nothing was written"
    assert once_flushed(journal, 4, "flushed") == "flushed"
    reply = once_flushed(journal, 5, "written")
    assert isinstance(reply, PendingReply)
    assert not reply.ready
    journal.waiting[0]()
    assert (reply.ready, reply.response) == (True, "written")
