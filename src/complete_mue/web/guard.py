"""What a request may be, and the headers of every response.

The server listens on loopback, which any page in the user's browser can reach; so a request must name a host that a
foreign page cannot take (localhost, an address, or the name given with --host), which stops DNS rebinding, and nothing
here allows other origins to read a response. Requests are GET or HEAD without a body and of bounded length.
"""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Iterable

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LONGEST_TARGET = 8_192
METHODS = ("GET", "HEAD")
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": PAGE_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
_log = logging.getLogger(__name__)


class Guard:
    """Refuses what a browser on this page would never send, before any of our code sees it."""

    def __init__(self, app: ASGIApp, names: Iterable[str] = ()) -> None:
        self.app, self.names = app, {"localhost", *(name.lower() for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or pass on one request."""
        if scope["type"] != "http":
            return
        started = False

        async def guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                own = {name.lower() for name, _ in message["headers"]}
                extra = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in own]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        try:
            await (self._refused(scope) or self.app)(scope, receive, guarded)
        except Exception:
            _log.exception("request failed")
            if not started:
                failed = _error(500, "the server failed at this request; its terminal says why")
                await failed(scope, receive, guarded)

    def _refused(self, scope: Scope) -> Response | None:
        headers = scope["headers"]
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        if len(hosts) != 1 or not self._may_be(hosts[0]):
            return _error(403, f"host {', '.join(hosts)[:80]!r}: open the address that `mue web` printed")
        if scope["method"] not in METHODS:
            says = f"method {scope['method'][:20]!r}: give {' or '.join(METHODS)}"
            return _error(405, says, allow=", ".join(METHODS))
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > LONGEST_TARGET:
            return _error(414, f"an address of more than {LONGEST_TARGET} bytes: shorten it")
        body = any(
            name == b"transfer-encoding" or (name == b"content-length" and value != b"0") for name, value in headers
        )
        # The body stays unread.
        return _error(413, "a request with a body: send none", connection="close") if body else None

    def _may_be(self, host: str) -> bool:
        """A name that is ours, or an address: neither can be made to point here by someone else's DNS."""
        found = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(?::\d{1,5})?", host, re.ASCII)
        if found is None:
            return False
        name = found[1].strip("[]").lower()
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self.names
        return True


def _error(status: int, text: str, **headers: str) -> Response:
    return JSONResponse({"error": text}, status, headers)
