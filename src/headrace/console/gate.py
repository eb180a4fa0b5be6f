"""Who may use the console: the checks that every request passes before anything else looks at it.

* **Host**: a name that a stranger's DNS can point at this machine is not ours (DNS rebinding). Ours are addresses,
  ``localhost``, the name of this machine and the names of the setting ``http.hosts``.
* **Origin**: what changes something, and every stream, comes from our own pages or from a program, which has no Origin.
* **The token**: printed at the start. The address with the token gives the browser a cookie that scripts cannot read
  and other sites cannot send, and leads on to the address without it. A program sends it as ``Authorization: Bearer``.

Every answer carries a policy that lets no inline script run, no page frame ours, and no text become HTML.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.console.problems import Forbidden, problem_of

__all__ = ["Gate", "cookie_name"]

SAFE_METHODS = frozenset({"GET", "HEAD"})

POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

SIGN_IN = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>headrace</title><link rel="stylesheet" href="/static/style.css">
<script type="module" src="/static/sign-in.js"></script></head>
<body class="sign-in"><main><h1>headrace</h1>{trouble}
<p>Open the address that <code>headrace</code> printed when it started, or paste its token.</p>
<form action="/" method="get"><input name="token" type="password" aria-label="Token" autofocus>
<button class="button primary">Open</button></form></main></body></html>
"""
WRONG = '<p class="notice error" role="alert">This token is not that of this console. It is new at every start.</p>'


def _sign_in_page(trouble: str = "") -> Response:
    return Response(SIGN_IN.format(trouble=trouble), 401, media_type="text/html")


def cookie_name(port: int) -> str:
    """Cookies do not know ports: two consoles on one machine need two names."""
    return f"headrace_console_{port}"


class Gate:
    """Middleware; see the module."""

    def __init__(self, app: ASGIApp, *, token: str, hosts: Iterable[str] = ()) -> None:
        self._app = app
        self._token = token.encode()
        self._cookie = hashlib.sha256(b"headrace console " + self._token).hexdigest()
        self._hosts = {"localhost", socket.gethostname().lower(), *(host.lower() for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                # A module of the last version beside one of this would be worse than asking whether it has changed.
                headers.setdefault("Cache-Control", "no-cache")
            await send(message)

        request = Request(scope)
        answer = self._answer(request)
        await (answer or self._app)(scope, receive, send_with_policy)

    def _answer(self, request: Request) -> Response | None:
        """What is answered instead of the console's own answer; None lets the request pass."""
        try:
            self._check_host(request)
            self._check_origin(request)
        except Forbidden as error:
            status, problem = problem_of(error)
            return JSONResponse(problem, status)
        if request.url.path.startswith("/static/"):  # the same for everybody who has the package
            return None
        if "token" in request.query_params and request.url.path == "/":
            return self._sign_in(request)
        if self._is_known(request):
            return None
        if request.url.path == "/":
            return _sign_in_page()
        return JSONResponse({"error": "no valid token", "hint": "open the address that headrace printed"}, 401)

    def _check_host(self, request: Request) -> None:
        host = _host_of(f"//{request.headers.get('host', '')}")
        if host not in self._hosts and not _is_address(host):
            raise Forbidden(f"{host!r} is not a name of this console", f"set http.hosts={host} if it should be")

    def _check_origin(self, request: Request) -> None:
        origin = request.headers.get("origin")
        if origin is not None and _place_of(origin) != request.headers.get("host"):
            raise Forbidden(f"requests from {origin} are refused")
        if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and (
            request.method not in SAFE_METHODS or request.url.path != "/"
        ):
            raise Forbidden("requests from other sites are refused")
        if origin is None and request.method not in SAFE_METHODS and not self._has_bearer(request):
            raise Forbidden("a request that changes something needs an Origin, or the token as a bearer")

    def _sign_in(self, request: Request) -> Response:
        if not hmac.compare_digest(request.query_params["token"].encode(), self._token):
            return _sign_in_page(WRONG)
        answer = RedirectResponse("/", 303)
        name = cookie_name(_port_of(request))
        answer.set_cookie(name, self._cookie, path="/", httponly=True, samesite="strict", max_age=30 * 86_400)
        return answer

    def _is_known(self, request: Request) -> bool:
        given = request.cookies.get(cookie_name(_port_of(request)), "")
        return hmac.compare_digest(given.encode(), self._cookie.encode()) or self._has_bearer(request)

    def _has_bearer(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token)


def _port_of(request: Request) -> int:
    server = request.scope.get("server")
    return server[1] if server and server[1] else 0


def _place_of(url: str) -> str | None:
    """Host and port as they are written; None: that is no address."""
    try:
        return urlsplit(url).netloc
    except ValueError:
        return None


def _host_of(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
