"""Webhooks and e-mail: signed, repeated with the same id, kept from private addresses, refused rows set aside."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from email import message_from_bytes
from email.message import Message
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from aiosmtpd.controller import Controller

from headrace.errors import Refused, UsageError
from headrace.spark import sinks
from headrace.spark.sinks.following import TargetSink
from headrace.targets import http
from headrace.targets.target import Unavailable
from headrace.targets.webhook import WebhookTarget
from tests.sinks.world import Refusals, deliver, fence
from tests.waiting import PATIENCE_S

KEY = bytes(range(32))
SECRET = "whsec_" + base64.b64encode(KEY).decode()


class Receiver:
    """A web server that keeps what it got, and answers with the statuses it was given, 204 when there are none."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        self.headers: dict[str, str] = {}
        self.url = ""

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.got]

    @property
    def names(self) -> list[str]:
        return [json.loads(body)["data"]["name"] for _, body in self.got]


@contextmanager
def receiver() -> Iterator[Receiver]:
    kept = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kept.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(kept.statuses.pop(0) if kept.statuses else 204)
            for name, value in {**kept.headers, "Content-Length": "0"}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 as the base class has it
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    kept.url = f"http://127.0.0.1:{server.server_address[1]}/hook?from=headrace"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield kept
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with receiver() as running:
        yield running


def target_of(hook: Receiver, pauses: list[float] | None = None, **options: Any) -> WebhookTarget:
    """Pauses are noted and not taken."""
    sink = sinks.webhook(hook.url, **{"secret": SECRET, "allow_private": True, **options})
    assert isinstance(sink, TargetSink)
    assert isinstance(sink.target, WebhookTarget)
    return replace(sink.target, pause_s=(pauses if pauses is not None else []).append)


def test_each_row_is_a_request_with_a_signature_that_its_receiver_can_check(hook: Receiver) -> None:
    deliver(target_of(hook), [(1, "anna"), ("-", 2, "bert")], at=fence(0))
    assert [json.loads(body)["type"] for _, body in hook.got] == ["row.changed", "row.deleted"]
    assert hook.names == ["anna", "bert"]
    for headers, body in hook.got:
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        mark = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
        assert headers["webhook-signature"] == f"v1,{mark}"


def test_two_secrets_sign_side_by_side_while_one_replaces_the_other(hook: Receiver) -> None:
    other = "whsec_" + base64.b64encode(KEY[::-1]).decode()
    deliver(target_of(hook, secret=[SECRET, other]), [(1, "anna")], at=fence(0))
    ((headers, _),) = hook.got
    first, second = headers["webhook-signature"].split(" ")
    assert first.startswith("v1,")
    assert second.startswith("v1,")
    assert first != second


def test_a_repeated_batch_has_the_same_ids_in_whatever_order_and_another_batch_has_others(hook: Receiver) -> None:
    rows = [(1, "a"), (2, "b"), (2, "b")]
    deliver(target_of(hook), rows, at=fence(0))
    first = hook.ids
    hook.got.clear()
    deliver(target_of(hook), rows[::-1], at=fence(0))
    assert sorted(hook.ids) == sorted(first)
    assert len(set(first)) == 3
    hook.got.clear()
    deliver(target_of(hook), rows, at=fence(1))
    assert not set(hook.ids) & set(first)


def test_a_receiver_that_is_busy_gets_the_same_request_again_after_growing_pauses(hook: Receiver) -> None:
    hook.statuses = [503, 429, 500]
    pauses: list[float] = []
    deliver(target_of(hook, pauses), [(1, "anna")], at=fence(0))
    assert (len(hook.got), len(set(hook.ids))) == (4, 1)
    assert len(pauses) == 3
    assert pauses[0] < pauses[1] < pauses[2]


def test_a_receiver_that_says_when_to_come_again_is_obeyed(hook: Receiver) -> None:
    hook.statuses, hook.headers = [429], {"Retry-After": "7"}
    pauses: list[float] = []
    deliver(target_of(hook, pauses), [(1, "anna")], at=fence(0))
    assert 7.0 in pauses


def test_a_receiver_that_stays_busy_ends_the_batch_which_comes_again(hook: Receiver) -> None:
    hook.statuses = [503] * 3
    with pytest.raises(Unavailable, match="answered 503, 3 times in a row"):
        deliver(target_of(hook, attempts=3), [(1, "anna")], at=fence(0))
    deliver(target_of(hook), [(1, "anna")], at=fence(0))
    assert len(set(hook.ids)) == 1


def test_a_row_that_the_receiver_refuses_is_set_aside_and_the_others_sent(hook: Receiver) -> None:
    hook.statuses = [204, 422]
    refusals = Refusals()
    deliver(target_of(hook), [(1, "a"), (2, "b"), (3, "c")], at=fence(0), refusals=refusals)
    assert [(row["id"], reason[-12:]) for row, reason in refusals.rows] == [(2, "answered 422")]
    assert hook.names == ["a", "b", "c"]


def test_a_receiver_that_is_gone_for_good_ends_the_pipeline(hook: Receiver) -> None:
    hook.statuses = [410]
    with pytest.raises(Refused, match="wants no more of these"):
        deliver(target_of(hook), [(1, "a")], at=fence(0))


def test_a_redirect_is_not_followed(hook: Receiver) -> None:
    with receiver() as inner:
        hook.statuses, hook.headers = [307], {"Location": inner.url}
        refusals = Refusals()
        deliver(target_of(hook), [(1, "a")], at=fence(0), refusals=refusals)
        assert inner.got == []
    assert "answered 307" in refusals.rows[0][1]


def resolving_to(*addresses: str) -> Any:
    def look_up(host: str, port: int, **more: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in addresses]

    return look_up


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.0.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "::1",
        "fd00::1",
        "::ffff:127.0.0.1",
        "2002:7f00:1::",
        "0.0.0.0",
        "224.0.0.1",
    ],
)
def test_a_name_that_leads_to_a_private_address_is_refused(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(http.socket, "getaddrinfo", resolving_to("93.184.216.34", address))
    sink = sinks.webhook("https://hooks.example.com/x", secret=SECRET)
    assert isinstance(sink, TargetSink)
    with pytest.raises(Refused, match="no public address"):
        deliver(sink.target, [(1, "a")], at=fence(0))


def test_the_address_that_was_judged_is_the_one_that_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that changes its address after it was looked at gets nowhere."""
    connected: list[Any] = []

    def connect(address: Any, *rest: Any) -> Any:
        connected.append(address)
        raise ConnectionRefusedError("as far as the test goes")

    monkeypatch.setattr(http.socket, "getaddrinfo", resolving_to("93.184.216.34"))
    monkeypatch.setattr(http.socket, "create_connection", connect)
    sink = sinks.webhook("https://hooks.example.com/x", secret=SECRET, attempts=1)
    assert isinstance(sink, TargetSink)
    with pytest.raises(Unavailable, match="as far as the test goes"):
        deliver(sink.target, [(1, "a")], at=fence(0))
    assert connected == [("93.184.216.34", 443)]


def test_a_webhook_in_the_clear_or_without_a_proper_secret_is_refused_without_showing_it() -> None:
    with pytest.raises(UsageError, match="in the clear"):
        sinks.webhook("http://example.com/x", secret=SECRET)
    with pytest.raises(UsageError, match="no secret of a webhook") as told:
        sinks.webhook("https://example.com/x", secret="whsec_dG9vc2hvcnQ=")
    assert "dG9v" not in str(told.value)


# ---- mail ----------------------------------------------------------------------------------------------------------


class Mailbox:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.refused: set[str] = set()

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        if address in self.refused:
            return "550 no such mailbox"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        if b"spam" in envelope.content:
            return "554 no spam here"
        self.messages.append(message_from_bytes(envelope.content, policy=default))
        return "250 taken"


class OnAnyPort(Controller):
    """Listens where there is room; the base class knows only the port that was asked for."""

    def _trigger_server(self) -> None:
        assert self.server is not None
        self.port = self.server.sockets[0].getsockname()[1]
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE_S) as first:
            first.recv(1024)


@pytest.fixture
def mail() -> Iterator[tuple[Mailbox, str]]:
    box = Mailbox()
    controller = OnAnyPort(box, hostname="127.0.0.1", port=0, ready_timeout=PATIENCE_S)
    controller.start()
    try:
        yield box, f"smtp://127.0.0.1:{controller.port}"
    finally:
        controller.stop()


def mail_target(url: str, **options: Any) -> Any:
    texts = {"sender": "Shop <shop@example.com>", "subject": "Order $id", "body": "Dear $name, $$5 or $5"}
    sink = sinks.email(url, **{**texts, "tls": False, **options})
    assert isinstance(sink, TargetSink)
    return sink.target


def test_each_row_is_a_message_from_a_template_and_a_repetition_has_the_same_id(mail: tuple[Mailbox, str]) -> None:
    box, url = mail
    target = mail_target(url, to="desk@example.com")
    for _ in range(2):
        deliver(target, [(1, "Anna ☃")], at=fence(0))
    first, again = box.messages
    assert (first["Subject"], first["To"], first["From"]) == ("Order 1", "desk@example.com", "Shop <shop@example.com>")
    assert first.get_payload(decode=True).decode().strip() == "Dear Anna ☃, $5 or $5"  # type: ignore[union-attr]
    assert first["Message-ID"] == again["Message-ID"]


@pytest.mark.parametrize(
    "wrong", [{"subject": "Order $idd"}, {"body": "Dear ${nmae}"}, {"to": (), "to_column": "emial"}]
)
def test_a_mistyped_column_is_refused_and_not_sent_as_it_stands(
    mail: tuple[Mailbox, str], wrong: dict[str, Any]
) -> None:
    box, url = mail
    with pytest.raises(UsageError, match=r"there is no column '(idd|nmae|emial)'.*there are: id, name"):
        deliver(mail_target(url, **{"to": "desk@example.com", **wrong}), [(1, "Anna")], at=fence(0))
    assert box.messages == []


def test_a_value_cannot_add_a_header_or_a_recipient(mail: tuple[Mailbox, str]) -> None:
    box, url = mail
    deliver(mail_target(url, to="desk@example.com", subject="$name"), [(1, "x\r\nBcc: eve@example.com")], at=fence(0))
    (message,) = box.messages
    assert (message["Subject"], message["Bcc"]) == ("x Bcc: eve@example.com", None)
    refusals = Refusals()
    rows = [(1, "a@example.com, b@example.com"), (2, "c@example.com\nBcc: eve@example.com"), (3, "anna@example.com")]
    deliver(mail_target(url, to_column="name"), rows, at=fence(1), refusals=refusals)
    assert [message["To"] for message in box.messages[1:]] == ["anna@example.com"]
    assert [row["id"] for row, _ in refusals.rows] == [1, 2]


def test_a_recipient_or_a_message_that_the_server_refuses_is_set_aside(mail: tuple[Mailbox, str]) -> None:
    box, url = mail
    box.refused.add("gone@example.com")
    refusals = Refusals()
    rows = [(1, "gone@example.com"), (2, "spam@example.com"), (3, "anna@example.com")]
    deliver(mail_target(url, to_column="name"), rows, at=fence(0), refusals=refusals)
    assert [message["To"] for message in box.messages] == ["anna@example.com"]
    assert "550" in refusals.rows[0][1]
    assert "554" in refusals.rows[1][1]


def test_a_mail_server_that_is_away_is_told_without_the_password() -> None:
    with pytest.raises(Unavailable, match="is away") as told:
        deliver(mail_target("smtp://me:secret@127.0.0.1:1", to="a@example.com"), [(1, "x")], at=fence(0))
    assert "secret" not in str(told.value)
