"""Tokenize in several processes, in order.

The processes are this module run as a program, fed through pipes with length-prefixed bytes: no pickle, no re-import
of the user's script, and a child that sees its input end leaves, even if the parent was killed.

    request   count, lengths [count], all texts          (int64 little-endian, then bytes)
    reply     count, lengths [count], all tokens         (int64, then uint32), or -length and a message
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import IO

import numpy as np

from complete_mue.errors import MueError, RunError
from complete_mue.lab.data.tokenizers import ByteTokenizer, Encoded, JsonTokenizer, Tokenizer


def tokenized(
    tokenizer: Tokenizer, copy: Path | None, chunks: Iterable[list[bytes]], workers: int
) -> Iterator[Encoded]:
    """Tokens of every chunk of documents, in order; ``copy`` is the tokenizer's file, which the processes load."""
    # Bytes need no work that would be worth sending: they are tokenized faster than a pipe carries them.
    if workers == 1 or copy is None or isinstance(tokenizer, ByteTokenizer):
        yield from map(tokenizer.documents, chunks)
        return
    assert isinstance(tokenizer, JsonTokenizer)
    idle: SimpleQueue[_Worker] = SimpleQueue()
    started: list[_Worker] = []
    pool = ThreadPoolExecutor(workers)
    try:
        for _ in range(workers):
            started.append(_Worker(copy, tokenizer.end))
            idle.put(started[-1])

        def encode(texts: list[bytes]) -> Encoded:
            worker = idle.get()
            try:
                return worker.documents(texts)
            finally:
                idle.put(worker)

        yield from _in_order(pool, encode, chunks, 2 * workers)
    finally:
        for worker in started:
            worker.stop()
        pool.shutdown(cancel_futures=True)


def _in_order(
    pool: ThreadPoolExecutor, encode: Callable[[list[bytes]], Encoded], chunks: Iterable[list[bytes]], ahead: int
) -> Iterator[Encoded]:
    waiting: deque[Future[Encoded]] = deque()
    for chunk in chunks:
        waiting.append(pool.submit(encode, chunk))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


class _Worker:
    """One process that tokenizes what it is sent."""

    def __init__(self, tokenizer: Path, end: str) -> None:
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "complete_mue.lab.data.worker", str(tokenizer), end],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"},
        )

    def documents(self, texts: list[bytes]) -> Encoded:
        """Send texts, wait for their tokens."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            _send(self._process.stdin, [len(text) for text in texts], b"".join(texts))
            return _receive_tokens(self._process.stdout)
        except (OSError, EOFError):
            status = self._process.wait()
            raise RunError(
                f"a tokenizing process ended with status {status}"
                + (" (killed, perhaps for want of memory: use fewer workers)" if status < 0 else "")
                + "; run the same again, finished shards are kept"
            ) from None

    def stop(self) -> None:
        """End the process and close its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except OSError:  # a last flush into a process that has left
                continue


def _exactly(file: IO[bytes], size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise EOFError
    return data


def _numbers(file: IO[bytes], how_many: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.frombuffer(_exactly(file, 8 * how_many), "<i8")


def _send(file: IO[bytes], lengths: list[int] | np.ndarray[tuple[int], np.dtype[np.int64]], content: bytes) -> None:
    file.write(np.array([len(lengths), *lengths], "<i8").tobytes())
    file.write(content)
    file.flush()


def _receive_tokens(file: IO[bytes]) -> Encoded:
    size = int(_numbers(file, 1)[0])
    if size < 0:
        raise RunError(_exactly(file, -size).decode("utf-8", "replace"))
    lengths = _numbers(file, size)
    return lengths, np.frombuffer(_exactly(file, 4 * int(lengths.sum())), "<u4")


def _serve(tokenizer: Path, end: str, requests: IO[bytes], replies: IO[bytes]) -> None:
    """Answer requests until they end."""
    loaded = JsonTokenizer(tokenizer, end_of_text=end)
    while True:
        try:
            size = int(_numbers(requests, 1)[0])
            lengths = _numbers(requests, size)
            texts = [_exactly(requests, int(length)) for length in lengths]
        except EOFError:
            return
        counts, tokens = loaded.documents(texts)
        _send(replies, counts, tokens.astype("<u4").tobytes())


def main() -> None:
    """Serve on the standard streams; whatever else is printed goes to stderr."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        _serve(Path(sys.argv[1]), sys.argv[2], sys.stdin.buffer, replies)
    except BrokenPipeError:
        os._exit(0)
    except MueError as problem:
        message = str(problem).encode("utf-8")
        replies.write(np.array([-len(message)], "<i8").tobytes() + message)
        replies.flush()


if __name__ == "__main__":
    main()
