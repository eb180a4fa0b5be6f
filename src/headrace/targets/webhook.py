"""Webhooks: each row is a signed POST, at least once.

A web server knows no fence of ours, so a row can arrive twice: when an answer is lost, or a driver dies within a batch.
Each request has an id that is the same whenever the same row of the same batch is sent, by which the receiver can
recognise it. Requests are signed as standardwebhooks.com says: ``webhook-id``, ``webhook-timestamp``, and
``webhook-signature`` with an HMAC of both and the body; several secrets sign side by side while one replaces another.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.address import ENVIRONMENT, Address
from headrace.errors import Refused, UsageError
from headrace.targets.documents import dumps, objects
from headrace.targets.http import Answer, HttpConnection
from headrace.targets.target import Delivery, Fence, Outcome, Session, Target, Unavailable, complete

__all__ = ["WebhookTarget", "message_ids", "signature"]

SECRET_PREFIX = "whsec_"
SECRET_BYTES_MIN = 24
TRY_AGAIN = (408, 425, 429, 500, 502, 503, 504)
GONE = 410
RETRY_AFTER_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class WebhookTarget(Target):
    address: Address
    secrets: tuple[str, ...] = field(repr=False)
    key: tuple[str, ...] = ()
    allow_private: bool = False
    attempts: int = 5
    timeout_s: float = 15.0
    pause_s: Callable[[float], None] = field(default=time.sleep, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.address.scheme != "https" and not self.allow_private:
            raise UsageError(
                f"{self.shown} would be sent in the clear", "use https://…; allow_private=True is for tests"
            )
        if not self.secrets or self.attempts < 1:
            raise UsageError("a webhook needs a secret to be signed with, and one attempt at least", "secret='whsec_…'")
        for secret in self.secrets:
            _key(secret)

    @property
    def shown(self) -> str:
        return f"webhook {self.address.shown}"

    def open(self) -> WebhookSession:
        return WebhookSession(self)

    def check(self) -> None:
        self.address.resolved()


def _key(secret: str) -> bytes:
    """``${NAME}`` is read from the environment; the secret itself never shows in an error."""
    try:
        key = base64.b64decode(Address(secret).resolved().removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) < SECRET_BYTES_MIN:
        shown = secret if ENVIRONMENT.fullmatch(secret) else "the secret"
        raise UsageError(f"{shown} is no secret of a webhook", "whsec_ and base64 of 24 to 64 random bytes")
    return key


def signature(secrets: tuple[str, ...], message_id: str, timestamp_s: int, body: bytes) -> str:
    signed = f"{message_id}.{timestamp_s}.".encode() + body
    marks = [hmac.new(_key(each), signed, hashlib.sha256).digest() for each in secrets]
    return " ".join("v1," + base64.b64encode(mark).decode() for mark in marks)


def message_ids(fence: Fence | None, bodies: list[str], seen: Counter[str]) -> list[str]:
    """From the query, the batch and the row itself, so that their order does not matter; equal rows are counted."""
    names = []
    for body in bodies:
        seen[body] += 1
        parts = ("", "") if fence is None else (fence.query, str(fence.batch_id))
        mark = hashlib.sha256("\0".join((*parts, str(seen[body]), body)).encode()).hexdigest()
        names.append(f"msg_{mark[:32]}")
    return names


class WebhookSession(Session):
    def __init__(self, target: WebhookTarget) -> None:
        self._target = target
        self._http: HttpConnection | None = None
        parts = target.address.parts()
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    def write(self, delivery: Delivery) -> Outcome:
        seen: Counter[str] = Counter()
        for each in delivery.counted():
            chunk = complete(each, delivery.letters)
            gone = chunk.deleted.to_pylist() if chunk.deleted is not None else None
            bodies = [
                dumps({"type": "row.deleted" if gone and gone[row] else "row.changed", "data": document})
                for row, document in enumerate(objects(chunk.rows))
            ]
            for row, (name, body) in enumerate(zip(message_ids(delivery.fence, bodies, seen), bodies, strict=True)):
                refused = self._post(name, body.encode())
                if refused:
                    delivery.letters.refuse(chunk.slice(row, 1), refused)
        delivery.done.refused = delivery.letters.deliver()
        return delivery.done

    def _post(self, message_id: str, body: bytes) -> str:
        """Until it is taken; what the receiver says it will never take is given back as the reason."""
        problem: Unavailable | None = None
        for attempt in range(self._target.attempts):
            if problem is not None:
                self._target.pause_s(_pause_s(attempt))
            try:
                answer = self._once(message_id, body)
            except Unavailable as error:
                self.close()
                problem = error
                continue
            if answer.status < 300:
                return ""
            if answer.status == GONE:
                raise Refused(f"{self._target.shown} answered 410: it wants no more of these. Remove the pipeline")
            text = f"{self._target.shown} answered {answer.status}"
            if answer.status not in TRY_AGAIN:
                return text
            problem = Unavailable(text)
            self._wait_as_told(answer)
        assert problem is not None, "a loop without a problem has returned"
        raise Unavailable(f"{problem}, {self._target.attempts} times in a row")

    def _wait_as_told(self, answer: Answer) -> None:
        told = answer.headers.get("retry-after", "")
        if told.isdecimal():
            self._target.pause_s(min(float(told), RETRY_AFTER_S_MAX))

    def _once(self, message_id: str, body: bytes) -> Answer:
        target = self._target
        if self._http is None:
            self._http = HttpConnection(target.address, allow_private=target.allow_private, timeout_s=target.timeout_s)
        now_s = int(time.time())
        headers = {
            "Content-Type": "application/json",
            "webhook-id": message_id,
            "webhook-timestamp": str(now_s),
            "webhook-signature": signature(target.secrets, message_id, now_s, body),
        }
        return self._http.request("POST", self._path, body, headers)


def _pause_s(attempt: int) -> float:
    """About 0.5, 1, 2, 4 … seconds, never quite the same, so that many senders do not come back together."""
    return 0.5 * 2.0 ** min(attempt - 1, 6) * random.uniform(0.75, 1.25)
