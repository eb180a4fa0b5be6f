"""The console as an application: the views, actions and streams of its pages, behind the gate."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import headrace
from headrace.client import Client, ClientOptions
from headrace.console.gate import Gate
from headrace.console.history import History
from headrace.console.limits import BODY_BYTES_MAX, BODY_S, HEARTBEAT_S, LIVE_MAX
from headrace.console.page import Action, Ask, Page, View
from headrace.console.pool import CLIENT_OPTIONS, ClientPool
from headrace.console.problems import BadRequest, Busy, ReadOnly, problem_of
from headrace.console.sampler import Sampler
from headrace.console.streams import Streams, event_text, json_text
from headrace.console.watch import Watch

__all__ = ["Console", "application"]

STATIC = Path(__file__).with_name("static")


class Console:
    """What the pages share: clients, what was sampled, the streams that are open."""

    def __init__(self, bootstrap: str, *, read_only: bool = False, options: ClientOptions = CLIENT_OPTIONS) -> None:
        self.bootstrap = bootstrap
        self.read_only = read_only
        self.pool = ClientPool(bootstrap, options)
        self.history = History()
        self.sampler = Sampler(self.pool, self.history)
        self.watch = Watch(bootstrap, options)
        self.streams = Streams()

    def start(self) -> None:
        self.sampler.start()
        self.watch.start()

    def stop(self) -> None:
        self.streams.closing.set()

    def close(self) -> None:
        self.sampler.stop()
        self.watch.stop()
        self.pool.close()

    async def ask(self, function: Callable[[Ask], Any], parameters: dict[str, str], body: dict[str, Any]) -> Any:
        """Let a function of a page answer on a thread."""

        def work(client: Client) -> Any:
            return function(Ask(console=self, client=client, parameters=parameters, body=body))

        return await self.pool.run(work)


def application(console: Console, pages: Iterable[Page], *, token: str, hosts: Iterable[str] = ()) -> Gate:
    """Everything behind the gate. ``console`` is started and closed by the caller."""
    routes: list[Any] = [
        Route("/", _index),
        Route("/api/session", partial(_session, console)),
    ]
    for page in pages:
        routes += [Route(f"/api/{view.name}", partial(_once, console, view)) for view in page.views]
        routes += [Route(f"/live/{view.name}", partial(_live, console, view)) for view in page.views]
        routes += [
            Route(f"/api/{action.name}", partial(_act, console, action), methods=["POST"]) for action in page.actions
        ]
        routes += page.routes(console) if page.routes is not None else []
    routes.append(Mount("/static", StaticFiles(directory=STATIC)))
    app = Starlette(routes=routes, exception_handlers={Exception: _failed})
    return Gate(app, token=token, hosts=hosts)


async def _index(request: Request) -> Response:
    return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-store"})


async def _session(console: Console, request: Request) -> Response:
    """What the shell of the pages shows and decides by."""
    return JSONResponse(
        {
            "bootstrap": console.bootstrap,
            "read_only": console.read_only,
            "version": headrace.__version__,
            "problem": console.sampler.snapshot.problem,
        },
        headers={"Cache-Control": "no-store"},
    )


async def _once(console: Console, view: View, request: Request) -> Response:
    try:
        found = await console.ask(view.answer, dict(request.query_params), {})
    except Exception as error:
        return _problem(error)
    return Response(json_text(found), media_type="application/json", headers={"Cache-Control": "no-store"})


async def _live(console: Console, view: View, request: Request) -> Response:
    try:
        return console.streams.answer("live pages", LIVE_MAX, _frames(console, view, dict(request.query_params)))
    except Busy as error:
        return _problem(error)


async def _frames(console: Console, view: View, parameters: dict[str, str]) -> AsyncGenerator[bytes, None]:
    """What a view gives, whenever that has changed; a failure is shown, and the view asked again."""
    last = b""
    silent_s = 0.0
    while not console.streams.closing.is_set():
        try:
            frame = event_text("data", await console.ask(view.answer, parameters, {}))
        except Exception as error:
            frame = event_text("problem", problem_of(error)[1])
        if frame != last:
            yield frame
            last, silent_s = frame, 0.0
        elif silent_s >= HEARTBEAT_S:
            yield b": still here\n\n"
            silent_s = 0.0
        silent_s += view.every_s
        try:
            await asyncio.wait_for(console.streams.closing.wait(), view.every_s)
        except TimeoutError:
            pass


async def _act(console: Console, action: Action, request: Request) -> Response:
    try:
        if console.read_only:
            raise ReadOnly
        body = await asyncio.wait_for(_body(request), BODY_S)
        found = await console.ask(action.act, dict(request.query_params), body)
        console.sampler.look_again()
    except TimeoutError:
        return JSONResponse({"error": "the request did not arrive in time", "hint": ""}, 408)
    except ClientDisconnect:
        return Response(status_code=400)
    except Exception as error:
        return _problem(error)
    return JSONResponse(found if found is not None else {})


async def _body(request: Request) -> dict[str, Any]:
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > BODY_BYTES_MAX:
            raise BadRequest(f"a request may have {BODY_BYTES_MAX} bytes", "send less at a time")
    try:
        body = json.loads(bytes(data) or b"{}")
    except ValueError:
        raise BadRequest("the request is not JSON") from None
    if not isinstance(body, dict):
        raise BadRequest("the request is not a JSON object")
    return body


def _problem(error: Exception) -> Response:
    status, problem = problem_of(error)
    return JSONResponse(problem, status, headers={"Cache-Control": "no-store"})


async def _failed(request: Request, error: Exception) -> Response:
    return _problem(error)
