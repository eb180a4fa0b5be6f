"""Which messages of a queue a command is about: options, and whether a message fits them."""

from __future__ import annotations

import fnmatch
import functools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from headrace.cli.shared import settings_of
from headrace.client.places import parse_time_ms
from headrace.errors import BadArgument

if TYPE_CHECKING:
    from headrace.client import QueuedMessage

__all__ = ["MessageFilter", "filter_options"]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFilter:
    """All that is given must fit. Without anything every message does."""

    headers: tuple[tuple[str, str], ...] = ()
    routing_key: str | None = None
    death_reason: str | None = None
    death_queue: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    offsets: tuple[int, int] | None = None
    count: int | None = None

    @classmethod
    def of(
        cls,
        headers: tuple[str, ...],
        routing_key: str | None,
        death_reason: str | None,
        death_queue: str | None,
        since: str | None,
        until: str | None,
        offsets: str | None,
        count: int | None,
    ) -> MessageFilter:
        now_ms = int(time.time() * 1000)
        return cls(
            headers=tuple(settings_of(headers, "--header", "tenant=acme").items()),
            routing_key=routing_key,
            death_reason=death_reason,
            death_queue=death_queue,
            since_ms=None if since is None else parse_time_ms(since, now_ms),
            until_ms=None if until is None else parse_time_ms(until, now_ms),
            offsets=None if offsets is None else _range(offsets),
            count=count,
        )

    @property
    def is_everything(self) -> bool:
        return self == MessageFilter()

    def chosen(self, messages: Iterable[QueuedMessage]) -> Iterator[QueuedMessage]:
        return islice((each for each in messages if self.fits(each)), self.count)

    def fits(self, message: QueuedMessage) -> bool:
        headers, death = message.headers, message.death
        return (
            all(name in headers and str(headers[name]) == value for name, value in self.headers)
            and (self.routing_key is None or fnmatch.fnmatchcase(message.routing_key, self.routing_key))
            and (self.death_reason is None or death.get("reason") == self.death_reason)
            and (self.death_queue is None or death.get("queue") == self.death_queue)
            and self._is_in_time(message)
            and (self.offsets is None or self.offsets[0] <= message.offset < self.offsets[1])
        )

    def _is_in_time(self, message: QueuedMessage) -> bool:
        if self.since_ms is None and self.until_ms is None:
            return True
        if message.enqueued_ms is None:
            raise BadArgument("RabbitMQ does not tell when a message came", "leave --since and --until out")
        after = self.since_ms is None or message.enqueued_ms >= self.since_ms
        return after and (self.until_ms is None or message.enqueued_ms < self.until_ms)


def _range(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise BadArgument(f"{text!r} is not a range of offsets", "for example 17 or 100-250")
    return int(first), int(last if dash else first) + 1


REASONS = ("rejected", "expired", "maxlen", "delivery_limit")
FILTERS = ("headers", "key", "reason", "died_in", "since", "until", "offsets", "count")


def filter_options(command: F) -> F:
    """Options that choose messages; the command gets them as one argument, ``wanted``."""

    @functools.wraps(command)
    def filtered(*arguments: Any, **options: Any) -> Any:
        wanted = MessageFilter.of(*[options.pop(name) for name in FILTERS])
        return command(*arguments, wanted=wanted, **options)

    options = [
        click.option(
            "-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Only messages with this header."
        ),
        click.option(
            "-k",
            "--routing-key",
            "key",
            metavar="PATTERN",
            help="Only messages whose routing key matches; * is anything.",
        ),
        click.option(
            "--reason",
            type=click.Choice(REASONS),
            metavar="REASON",
            help="Dead letters: rejected, expired, maxlen, delivery_limit.",
        ),
        click.option("--died-in", metavar="QUEUE", help="Dead letters of this queue."),
        click.option("--since", metavar="TIME", help="Only messages from this time on: -15m, 2026-01-31T12:00Z."),
        click.option("--until", metavar="TIME", help="Only messages from before this time."),
        click.option("--offsets", metavar="N-M", help="Only messages at these offsets of the queue's log."),
        click.option("-n", "--count", type=click.IntRange(min=1), help="At most N messages, the oldest first."),
    ]
    for option in reversed(options):
        filtered = option(filtered)
    return cast(F, filtered)
