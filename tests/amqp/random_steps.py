"""Random sequences of AMQP operations. One seed is one sequence, the same for every broker that plays it.

A step is the number of a channel, the name of an operation and its arguments. What depends on answers is written
relative to them: "the second of the deliveries that this channel has not settled". Times to live are 1 ms or far away:
what expires has expired when the step after it begins.

With ``queue_type`` quorum or stream, the first two queues are of that type and the third is a classic one. What differs
on purpose, or by chance in RabbitMQ itself, is left out there: see ``docs/compatibility-amqp.md``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

CHANNELS = 4
"""Two connections with two channels each: 0 and 1 are the first one's."""

CONFIRMING, TRANSACTIONAL = 2, 3
"""The channels that are often in one of these modes; any channel can get into any."""

QUEUES = ("q0", "q1", "q2")
TYPED = QUEUES[:2]
"""Those that are of another type than classic, if the sequence has one."""
EXCHANGES = ("x0", "x1", "x2")
MISSING = "missing"
"""A queue and an exchange that nobody declares, but by accident."""
KEYS = ("a", "b", "a.b", "a.b.c", "")
PATTERNS = ("a", "#", "*", "a.*", "a.#", "#.c", "*.b.#", "")
HEADERS = ({}, {"h": 1}, {"h": "1"}, {"h": 1, "g": "x"}, {"g": "x", "x-k": 2}, {"h": None})
MATCHES = (
    {},
    {"x-match": "all", "h": 1},
    {"x-match": "any", "h": 1, "g": "x"},
    {"x-match": "all", "h": None, "g": "x"},
    {"x-match": "any", "x-k": 2},
    {"h": "1"},
    {"x-match": "all"},
    {"x-match": "any"},
    {"x-match": "any-with-x", "x-k": 2},
    {"x-match": "all-with-x", "x-k": 2, "g": "x"},
    {"x-match": "odd"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    channel: int
    operation: str
    arguments: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        written = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"channel {self.channel}: {self.operation}({written})"


class Generator:
    """Steps of one sequence: first a topology that mostly works, then anything."""

    def __init__(self, seed: int, queue_type: str = "classic") -> None:
        self._random = random.Random(seed)
        self._queue_type = queue_type
        self._published = 0
        self._declared: list[Step] = []
        self._has_dead_letters = self._random.random() < 0.7
        """Without them there are hidden copies: whether a dead letter has any is a difference on purpose."""
        self._has_priorities = self._random.random() < 0.4
        """Without them messages expire: RabbitMQ counts one of a higher priority until somebody fetches."""
        self._limit = None if queue_type == "classic" else self._random.choice((None, None, 0, 1, 2))
        """Of deliveries; the same in all declarations, which RabbitMQ compares and headrace does not."""

    def sequence(self, length: int) -> list[Step]:
        begin = [self._queue_declare(name) for name in QUEUES]
        begin += [self._exchange_declare(name) for name in EXCHANGES]
        self._declared = list(begin)
        begin += [self._queue_bind() for _ in range(self._random.randint(1, 4))]
        if self._chance(0.5):
            begin.append(Step(channel=CONFIRMING, operation="confirm_select"))
        if self._chance(0.3):
            begin.append(Step(channel=TRANSACTIONAL, operation="tx_select"))
        return begin + [self._any() for _ in range(length)]

    def _any(self) -> Step:
        weights = {
            self._publish: 30,
            self._get: 8,
            self._consume: 8,
            self._settle: 20,
            self._cancel: 3,
            self._qos: 4,
            self._purge: 1,
            self._queue_delete: 2,
            self._queue_declare: 2,
            self._again: 2,
            self._queue_bind: 3,
            self._queue_unbind: 1,
            self._exchange_declare: 1,
            self._exchange_delete: 1,
            self._exchange_bind: 2,
            self._exchange_unbind: 1,
            self._mode: 3,
            self._end: 3,
            self._recover: 1,
        }
        if self._queue_type == "stream":
            weights |= {self._get: 1, self._consume: 14, self._qos: 10, self._purge: 0, self._recover: 0}
        (make,) = self._random.choices(list(weights), list(weights.values()))
        return make()

    def _step(self, operation: str, **arguments: Any) -> Step:
        return Step(channel=self._random.randrange(CHANNELS), operation=operation, arguments=arguments)

    def _one(self, *values: Any) -> Any:
        return self._random.choice(values)

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _queue(self) -> str:
        return str(self._random.choice(QUEUES)) if not self._chance(0.03) else str(self._one("", MISSING))

    def _exchange(self) -> str:
        return str(self._random.choice(EXCHANGES)) if not self._chance(0.05) else str(self._one("amq.topic", MISSING))

    def _queue_arguments(self) -> dict[str, Any]:
        choices: dict[str, tuple[Any, ...]] = {
            "x-max-length": (0, 1, 2, 3),
            "x-max-length-bytes": (0, 5, 10),
            "x-overflow": ("drop-head", "reject-publish", "reject-publish-dlx"),
            "x-message-ttl": (0, 1, 600_000),
            "x-dead-letter-exchange": ("", *EXCHANGES),
            "x-dead-letter-routing-key": (*QUEUES, "a", "a.b"),
            "x-max-priority": (1, 3, 10),
            "x-single-active-consumer": (True, False),
            "x-expires": (600_000,),
        }
        likely = {"x-dead-letter-exchange": 0.35, "x-max-length": 0.25, "x-overflow": 0.25}
        found = {name: self._one(*values) for name, values in choices.items() if self._chance(likely.get(name, 0.12))}
        if "x-dead-letter-exchange" not in found and self._chance(0.9):
            found.pop("x-dead-letter-routing-key", None)
        elif self._chance(0.5):
            found["x-dead-letter-routing-key"] = self._one(*QUEUES)
        if not self._has_dead_letters:
            found.pop("x-dead-letter-exchange", None)
        found.pop("x-message-ttl" if self._has_priorities else "x-max-priority", None)
        return found

    def _typed_arguments(self) -> dict[str, Any]:
        """Of a queue that is not a classic one."""
        found: dict[str, Any] = {"x-queue-type": self._queue_type}
        if self._queue_type == "stream":
            choices: dict[str, tuple[Any, ...]] = {"x-max-age": ("1h", "7D"), "x-max-length-bytes": (10_000_000,)}
            likely = dict.fromkeys(choices, 0.2) | {"x-max-length": 0.02}
            choices["x-max-length"] = (3,)  # which streams do not have
        else:
            choices = {
                "x-max-length": (1, 2, 3),
                "x-dead-letter-exchange": ("", *EXCHANGES),
                "x-message-ttl": (600_000,),
                "x-single-active-consumer": (True, False),
            }
            likely = {"x-max-length": 0.25, "x-dead-letter-exchange": 0.4}
            found |= {} if self._limit is None else {"x-delivery-limit": self._limit}
        found |= {name: self._one(*values) for name, values in choices.items() if self._chance(likely.get(name, 0.15))}
        if "x-dead-letter-exchange" in found and self._chance(0.6):
            found["x-dead-letter-routing-key"] = self._one(*QUEUES)
        if not self._has_dead_letters:
            found.pop("x-dead-letter-exchange", None)
            found.pop("x-dead-letter-routing-key", None)
        return found

    def _typed_declare(self, name: str, *, may_be_passive: bool) -> Step:
        return self._step(
            "queue_declare",
            queue=name,
            passive=may_be_passive and self._chance(0.2),
            durable=not self._chance(0.03),
            exclusive=self._chance(0.03),
            auto_delete=self._chance(0.03),
            arguments=self._typed_arguments(),
        )

    def _queue_declare(self, name: str | None = None) -> Step:
        if self._queue_type != "classic":
            chosen = name or self._queue()
            if chosen in TYPED:
                return self._typed_declare(chosen, may_be_passive=name is None)
        return self._step(
            "queue_declare",
            queue=name or self._queue(),
            passive=name is None and self._chance(0.2),
            durable=self._chance(0.5),
            exclusive=self._chance(0.07),
            auto_delete=self._chance(0.15),
            arguments=self._queue_arguments(),
        )

    def _again(self) -> Step:
        """The same declaration once more, or with one thing changed."""
        step = self._random.choice(self._declared)
        arguments = dict(step.arguments)
        if self._chance(0.5):
            name = self._one("durable", "auto_delete")
            arguments[name] = not arguments[name]
        elif self._chance(0.5):
            if step.operation != "queue_declare":
                arguments["arguments"] = self._alternate()
            elif "x-queue-type" in arguments["arguments"] and self._queue_type != "classic":
                arguments["arguments"] = self._typed_arguments()
            else:
                arguments["arguments"] = self._queue_arguments()
        return Step(channel=self._random.randrange(CHANNELS), operation=step.operation, arguments=arguments)

    def _alternate(self) -> dict[str, Any]:
        return {"alternate-exchange": self._one(*EXCHANGES)} if self._chance(0.25) else {}

    def _exchange_declare(self, name: str | None = None) -> Step:
        return self._step(
            "exchange_declare",
            exchange=name or self._exchange(),
            exchange_type=self._one("direct", "fanout", "topic", "topic", "headers"),
            passive=name is None and self._chance(0.2),
            durable=self._chance(0.5),
            auto_delete=self._chance(0.15),
            internal=self._chance(0.08),
            arguments=self._alternate(),
        )

    def _binding(self) -> dict[str, Any]:
        return {"routing_key": self._one(*PATTERNS), "arguments": self._one(*MATCHES) if self._chance(0.5) else {}}

    def _queue_bind(self) -> Step:
        return self._step("queue_bind", queue=self._queue(), exchange=self._exchange(), **self._binding())

    def _queue_unbind(self) -> Step:
        return self._step("queue_unbind", queue=self._queue(), exchange=self._exchange(), **self._binding())

    def _exchange_bind(self) -> Step:
        return self._step("exchange_bind", destination=self._exchange(), source=self._exchange(), **self._binding())

    def _exchange_unbind(self) -> Step:
        return self._step("exchange_unbind", destination=self._exchange(), source=self._exchange(), **self._binding())

    def _queue_delete(self) -> Step:
        if self._queue_type != "classic":  # whose queues have no conditions, in RabbitMQ
            return self._step("queue_delete", queue=self._queue(), if_unused=False, if_empty=False)
        return self._step("queue_delete", queue=self._queue(), if_unused=self._chance(0.5), if_empty=self._chance(0.5))

    def _exchange_delete(self) -> Step:
        return self._step("exchange_delete", exchange=self._exchange(), if_unused=self._chance(0.6))

    def _purge(self) -> Step:
        return self._step("queue_purge", queue=self._queue())

    def _publish(self) -> Step:
        """Some messages to the same place, since limits and prefetches are about several."""
        count = self._one(1, 1, 1, 2, 4) if self._queue_type != "stream" else 1  # several may be one chunk of a stream
        self._published += count
        to_queue = self._chance(0.5)
        return self._step(
            "publish",
            exchange="" if to_queue else self._exchange(),
            routing_key=self._queue() if to_queue else self._one(*KEYS),
            mandatory=self._chance(0.2),
            bodies=[f"m{self._published - count + number}" for number in range(count)],
            properties=self._properties(),
        )

    def _properties(self) -> dict[str, Any]:
        headers = dict(self._one(*HEADERS)) if self._chance(0.4) else {}
        # A stream of RabbitMQ forgets lists; a copy to a quorum queue may come after the dead letter of another copy.
        if self._chance(0.12 if self._queue_type == "classic" else 0.0):
            headers["CC" if self._has_dead_letters else self._one("CC", "BCC")] = self._one(
                ["a"], ["q0", "q1"], ["a.b", "b"], "not a list", []
            )
        times = ("600000", "odd") if self._has_priorities else ("0", "1", "600000", "600000", "odd")
        chosen = {
            "headers": headers or None,
            "delivery_mode": self._one(1, 2) if self._chance(0.5) else None,
            "priority": self._one(0, 1, 2, 5, 255) if self._chance(0.3) else None,
            "expiration": self._one(*times) if self._chance(0.12) else None,
            "user_id": self._one("guest", "guest", "other") if self._chance(0.04) else None,
            "message_id": "an-id" if self._chance(0.1) else None,
        }
        return {name: value for name, value in chosen.items() if value is not None}

    def _get(self) -> Step:
        return self._step("get", queue=self._queue(), no_ack=self._chance(0.3))

    def _consume(self) -> Step:
        queue = self._queue()
        return self._step(
            "consume",
            queue=queue,
            consumer_tag=self._consumer_tag(queue),
            no_ack=self._chance(0.2 if self._queue_type == "classic" else 0.1),
            exclusive=self._chance(0.06),
            arguments=self._consumer_arguments(queue),
        )

    def _consumer_tag(self, queue: str) -> str:
        if self._queue_type == "stream" and queue in TYPED:  # two consumers of a channel get what comes in any order
            return f"t{TYPED.index(queue)}"
        return str(self._one("", "t0", "t1", "t2"))

    def _consumer_arguments(self, queue: str) -> dict[str, Any]:
        if self._queue_type == "stream" and (queue in TYPED or self._chance(0.05)):
            return {"x-stream-offset": self._one("first", "first", "next", 0)} if self._chance(0.8) else {}
        return {"x-priority": self._one(-1, 1, 5)} if self._chance(0.2) else {}

    def _cancel(self) -> Step:
        return self._step("cancel", consumer_tag=self._one("t0", "t1", "t2", "t9"))

    def _qos(self) -> Step:
        if self._queue_type != "classic":  # where a limit of the channel is refused
            return self._step("qos", prefetch_count=self._one(1, 1, 2, 3, 10), global_=False)
        return self._step("qos", prefetch_count=self._one(0, 1, 2, 3), global_=self._chance(0.35))

    def _settle(self) -> Step:
        """One of the deliveries that the channel holds, by its place; now and then a tag that nobody has."""
        how = self._one("ack", "ack", "nack", "nack", "reject")
        which = self._one(0, 0, 1, -1) if not self._chance(0.03) else self._one("unknown", "zero")
        more = {"multiple": self._chance(0.35)} if how != "reject" else {}
        more |= {"requeue": self._chance(0.6)} if how != "ack" else {}
        return self._step(how, which=which, **more)

    def _recover(self) -> Step:
        return self._step("recover", requeue=not self._chance(0.1))

    def _mode(self) -> Step:
        """Confirms or transactions."""
        if self._chance(0.75):
            return Step(
                channel=TRANSACTIONAL, operation=self._one("tx_select", "tx_commit", "tx_commit", "tx_rollback")
            )
        return self._step(self._one("confirm_select", "tx_select", "tx_commit"))

    def _end(self) -> Step:
        return self._step(self._one("channel_close", "channel_close", "drop_connection", "connection_close"))
