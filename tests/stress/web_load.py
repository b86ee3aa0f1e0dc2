"""Does the planner's server survive? Malformed requests one after another, then many clients at once.

    python tests/stress/web_load.py                                  # 10,000 malformed requests, 200 clients
    python tests/stress/web_load.py --malformed 500 --clients 50     # a quick look

Starts a server of its own. Exit status 1 if it died, failed at a request (status 5xx), left one without an end, grew,
or gave anyone a wrong plan. The malformed requests are drawn with a fixed seed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode, urlsplit

PLAN = {
    "r.width": "128", "r.depth": "32", "r.feed_forward": "dense", "r.batch_tokens": "262144", "r.steps": "25000",
    "r.lr": "1e-3", "r.weight_decay": "0.1", "r.init_std": "0.01", "t.width": "1024", "t.depth": "32",
    "t.feed_forward": "128e8a4g1s", "t.expert_width": "512", "t.batch_tokens": "1048576", "t.steps": "100000",
}  # fmt: skip
_PATIENCE = 60.0


@dataclass(frozen=True)
class Server:
    """Where it listens, and its process."""

    host: str
    port: int
    pid: int


@contextmanager
def started(folder: Path) -> Iterator[Server]:
    """`mue web` on a free port, ended with the block."""
    command = [sys.executable, "-m", "complete_mue", "web", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"http://\S+", line)
            if found is None:
                raise SystemExit(f"the server did not start: {line!r}")
            at = urlsplit(found[0])
            yield Server(str(at.hostname), int(at.port or 0), process.pid)
            if process.poll() is not None:
                raise SystemExit(f"the server ended with status {process.returncode}")
        finally:
            process.terminate()


def malformed(draw: random.Random) -> bytes:
    """One request that no browser on the planner's page would send."""
    return draw.choice(_KINDS)(draw)


def _get(target: str, *headers: str, method: str = "GET", host: str = "127.0.0.1") -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", "Connection: close", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def _noise(draw: random.Random, most: int = 60) -> str:
    return "".join(
        chr(draw.choice((draw.randrange(33, 127), draw.randrange(128, 256)))) for _ in range(draw.randrange(1, most))
    )


def _plan_with(draw: random.Random) -> bytes:
    value = draw.choice(
        [
            "-1",
            "1e999",
            "nan",
            "0x10",
            "9" * 400,
            "\x00",
            "128e8a0g",
            "1\n[hyper]",
            '"',
            "٣",
            "[[]]",
            "e" * 3000,
            _noise(draw),
        ]
    )
    changed = {**PLAN, draw.choice([*PLAN, "compare", "role", "axis"]): value}
    if draw.random() < 0.2:  # in place of the shape
        changed = {
            "t.config": value,
            **{k: v for k, v in PLAN.items() if k[:2] == "r." or k in ("t.batch_tokens", "t.steps")},
        }
    return _get(f"/api/{draw.choice(['plan', 'plot', 'text/megatron', 'text/csv'])}?{urlencode(changed)}")


_KINDS: list[Callable[[random.Random], bytes]] = [
    lambda draw: draw.randbytes(draw.randrange(1, 400)),
    lambda draw: _get("/")[: draw.randrange(1, 30)],  # ends in the middle
    lambda draw: f"{_noise(draw, 12)} / HTTP/1.1\r\n\r\n".encode("latin-1"),
    lambda draw: (
        f"GET /{_noise(draw)} HTTP/{draw.randrange(10)}.{draw.randrange(10)}\r\nHost: localhost\r\n\r\n".encode(
            "latin-1"
        )
    ),
    lambda draw: b"GET / HTTP/1.1\r\n\r\n",  # no host
    lambda draw: _get("/", "Host: 127.0.0.1"),  # two hosts
    lambda draw: _get(
        "/api/runs",
        host=draw.choice(["evil.example", "localhost.evil.example", "127.0.0.1@evil", "[::1", "", "a" * 300]),
    ),
    lambda draw: _get("/", f"X-Filler: {'a' * draw.choice([9_000, 70_000])}"),
    lambda draw: _get("/", *(f"X-{i}: 1" for i in range(draw.randrange(100, 600)))),
    lambda draw: _get(f"/{'a' * draw.choice([9_000, 70_000])}"),
    lambda draw: _get(
        draw.choice(
            [
                "/..",
                "/../../etc/passwd",
                "/runs/..%2f..%2fetc%2fpasswd",
                "/runs/%2e%2e",
                "/runs/%00",
                "//etc",
                "/runs/a/b",
            ]
        )
    ),
    lambda draw: _get("/", method=draw.choice(["POST", "PUT", "DELETE", "TRACE", "OPTIONS", "PATCH", "BREW"])),
    lambda draw: _get("/", "Content-Length: 100000", method="POST") + b"x" * draw.randrange(2_000),
    lambda draw: _get("/", f"Content-Length: {draw.choice(['-1', 'x', '1, 2', '1e3', '9' * 30])}", method="POST"),
    lambda draw: (
        _get("/", "Transfer-Encoding: chunked") + draw.choice([b"zz\r\n", b"5\r\nab", b"ffffffffffffffff\r\n"])
    ),
    lambda draw: _get("/", "Transfer-Encoding: chunked", "Content-Length: 5") + b"0\r\n\r\n",
    lambda draw: _get("/", "Upgrade: websocket", "Sec-WebSocket-Key: eA==", "Sec-WebSocket-Version: 13"),
    lambda draw: _get("/api/plan?" + "&".join(f"a{i}=1" for i in range(500))),
    lambda draw: _get("/api/plan?%ff=%fe&%=%zz&=&&;"),
    lambda draw: _get("/api/plan?rules=sp&rules=sp"),
    lambda draw: _get(f"/api/plan?{urlencode({_noise(draw): _noise(draw)})}"),
    _plan_with,
    _plan_with,
]


async def exchange(server: Server, request: bytes, hang_up: float = _PATIENCE) -> tuple[int, bytes]:
    """Status and body; status 0 where the server closed without a word. We hang up if it waits for more."""

    async def talk() -> bytes:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        try:
            writer.write(request)
            await writer.drain()
            reading = asyncio.ensure_future(reader.read())
            done, _ = await asyncio.wait({reading}, timeout=hang_up)
            if not done:
                writer.write_eof()
            return await reading
        except (ConnectionError, OSError):
            return b""  # refused while we still wrote
        finally:
            writer.close()

    answer = await asyncio.wait_for(talk(), 2 * _PATIENCE)
    head, _, body = answer.partition(b"\r\n\r\n")
    found = re.match(rb"HTTP/1\.1 (\d{3})", head)
    return (int(found[1]) if found else 0), body


async def attack(server: Server, count: int, seed: int = 0, at_once: int = 20) -> Counter[int]:
    """Send malformed requests; how often each status came."""
    draw, statuses, gate = random.Random(seed), Counter[int](), asyncio.Semaphore(at_once)

    async def one(request: bytes) -> None:
        async with gate:
            status, _ = await exchange(server, request, hang_up=0.3)
        statuses[status] += 1
        if sys.stderr.isatty() and statuses.total() % 100 == 0:
            print(f"\r{statuses.total():>6} of {count}", end="", file=sys.stderr)

    for start in range(0, count, 1_000):
        await asyncio.gather(*(one(malformed(draw)) for _ in range(min(1_000, count - start))))
    return statuses


async def crowd(server: Server, clients: int, each: int) -> list[float]:
    """Clients that all ask at once, each for its own plans; seconds per answer. A wrong plan is an error."""

    async def client(number: int) -> list[float]:
        times = []
        for turn in range(each):
            steps = 25_000 + 1_000 * ((number * each + turn) % 997)
            began = time.perf_counter()
            status, body = await exchange(server, _get(f"/api/plan?{urlencode({**PLAN, 't.steps': str(steps)})}"))
            times.append(time.perf_counter() - began)
            lr = json.loads(body)["plan"]["global"]["lr"] if status == 200 else None
            if lr is None or abs(lr / (1e-3 * (25_000 / steps) ** 0.5) - 1) > 1e-9:
                raise SystemExit(f"client {number}: status {status}, lr {lr} for {steps} steps")
        return times

    found = await asyncio.gather(*(client(number) for number in range(clients)))
    return sorted(seconds for times in found for seconds in times)


def megabytes(pid: int) -> float:
    """Resident memory of a process; 0 where the system does not tell."""
    status = Path(f"/proc/{pid}/status")
    found = re.search(r"VmRSS:\s+(\d+)", status.read_text()) if status.exists() else None
    return int(found[1]) / 1024 if found else 0.0


async def measure(server: Server, malformed_requests: int, clients: int, each: int) -> None:
    await crowd(server, 8, 2)  # warm
    before, began = megabytes(server.pid), time.perf_counter()
    statuses = await attack(server, malformed_requests)
    seconds = time.perf_counter() - began
    print(f"{malformed_requests} malformed requests in {seconds:.1f} s")
    print("  " + ", ".join(f"{count} × {status or 'closed'}" for status, count in sorted(statuses.items())))
    failed = sum(count for status, count in statuses.items() if status >= 500)
    began = time.perf_counter()
    times = await crowd(server, clients, each)
    seconds = time.perf_counter() - began
    median, slow = times[len(times) // 2], times[int(len(times) * 0.99)]
    print(f"{clients} clients at once, {each} plans each: {len(times) / seconds:.0f} plans/s, all right")
    print(f"  median {median * 1e3:.0f} ms, 99 % under {slow * 1e3:.0f} ms, slowest {times[-1] * 1e3:.0f} ms")
    after = megabytes(server.pid)
    print(f"memory {before:.0f} -> {after:.0f} MB")
    if failed or after - before > 100:
        raise SystemExit(f"{failed} requests made the server fail; it grew by {after - before:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--malformed", type=int, default=10_000, help="malformed requests")
    parser.add_argument("--clients", type=int, default=200, help="clients at once")
    parser.add_argument("--each", type=int, default=10, help="plans per client")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, started(Path(folder)) as server:
        asyncio.run(measure(server, given.malformed, given.clients, given.each))


if __name__ == "__main__":
    main()
