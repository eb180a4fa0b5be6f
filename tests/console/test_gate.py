"""Who may use the console, and from where."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import urllib.request
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from tests.console.conftest import COMMAND, RunningConsole, console_server
from tests.servers.headrace import headrace_server
from tests.servers.process import RunningServer
from tests.waiting import eventually


def raw(console: RunningConsole, head: str) -> bytes:
    """What the console answers to these very lines."""
    address = urlsplit(console.base)
    assert address.hostname is not None
    assert address.port is not None
    with socket.create_connection((address.hostname, address.port), 30) as connection:
        answer = b""
        with suppress(ConnectionError):
            connection.sendall(head.replace("\n", "\r\n").encode())
            while part := connection.recv(65536):
                answer += part
    return answer


def bearer(console: RunningConsole, **more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {console.token}", **more}


def test_nothing_is_answered_without_the_token(console: RunningConsole) -> None:
    for path in ("api/overview", "api/session", "live/overview", "api/topic?name=x"):
        assert console.refusal(path, headers={})[0] == 401
    assert console.refusal("api/session", headers={"Authorization": "Bearer wrong"})[0] == 401
    assert console.refusal("?token=wrong", headers={})[0] == 401
    assert console.refusal("", headers={"Cookie": "headrace_console_0=x"})[0] == 401


def test_the_address_with_the_token_gives_a_cookie_and_leads_to_the_one_without(console: RunningConsole) -> None:
    answer = raw(console, f"GET /?token={console.token} HTTP/1.1\nHost: localhost\nConnection: close\n\n").decode()
    head = answer.lower()
    assert head.startswith("http/1.1 303")
    assert "location: /\r\n" in head
    assert "httponly" in head
    assert "samesite=strict" in head
    assert console.token not in answer


def test_a_name_that_is_not_ours_is_refused_with_the_token_too(console: RunningConsole) -> None:
    """DNS rebinding: a page of a stranger whose name has come to mean this machine."""
    status, words = console.refusal("api/session", headers=bearer(console, Host="evil.example"))
    assert (status, "evil.example" in words) == (403, True)
    assert console.ask("api/session", headers=bearer(console, Host="localhost:9999"))["read_only"] is False


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "http://["])
def test_another_origin_is_refused(console: RunningConsole, origin: str) -> None:
    headers = bearer(console, Origin=origin)
    assert console.refusal("api/topic/create", data=b'{"name": "x"}', headers=headers)[0] == 403
    assert console.refusal("api/session", headers=headers)[0] == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_cannot_load_what_is_ours(console: RunningConsole, site: str) -> None:
    """Another port of this machine is the same site, and gets our cookie sent."""
    headers = bearer(console, **{"Sec-Fetch-Site": site})
    assert console.refusal("api/session", headers=headers)[0] == 403
    assert console.refusal("static/app.js", headers=headers)[0] == 403


def test_a_change_with_a_cookie_alone_is_refused(console: RunningConsole) -> None:
    """A form of another site would send cookies if the browser let it, but no token and not our Origin."""
    answer = raw(console, f"GET /?token={console.token} HTTP/1.1\nHost: localhost\nConnection: close\n\n").decode()
    cookie = next(line for line in answer.splitlines() if line.lower().startswith("set-cookie:")).split(": ")[1]
    headers = {"Cookie": cookie.partition(";")[0]}
    assert console.ask("api/session", headers=headers)["read_only"] is False
    assert console.refusal("api/topic/create", data=b'{"name": "x"}', headers=headers)[0] == 403
    own = {**headers, "Origin": console.base.rstrip("/")}
    assert console.refusal("api/topic/create", data=b"{}", headers=own) == (400, "a topic needs a name")


def test_every_answer_carries_a_policy_without_inline_scripts(console: RunningConsole) -> None:
    for path in ("", "static/app.js", "api/session"):
        request = urllib.request.Request(console.base + path, headers=bearer(console))
        with urllib.request.urlopen(request, timeout=60) as answer:
            policy = answer.headers["Content-Security-Policy"]
            assert "script-src 'self';" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert "require-trusted-types-for 'script'" in policy


def test_a_read_only_console_shows_and_changes_nothing(console_broker: RunningServer) -> None:
    with console_server(console_broker.bootstrap, "--read-only") as console:
        assert console.get("session")["read_only"] is True
        for action in ("topic/create", "topic/delete", "topic/alter", "topic/grow", "topic/empty", "produce"):
            data = b'{"name": "x", "topic": "x", "confirm": "x"}'
            assert console.refusal(f"api/{action}", data=data) == (403, "this console is read-only")


def test_a_request_that_is_too_large_is_refused(console: RunningConsole) -> None:
    data = b'{"name": "' + b"x" * (5 << 20) + b'"}'
    status, words = console.refusal("api/topic/create", data=data)
    assert status == 400
    assert "bytes" in words


def test_a_header_that_does_not_end_is_given_up(console: RunningConsole) -> None:
    """The connection is closed by the console: nobody holds one with half a header."""
    assert raw(console, "GET / HTTP/1.1\nHost: localhost\nX-Slow: ") == b""


def test_a_header_without_bounds_is_refused(console: RunningConsole) -> None:
    answer = raw(console, "GET / HTTP/1.1\nHost: localhost\nX-Large: " + "x" * 2_000_000)
    assert b"200 OK" not in answer


def test_a_public_address_is_refused_unless_asked_for() -> None:
    command = [str(COMMAND), "console", "--http", "0.0.0.0:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "--insecure" in done.stderr


def test_up_serves_the_console_and_starts_it_again_when_it_dies() -> None:
    with headrace_server(arguments=["--http", "127.0.0.1:0"]) as server:
        line = next(line for line in server.log.read_text().splitlines() if line.startswith("console "))
        console = RunningConsole(line.split()[1], server.bootstrap)
        assert eventually(lambda: console.get("session"))["bootstrap"] == server.bootstrap
        (child,) = psutil.Process(server.pid).children()
        os.kill(child.pid, signal.SIGKILL)
        eventually(lambda: "the console ended with -9" in server.log.read_text())
        # The node still listens, so this waits for the new child.
        assert console.get("session")["bootstrap"] == server.bootstrap
        (again,) = psutil.Process(server.pid).children()
        assert again.pid != child.pid
    eventually(lambda: not psutil.pid_exists(again.pid))


def test_a_token_from_a_file_opens_the_console_and_is_printed_nowhere(tmp_path: Path) -> None:
    token = "a-token-that-the-user-wrote-down"
    (tmp_path / "token").write_text(f"{token}\n")
    settings = {"http.token.file": str(tmp_path / "token")}
    with headrace_server(settings=settings, arguments=["--http", "127.0.0.1:0"]) as server:
        line = next(line for line in server.log.read_text().splitlines() if line.startswith("console "))
        console = RunningConsole(f"{line.split()[1]}?token={token}", server.bootstrap)
        assert eventually(lambda: console.get("session"))["bootstrap"] == server.bootstrap
        assert token not in server.log.read_text()


def test_settings_of_the_client_come_from_a_file_and_are_used(console_broker: RunningServer, tmp_path: Path) -> None:
    """The broker has no listener with a login: one that logs in is refused, and the console says so."""
    plain, login, wrong = (tmp_path / name for name in ("plain", "login", "wrong"))
    plain.write_text("# a comment\n\nsecurity.protocol = PLAINTEXT\n")
    login.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=u\nsasl.password=secret\n")
    wrong.write_text("sasl.pasword=secret\n")
    with console_server(console_broker.bootstrap, "--client-config", str(plain)) as console:
        eventually(lambda: console.get("overview"), lambda seen: seen["sampled"] and not seen["problem"])
    with console_server(console_broker.bootstrap, "--client-config", str(login)) as console:
        seen = eventually(lambda: console.get("overview")["problem"], lambda problem: "first answer" not in problem)
        assert "secret" not in seen
    command = [str(COMMAND), "console", "--http", "127.0.0.1:0", "--client-config", str(wrong)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "sasl.pasword" in done.stderr
    assert "secret" not in done.stderr
