"""E-mail: each row is a message, at least once, through an SMTP server.

The ``Message-ID`` is the same whenever the same row of the same batch is sent; mail programs and servers know a
repeated message by it. Subject and body are templates of ``string.Template``: ``$name`` is the column, and nothing in a
template or a value can reach anything else. A row has no say in who gets the message, unless the user names a column
for that.
"""

from __future__ import annotations

import smtplib
import ssl
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from email.errors import HeaderParseError
from email.headerregistry import Address as MailAddress
from email.message import EmailMessage
from email.utils import parseaddr
from string import Template
from typing import Any

from headrace.address import Address
from headrace.errors import UsageError
from headrace.targets.documents import dumps, objects
from headrace.targets.target import Delivery, Outcome, RowRefused, Session, Target, Unavailable, complete
from headrace.targets.webhook import message_ids

__all__ = ["EmailTarget"]

TIMEOUT_S = 30.0
PORTS = {"smtp": 587, "smtps": 465}
SUBJECT_CHARACTERS_MAX = 200
FOR_GOOD = 500


@dataclass(frozen=True, slots=True)
class EmailTarget(Target):
    """``to`` are addresses; ``to_column`` names a column with one instead."""

    address: Address
    sender: str
    to: tuple[str, ...] = ()
    to_column: str | None = None
    subject: str = ""
    body: str = ""
    tls: bool = True
    key: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.address.must_be(PORTS, "mail server", "smtp://USER@HOST:587, smtps://USER@HOST:465")
        if bool(self.to) == bool(self.to_column):
            raise UsageError("say who gets the messages", "to=['anna@example.com'], or to_column='email'")
        for each in (self.sender, *self.to):
            _checked(each)

    @property
    def shown(self) -> str:
        return f"mail through {self.address.shown}"

    def open(self) -> EmailSession:
        return EmailSession(self)

    def check(self) -> None:
        self.address.resolved()


def _checked(text: str) -> str:
    """An address and nothing else: no second one, no line break that would begin a header."""
    name, address = parseaddr(text)
    try:
        if any(letter in text for letter in "\r\n\0,") or "@" not in address:
            raise ValueError(text)
        MailAddress(display_name=name, addr_spec=address)
    except (ValueError, HeaderParseError, IndexError) as error:
        raise UsageError(f"{text!r} is no address of mail") from error
    return text


class EmailSession(Session):
    def __init__(self, target: EmailTarget) -> None:
        self._target = target
        self._server: smtplib.SMTP | None = None

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def write(self, delivery: Delivery) -> Outcome:
        self._check_columns(delivery.schema.names)
        seen: Counter[str] = Counter()
        for each in delivery.counted():
            chunk = complete(each, delivery.letters)
            documents = objects(chunk.rows)
            names = message_ids(delivery.fence, [dumps(each) for each in documents], seen)
            for row, (name, document) in enumerate(zip(names, documents, strict=True)):
                try:
                    self._send(self._message(name, document))
                except RowRefused as error:
                    delivery.letters.refuse(chunk.slice(row, 1), str(error))
        delivery.done.refused = delivery.letters.deliver()
        return delivery.done

    def _check_columns(self, known: Sequence[str]) -> None:
        """A mistyped name would be sent as it stands."""
        target = self._target
        wanted = [*Template(target.subject).get_identifiers(), *Template(target.body).get_identifiers()]
        missing = [each for each in (*wanted, *filter(None, [target.to_column])) if each not in known]
        if missing:
            raise UsageError(
                f"{target.shown}: there is no column {missing[0]!r}",
                f"there are: {', '.join(known)}; $$ in a subject or body is a plain $",
            )

    def _message(self, name: str, document: dict[str, Any]) -> EmailMessage:
        target = self._target
        words = {key: "" if value is None else str(value) for key, value in document.items()}
        message = EmailMessage()
        message["From"] = target.sender
        message["To"] = ", ".join(target.to) or self._recipient(words)
        subject = " ".join(Template(target.subject).safe_substitute(words).split())
        message["Subject"] = subject[:SUBJECT_CHARACTERS_MAX]
        message["Message-ID"] = f"<{name}@{parseaddr(target.sender)[1].rpartition('@')[2]}>"
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(Template(target.body).safe_substitute(words))
        return message

    def _recipient(self, words: dict[str, str]) -> str:
        try:
            return _checked(words.get(self._target.to_column or "", ""))
        except UsageError as error:
            raise RowRefused(error.message) from error

    def _send(self, message: EmailMessage) -> None:
        """What the server refuses for good (5xx) is the row's fault; what it refuses for a while is tried again."""
        try:
            if self._server is None:
                self._server = self._connect()
            self._server.send_message(message)
        except smtplib.SMTPAuthenticationError as error:
            wrong = UsageError if error.smtp_code >= FOR_GOOD else Unavailable
            raise wrong(f"{self._target.shown} does not let us in: {error.smtp_code}") from error
        except smtplib.SMTPRecipientsRefused as error:
            if all(code >= FOR_GOOD for code, _ in error.recipients.values()):
                raise RowRefused(f"nobody may get it: {error}") from error
            raise Unavailable(f"{self._target.shown} asks to come again: {error}") from error
        except (smtplib.SMTPDataError, smtplib.SMTPSenderRefused) as error:
            if error.smtp_code >= FOR_GOOD:
                raise RowRefused(f"it is refused: {error}") from error
            raise Unavailable(f"{self._target.shown} asks to come again: {error}") from error
        except (OSError, smtplib.SMTPException) as error:
            self.close()
            raise Unavailable(f"{self._target.shown} is away: {error}") from error

    def _connect(self) -> smtplib.SMTP:
        parts = self._target.address.parts()
        port, host = parts.port or PORTS[parts.scheme], parts.hostname or "127.0.0.1"
        if parts.scheme == "smtps":
            server: smtplib.SMTP = smtplib.SMTP_SSL(host, port, timeout=TIMEOUT_S, context=ssl.create_default_context())
        else:
            server = smtplib.SMTP(host, port, timeout=TIMEOUT_S)
            if self._target.tls:
                server.starttls(context=ssl.create_default_context())
        user = self._target.address.user()
        if user is not None:
            server.login(user, self._target.address.password() or "")
        return server
