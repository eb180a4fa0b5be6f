"""Answers that a thread makes bit by bit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from headrace.console.streams import Emit, Streams, json_text


async def body_of(work: Callable[[Emit], None], media_type: str) -> tuple[bytes, bool]:
    """What a server is given to send, and whether it hears that this was all."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    answer = Streams().threaded("exports", 1, work, media_type=media_type)
    try:
        await answer({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send)
    except ValueError:
        pass
    parts = [each for each in sent if each["type"] == "http.response.body"]
    return b"".join(each["body"] for each in parts), not parts[-1].get("more_body")


@pytest.mark.parametrize("fails", [False, True])
def test_a_file_that_fails_in_the_middle_is_not_taken_for_whole(fails: bool) -> None:
    def work(emit: Emit) -> None:
        emit.data(b"first line")
        if fails:
            raise ValueError("the broker is away")

    assert asyncio.run(body_of(work, "text/csv")) == (b"first line", not fails)


def test_events_end_with_what_went_wrong() -> None:
    def work(emit: Emit) -> None:
        raise ValueError("the broker is away")

    body, is_whole = asyncio.run(body_of(work, "text/event-stream"))
    assert body.startswith(b"event: problem")
    assert is_whole


def test_what_json_has_no_word_for_is_null() -> None:
    shown = json_text({"a": [float("nan"), 1.5, (float("inf"),)], "b": -float("inf")})
    assert json.loads(shown, parse_constant=pytest.fail) == {"a": [None, 1.5, [None]], "b": None}
