"""The planner's server: a page, its plans, and the reports of a folder.

/                      the page; /planner.css, /planner.js
/api/plan?r.width=…    a plan, by the parameters of the page's own address (fields.py)
/api/plot?…            lr and init std of a role along an axis, as pictures
/api/text/NAME?…       the plan as a file: torchtitan, megatron, deepspeed, hf, json, csv, python, reference, target
/api/presets           reference and target shapes to start from
/api/runs              the folder's sweeps and how far they are
/runs/NAME             the report of one sweep (a NAME may be a place: quickstart/runs)
"""

from __future__ import annotations

import base64
import hashlib
import socket
from collections.abc import Callable
from functools import lru_cache, partial
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import anyio.to_thread
import uvicorn
from anyio import CapacityLimiter
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from complete_mue.errors import MueError, RunError
from complete_mue.lab.report.html_page import SCRIPT
from complete_mue.rules import CATALOG, Rules
from complete_mue.web.answer import plan_answer, planned
from complete_mue.web.fields import PARAMETERS, FieldError
from complete_mue.web.guard import Guard
from complete_mue.web.plot import plot_answer
from complete_mue.web.runs import Runs
from complete_mue.web.texts import text_of
from complete_mue.web.timed import TimedProtocol

LARGEST_PLAN = 2**20
MOST_CONNECTIONS = 1_024
_STATIC = {
    "/": ("index.html", "text/html"),
    "/planner.css": ("planner.css", "text/css"),
    "/planner.js": ("planner.js", "text/javascript"),
    "/api/presets": ("presets.json", "application/json"),
}
_SCRIPT_HASH = base64.b64encode(hashlib.sha256(SCRIPT.encode("utf-8")).digest()).decode("ascii")
# A report brings its style and its one script in the page: that script may run, by its hash, and nothing else.
REPORT_POLICY = (
    f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_SCRIPT_HASH}'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)


def application(folder: Path, names: tuple[str, ...] = ()) -> ASGIApp:
    """The server as an ASGI application; ``names`` are host names it answers to beside localhost and addresses."""
    runs, plans, reads = Runs(folder), CapacityLimiter(4), CapacityLimiter(2)

    async def computed(request: Request) -> Response:
        """A mistake in the form is answered as well: with its text, and the field it is about."""
        what = request.scope["path"].removeprefix("/api/")
        query = request.scope["query_string"].decode("ascii", "replace")
        try:
            return await anyio.to_thread.run_sync(_computed, what, _parameters(query), limiter=plans)
        except MueError as problem:
            field = problem.field if problem.field in PARAMETERS else None
            return JSONResponse({"error": " ".join(str(problem).split()), "field": field})

    async def listing(request: Request) -> Response:
        return JSONResponse(await anyio.to_thread.run_sync(runs.listing, limiter=reads))

    async def report(request: Request) -> Response:
        page = await anyio.to_thread.run_sync(partial(runs.report, request.path_params["name"]), limiter=reads)
        return Response(page, media_type="text/html", headers={"content-security-policy": REPORT_POLICY})

    routes = [Route(path, _static(*entry), methods=["GET"]) for path, entry in _STATIC.items()]
    routes += [
        *(Route(f"/api/{what}", computed, methods=["GET"]) for what in ("plan", "plot", "text/{name}")),
        Route("/api/runs", listing, methods=["GET"]),
        Route("/runs/{name:path}", report, methods=["GET"]),
    ]
    handlers: dict[Any, Any] = {MueError: _refused, HTTPException: _unknown}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), names)


def serve(folder: Path, host: str, port: int, listening: Callable[[str], None] = lambda url: None) -> None:
    """Serve until interrupted; ``listening`` is called with the address once connections are accepted."""
    with bind(host, port) as listener:
        config = uvicorn.Config(
            application(folder, (host,)), http=TimedProtocol, ws="none", lifespan="off", log_level="critical",
            access_log=False, server_header=False, limit_concurrency=MOST_CONNECTIONS,
            h11_max_incomplete_event_size=16_384, timeout_keep_alive=5, timeout_graceful_shutdown=3,
            backlog=MOST_CONNECTIONS,
        )  # fmt: skip
        at = listener.getsockname()
        listening(f"http://{f'[{at[0]}]' if ':' in at[0] else at[0]}:{at[1]}/")
        uvicorn.Server(config).run(sockets=[listener])


def bind(host: str, port: int) -> socket.socket:
    """A listening socket on that address, or an error that says what to do."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(MOST_CONNECTIONS)
        except BaseException:
            listener.close()
            raise
    except (OSError, UnicodeError, OverflowError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise RunError(
            f"cannot listen on {host}, port {port} ({reason}); give another --port (0 takes a free one) or --host"
        ) from None
    return listener


def _static(name: str, kind: str) -> Callable[[Request], Any]:
    first = Rules().name  # the default is what the page begins with
    rules = "".join(f"<option>{escape(known)}</option>" for known in sorted(CATALOG, key=lambda name: name != first))
    text = files("complete_mue.web").joinpath("static", name).read_text(encoding="utf-8")
    content = text.replace("<!-- rule sets -->", rules).encode("utf-8")

    async def endpoint(request: Request) -> Response:
        return Response(content, media_type=kind)

    return endpoint


def _parameters(query: str) -> tuple[tuple[str, str], ...]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=64)
    except ValueError as problem:
        raise FieldError(f"an address that cannot be read ({problem}); give NAME=VALUE pairs joined by &") from None
    if len(dict(pairs)) < len(pairs):
        twice = next(name for i, (name, _) in enumerate(pairs) if name in [other for other, _ in pairs[:i]])
        raise FieldError(f"parameter {twice!r:.80} is given twice: give it once")
    return tuple(sorted(pairs))


@lru_cache(maxsize=256)
def _computed(what: str, parameters: tuple[tuple[str, str], ...]) -> Response:
    """A plan or a plot as JSON, or a text as a file."""
    given = dict(parameters)
    try:
        if what == "plan":
            made: Response = JSONResponse(plan_answer(given))
        elif what == "plot":
            made = JSONResponse(plot_answer(given, planned(given)[1]))
        else:
            file = text_of(what.removeprefix("text/"), *planned(given), folded=given.get("form") == "folded")
            saved = {"content-disposition": f'attachment; filename="{file.name}"'}
            made = Response(file.text, media_type="text/plain", headers=saved)
    except MueError:
        raise
    except (ArithmeticError, ValueError) as problem:
        raise FieldError(f"numbers too far apart to compute with ({problem}); bring them closer together") from None
    if len(made.body) > LARGEST_PLAN:
        raise FieldError(f"a plan of more than {LARGEST_PLAN} bytes: use `mue plan` for this layout")
    return made


async def _refused(request: Request, problem: Exception) -> Response:
    return JSONResponse({"error": " ".join(str(problem).split())}, 404)


async def _unknown(request: Request, problem: Exception) -> Response:
    status = problem.status_code if isinstance(problem, HTTPException) else 500
    return JSONResponse({"error": f"{request.url.path[:80]!r}: nothing here; start at /"}, status)
