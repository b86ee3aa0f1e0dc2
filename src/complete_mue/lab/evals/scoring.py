"""What a language model answers: log-likelihoods of continuations and generated text, with torch alone.

Rows of a batch are padded on the right. Attention is causal and routing goes by token, so what stands after a token
never changes its result; a test compares every batch size with one forward pass per example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from complete_mue.lab.data.tokenizers import Tokenizer
from complete_mue.lab.nn.attention import KeyValues

Answer = tuple[float, bool]
Tokens = NDArray[np.int64]
Tick = Callable[[int, int], None]  # requests done, requests in all
PRECISIONS = ("float32", "bfloat16")
_ENCODED_AT_ONCE = 4096
_SCORED_AT_ONCE = 8192  # positions whose logits are float32 at one time


@dataclass(frozen=True)
class Generation:
    """A text to continue: greedily, up to ``most`` tokens, until one of ``stops`` appears (and is cut off)."""

    context: str
    stops: tuple[str, ...]
    most: int


@dataclass(frozen=True)
class _Window:
    """Tokens to read, and the last of their successors to score."""

    request: int
    tokens: Tokens
    targets: Tokens


def _ignore(done: int, total: int) -> None:
    pass


class Scorer:
    """A model with its tokenizer. Contexts longer than ``longest`` lose their beginning, as in the harness.

    ``model(tokens, past, at=…)`` is called as ``LanguageModel`` is; ``new_cache`` makes a ``past`` for another one.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        longest: int,
        *,
        device: torch.device | str = "cpu",
        precision: str = "float32",
        batch_tokens: int = 8192,
        new_cache: Callable[[], Any] | None = None,
    ) -> None:
        self.model, self.tokenizer, self.longest = model, tokenizer, longest
        self.device, self.precision, self.batch_tokens = torch.device(device), precision, batch_tokens
        self._new_cache = new_cache or (lambda: [KeyValues() for _ in model.layers])

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[Tokens, Tokens]]:
        """Tokens of the two parts of each text; spaces at the seam belong to the continuation, as in the harness."""
        kept = [context.rstrip() for context, _ in pairs]
        encoded = self._encode([*kept, *(context + continuation for context, continuation in pairs)])
        found = []
        for before, (context, continuation) in zip(kept, pairs, strict=True):
            whole = encoded[context + continuation]
            if not before:
                found.append((np.array([self.tokenizer.end_of_text], np.int64), whole))
                continue
            after = whole[len(encoded[before]) :]
            if not len(after):  # a tokenizer may join the seam into one token: encode the continuation by itself
                after = np.array(self.tokenizer.encode(context[len(before) :] + continuation), np.int64)
            found.append((encoded[before], after))
        return found

    def _encode(self, texts: Sequence[str]) -> dict[str, Tokens]:
        """Tokens by text, each text once, in the tokenizer's own batches (which may run on several cores)."""
        found: dict[str, Tokens] = {}
        unique = list(dict.fromkeys(texts))
        for first in range(0, len(unique), _ENCODED_AT_ONCE):
            part = unique[first : first + _ENCODED_AT_ONCE]
            lengths, tokens = self.tokenizer.documents([text.encode("utf-8", errors="replace") for text in part])
            ends = np.cumsum(lengths)
            for text, end, length in zip(part, ends.tolist(), lengths.tolist(), strict=True):
                found[text] = tokens[end - length : end - 1].astype(np.int64)  # without the end of text
        return found

    def loglikelihoods(self, pairs: Sequence[tuple[str, str]], tick: Tick = _ignore) -> list[Answer]:
        """For each (context, continuation): log p(continuation | context), and whether greedy decoding gives it."""
        return self.token_loglikelihoods(self.encode_pairs(pairs), tick)

    def token_loglikelihoods(self, pairs: Sequence[tuple[Tokens, Tokens]], tick: Tick = _ignore) -> list[Answer]:
        """The same on tokens. Pairs that read the same tokens share one row."""
        rows: dict[bytes, list[_Window]] = {}
        for number, (context, continuation) in enumerate(pairs):
            for window in _windows(number, context, continuation, self.longest):
                rows.setdefault(window.tokens.tobytes(), []).append(window)
        totals, greedy, done = [0.0] * len(pairs), [True] * len(pairs), 0
        whole = sum(map(len, rows.values()))  # windows; more than pairs where a continuation needs several
        for batch in self._batches(list(rows.values()), lambda same: len(same[0].tokens)):
            windows = [(row, window) for row, same in enumerate(batch) for window in same]
            answers = self._score([same[0].tokens for same in batch], windows)
            for (_, window), (total, best) in zip(windows, answers, strict=True):
                totals[window.request] += total
                greedy[window.request] &= best
            done += len(windows)
            tick(done * len(pairs) // whole, len(pairs))
        return list(zip(totals, greedy, strict=True))

    @torch.inference_mode()
    def _score(self, batch: list[Tokens], windows: list[tuple[int, _Window]]) -> list[Answer]:
        """All windows of a batch at once: one product with the readout, at the positions that are scored alone."""
        lengths = [len(window.targets) for _, window in windows]
        places = [np.arange(len(w.tokens) - len(w.targets), len(w.tokens)) for _, w in windows]
        rows = np.repeat([row for row, _ in windows], lengths)
        wanted = np.stack([rows, np.concatenate(places), np.concatenate([window.targets for _, window in windows])])
        row, place, target = torch.from_numpy(wanted).to(self.device)
        padded = pad_sequence([torch.from_numpy(tokens) for tokens in batch], batch_first=True)
        logits = self.forward(padded.to(self.device), at=(row, place))  # [targets of all windows, vocab]
        losses, greedy = [], []
        for scores, targets in zip(logits.split(_SCORED_AT_ONCE), target.split(_SCORED_AT_ONCE), strict=True):
            losses.append(F.cross_entropy(scores.float(), targets, reduction="none"))
            greedy.append(scores.argmax(-1) == targets)
        starts = np.cumsum([0, *lengths[:-1]])
        totals = np.add.reduceat(torch.cat(losses).double().cpu().numpy(), starts)
        best = np.logical_and.reduceat(torch.cat(greedy).cpu().numpy(), starts)
        return list(zip((-totals).tolist(), best.tolist(), strict=True))

    @torch.inference_mode()
    def generate(self, requests: Sequence[Generation], tick: Tick = _ignore) -> list[str]:
        """Greedy continuations with a key-value cache."""
        prompts = []
        for request in requests:
            room = max(1, self.longest - self._most(request))
            prompts.append((self.tokenizer.encode(request.context) or [self.tokenizer.end_of_text])[-room:])
        written, done = [""] * len(requests), 0
        sizes = [len(prompt) + self._most(request) for prompt, request in zip(prompts, requests, strict=True)]
        for batch in self._batches(list(range(len(requests))), lambda number: sizes[number]):
            texts = self._continue([prompts[n] for n in batch], [requests[n] for n in batch])
            for number, text in zip(batch, texts, strict=True):
                written[number] = text
            done += len(batch)
            tick(done, len(requests))
        return written

    def _continue(self, prompts: list[list[int]], requests: list[Generation]) -> list[str]:
        """One batch. The shortest prompt's length is read at once; then all rows step together, each taking its own
        prompt's next token while it has one, so that rows of any lengths need neither padding nor a mask.
        """
        past, texts = self._new_cache(), [""] * len(prompts)
        sequences = [list(prompt) for prompt in prompts]
        open_rows = set(range(len(prompts)))
        shortest = min(map(len, prompts))
        step = torch.tensor([prompt[:shortest] for prompt in prompts], device=self.device)
        place = shortest
        while open_rows:
            best = self.forward(step, past)[:, -1].argmax(-1).tolist()
            for row in sorted(open_rows):
                if place < len(prompts[row]):
                    continue
                sequences[row].append(best[row])
                texts[row], ended = self._read(sequences[row][len(prompts[row]) :], requests[row])
                if ended:
                    open_rows.discard(row)
            # A finished row goes on with any token; nobody reads what follows.
            step = torch.tensor([[s[place] if place < len(s) else 0] for s in sequences], device=self.device)
            place += 1
        return texts

    def _read(self, tokens: list[int], request: Generation) -> tuple[str, bool]:
        """The text so far, cut at a stop, and whether it has ended."""
        if tokens[-1] == self.tokenizer.end_of_text:
            return self.tokenizer.decode(tokens[:-1]), True
        text = self.tokenizer.decode(tokens)
        cut = min((text.index(stop) for stop in request.stops if stop and stop in text), default=None)
        if cut is not None:
            return text[:cut], True
        return text, len(tokens) >= self._most(request)

    def _most(self, request: Generation) -> int:
        """Tokens to write: at most half of what the model can hold, so that a prompt remains."""
        return max(1, min(request.most, self.longest // 2))

    def forward(self, tokens: Tensor, past: Any = None, at: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """The model's logits, in the precision asked for."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            return self.model(tokens, past, at=at)

    def _batches(self, items: list[Any], size: Callable[[Any], int]) -> Iterator[list[Any]]:
        """Items of like size together, the largest first, at most ``batch_tokens`` of padded tokens in each."""
        batch: list[Any] = []
        for item in sorted(items, key=size, reverse=True):
            if batch and (len(batch) + 1) * size(batch[0]) > self.batch_tokens:
                yield batch
                batch = []
            batch.append(item)
        if batch:
            yield batch


def _windows(number: int, context: Tokens, continuation: Tokens, longest: int) -> Iterator[_Window]:
    """What is read to score a continuation: one window, or several side by side where it alone is too long for one."""
    whole = np.concatenate([context, continuation])
    for first in range(len(context), len(whole), longest):
        last = min(first + longest, len(whole))
        yield _Window(number, whole[max(0, last - 1 - longest) : last - 1].copy(), whole[first:last].copy())
