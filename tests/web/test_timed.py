"""Clients that neither ask nor listen: they are closed in time, and those that do are served."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the planner needs the extra web")
pytest.importorskip("uvicorn", reason="the planner needs the extra web")

SECONDS = 1.0
PLANNER = """
import sys
from pathlib import Path
from complete_mue.web import timed
from complete_mue.web.server import serve
timed.SECONDS = float(sys.argv[2])
serve(Path(sys.argv[1]), "127.0.0.1", 0, lambda url: print(url, flush=True))
"""
LARGE = """
import sys, time, uvicorn
from complete_mue.web import timed
from complete_mue.web.server import bind
timed.SECONDS = float(sys.argv[2])
body = bytes(2**26)

async def app(scope, receive, send):
    if scope["path"] == "/slow":
        import asyncio
        await asyncio.sleep(3 * timed.SECONDS)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})

with bind("127.0.0.1", 0) as listener:
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
    config = uvicorn.Config(app, http=timed.TimedProtocol, ws="none", lifespan="off", log_level="critical")
    uvicorn.Server(config).run(sockets=[listener])
"""


def started(code: str, folder: Path) -> Iterator[int]:
    command = [sys.executable, "-c", code, str(folder), str(SECONDS)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline().strip().rstrip("/").rpartition(":")[2])
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The planner's port."""
    yield from started(PLANNER, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server with large answers, some of them slow to make."""
    yield from started(LARGE, tmp_path_factory.mktemp("runs"))


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def ended(client: socket.socket) -> bool:
    """Read to the end: whether the other side closed before the test's own patience was over."""
    try:
        while client.recv(2**16):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


ASK = b"GET / HTTP/1.1\r\nhost: localhost\r\n"


@pytest.mark.parametrize(
    "sent",
    [b"", b"GE", ASK, b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\nhalf", ASK + b"\r\n" + ASK],
    ids=["nothing", "part of a line", "half a header", "half a body", "half a second request"],
)
def test_a_request_that_does_not_end_is_closed(planner: int, sent: bytes) -> None:
    with connected(planner) as client:
        client.sendall(sent)
        assert ended(client)


def test_bytes_one_by_one_do_not_prolong_it(planner: int) -> None:
    with connected(planner) as client:
        client.sendall(ASK)
        with pytest.raises(OSError, match=r"(?i)reset|pipe"):
            trickle(client, 20)


def trickle(client: socket.socket, seconds: float) -> None:
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        client.sendall(b"x-more: y\r\n")
        time.sleep(0.05)


def test_a_crowd_of_half_open_requests_leaves(planner: int) -> None:
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(connected(planner)).sendall(ASK)
        time.sleep(3 * SECONDS)
        with connected(planner) as client:
            client.sendall(ASK + b"connection: close\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 200"


def test_requests_that_come_in_time_are_answered_for_longer(planner: int) -> None:
    with connected(planner) as client:
        for _ in range(12):
            client.sendall(ASK.replace(b"GET", b"HEAD") + b"\r\n")
            assert client.recv(2**16).startswith(b"HTTP/1.1 200")
            time.sleep(SECONDS / 10)


def test_an_answer_that_takes_long_to_make_is_waited_for(large: int) -> None:
    with connected(large) as client:
        client.sendall(b"GET /slow HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert received(client) > 2**26


def test_an_answer_that_is_read_slowly_comes_whole(large: int) -> None:
    with connected(large) as client:
        client.sendall(ASK + b"connection: close\r\n\r\n")
        assert received(client, pause=SECONDS / 50) > 2**26


def test_an_answer_that_nobody_reads_is_dropped(large: int) -> None:
    with connected(large) as client:
        client.sendall(ASK + b"\r\n")
        time.sleep(6 * SECONDS)
        assert received(client) < 2**26


def received(client: socket.socket, pause: float = 0.0) -> int:
    total = 0
    try:
        while found := client.recv(2**20):
            total += len(found)
            time.sleep(pause)
    except ConnectionResetError:
        pass
    return total
