"""Says that a broker is away: once when it does not answer, and once when it does again.

What reads from a broker or writes to it waits for it with retries of its own, which may take minutes and say nothing.
A ``BrokerWatch`` looks at the broker every second, on a thread, with a connection and short limits of its own. An error
that the broker itself answers with is no silence.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Self

from headrace.client.client import Client, ClientOptions
from headrace.client.connection import BrokerUnreachable, ConnectionLost, RequestTimedOut
from headrace.errors import HeadraceError

__all__ = ["BrokerWatch"]

LOOK_S = 1.0
ANSWER_MS_MAX = 3_000
"""A broker that takes longer for a small request is as good as away."""
RETRY_MS_MAX = 1_500
STOP_S_MAX = 5.0

logger = logging.getLogger(__name__)


class BrokerWatch:
    """``look`` is what the broker is asked; by default which brokers there are."""

    def __init__(
        self,
        bootstrap: str,
        options: ClientOptions,
        say: Callable[[str], None],
        look: Callable[[Client], object] = Client.brokers,
    ) -> None:
        self._bootstrap = bootstrap
        self._options = replace(
            options,
            connect_timeout_ms=ANSWER_MS_MAX,
            request_timeout_ms=ANSWER_MS_MAX,
            retry_timeout_ms=RETRY_MS_MAX,
            first_contact_timeout_ms=0,
        )
        self._say = say
        self._look = look
        self.is_away = False
        """Whether that was said."""
        self._heard_s = time.time()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-broker-watch", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_S_MAX)

    def _run(self) -> None:
        with Client(self._bootstrap, self._options) as client:
            while not self._stopped.is_set():
                try:
                    self._ask(client)
                except Exception:  # a look tells something to people; it must not end because of one answer
                    logger.exception("the broker could not be looked at; it is tried again")
                self._stopped.wait(LOOK_S)

    def _ask(self, client: Client) -> None:
        try:
            self._look(client)
        except (BrokerUnreachable, ConnectionLost, RequestTimedOut) as error:
            self._missed(error)
            return
        except HeadraceError as error:
            logger.debug("%s answered: %s", self._bootstrap, error)
        self._heard()

    def _missed(self, error: BrokerUnreachable | ConnectionLost | RequestTimedOut) -> None:
        if self.is_away or self._stopped.is_set():
            return
        self.is_away = True
        what = "does not answer" if isinstance(error, RequestTimedOut) else "is not reachable"
        since = datetime.fromtimestamp(self._heard_s)
        self._say(f"broker {error.address} {what} since {since:%H:%M:%S}; waiting")

    def _heard(self) -> None:
        now_s = time.time()
        if self.is_away:
            self.is_away = False
            self._say(f"broker {self._bootstrap} is back after {now_s - self._heard_s:.0f} s")
        self._heard_s = now_s
