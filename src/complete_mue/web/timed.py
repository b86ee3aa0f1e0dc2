"""HTTP that waits for nobody: a connection that neither asks nor listens is closed, and leaves its place to others."""

from __future__ import annotations

import asyncio
import math
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 10.0


class TimedProtocol(H11Protocol):
    """Closes connections that take longer than ``SECONDS`` to send a whole request, header and body.

    Time runs from the connection, then from each answer; bytes sent one by one do not prolong it. A client that takes
    nothing of its answer for that long is closed as well.
    """

    _late: asyncio.TimerHandle | None = None
    _unread: float = math.inf

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Time for the first request."""
        super().connection_made(cast(asyncio.Transport, transport))
        self._wait()

    def on_response_complete(self) -> None:
        """Time to take the answer and to ask again."""
        super().on_response_complete()
        self._unread = math.inf
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody to wait for."""
        if self._late is not None:
            self._late.cancel()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = self.loop.call_later(SECONDS, self._check)

    def _check(self) -> None:
        unread = self.transport.get_write_buffer_size()
        if self.cycle is not None and not self.cycle.response_complete and not unread:
            self._wait()  # for ourselves: the answer is being made
        elif 0 < unread < self._unread:
            self._unread = unread
            self._wait()
        else:
            self.transport.abort()
