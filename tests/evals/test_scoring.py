"""Answers of a model against one plain forward pass per example."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from complete_mue.lab.data import StandardLibrary, text  # noqa: E402
from complete_mue.lab.data.tokenizers import ByteTokenizer  # noqa: E402
from complete_mue.lab.evals.held_out import held_out_loss  # noqa: E402
from complete_mue.lab.evals.scoring import Generation, Scorer  # noqa: E402
from complete_mue.lab.models.lm import LanguageModel  # noqa: E402
from complete_mue.lab.recipes import recipe  # noqa: E402
from complete_mue.lab.train.config import override  # noqa: E402
from complete_mue.lab.train.task import build, next_token_loss  # noqa: E402
from complete_mue.layout import FeedForward, ModelShape  # noqa: E402

pytestmark = pytest.mark.draws

BYTES = ByteTokenizer()
LAYOUTS = ("dense@32", "8e2a@16", "8e4a2g1s@16")
LONGEST = 48
NOISE = 2e-6  # of one token's log-likelihood: it is taken in float32 from float64 logits


def small_model(layout: str) -> LanguageModel:
    torch.manual_seed(0)
    model = LanguageModel(ModelShape(32, 2, FeedForward.parse(layout), head_dim=16), BYTES.vocab)
    return model.double().eval()  # where padding's part in a sum tips no choice


def pairs(count: int, longest: int = 30) -> list[tuple[str, str]]:
    rnd = random.Random(0)

    def text(least: int, most: int) -> str:
        return "".join(rnd.choices("abc é", k=rnd.randint(least, most)))

    return [(f"x{text(0, longest)}", f" {text(1, 12)}") for _ in range(count)]


@torch.no_grad()
def plain(model: LanguageModel, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    """The definition: one example, one forward pass, nothing padded."""
    logits = model(torch.tensor([context + continuation]))[0].double().log_softmax(-1)
    places = range(len(context) - 1, len(context) + len(continuation) - 1)
    total = sum(float(logits[place, token]) for place, token in zip(places, continuation, strict=True))
    return total, all(int(logits[p].argmax()) == t for p, t in zip(places, continuation, strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("batch_tokens", [1, 200, 10_000])
def test_loglikelihoods_equal_a_plain_forward(layout: str, batch_tokens: int) -> None:
    model, asked = small_model(layout), pairs(9)
    found = Scorer(model, BYTES, 2 * LONGEST, batch_tokens=batch_tokens).loglikelihoods(asked)
    for (context, continuation), (total, greedy) in zip(asked, found, strict=True):
        kept = context.rstrip()
        expected = plain(model, BYTES.encode(kept), BYTES.encode(context[len(kept) :] + continuation))
        assert total == pytest.approx(expected[0], abs=NOISE * len(BYTES.encode(context + continuation)), rel=0)
        assert greedy == expected[1]
    assert {greedy for _, greedy in Scorer(model, BYTES, LONGEST).token_loglikelihoods(_greedy(model))} == {True}


def _greedy(model: LanguageModel) -> list[tuple[Any, Any]]:
    """Continuations that the model would write itself."""
    context = torch.tensor([BYTES.encode("abc")])
    written = [model.generate(context, count, temperature=0)[0, 3:] for count in (1, 5)]
    return [(context[0].numpy(), tokens.numpy()) for tokens in written]


def test_what_follows_a_token_does_not_change_it() -> None:
    """Padding's tokens are routed too; no other token may notice."""
    model = small_model("8e2a@16")
    tokens = torch.randint(0, 256, (4, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        alone = model(tokens[:, :9])
        for filler in (0, 97, BYTES.end_of_text):
            padded = torch.cat([tokens[:, :9], torch.full((4, 30), filler)], dim=1)
            assert torch.allclose(model(padded)[:, :9], alone, rtol=0, atol=1e-12)


def test_long_contexts_lose_their_beginning() -> None:
    model = small_model("dense@32")
    scorer = Scorer(model, BYTES, LONGEST)
    (context, continuation) = ("abc " * 40 + "x", " é")
    tokens = BYTES.encode(context + continuation)[-LONGEST - 1 :]
    expected = plain(model, tokens[:-3], tokens[-3:])
    assert scorer.loglikelihoods([(context, continuation)])[0][0] == pytest.approx(expected[0], abs=3 * NOISE)


def test_continuations_longer_than_the_model_are_scored_whole() -> None:
    """Every token once, each window full: the windows of lm-evaluation-harness for whole texts."""
    model, text = small_model("dense@32"), "abcé" * 30
    tokens, expected = BYTES.encode(text), 0.0
    for first in range(0, len(tokens), LONGEST):
        whole = [BYTES.end_of_text, *tokens[: first + LONGEST]][-LONGEST - 1 :]
        part = tokens[first : first + LONGEST]
        expected += plain(model, whole[: -len(part)], part)[0]
    (found,) = Scorer(model, BYTES, LONGEST).loglikelihoods([("", text)])
    assert found[0] == pytest.approx(expected, abs=NOISE * len(tokens))


def test_an_empty_context_is_an_end_of_text() -> None:
    model = small_model("dense@32")
    (found,) = Scorer(model, BYTES, LONGEST).loglikelihoods([("", "ab")])
    assert found[0] == pytest.approx(plain(model, [BYTES.end_of_text], BYTES.encode("ab"))[0], abs=2 * NOISE)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_generation_of_many_lengths_equals_one_at_a_time(layout: str) -> None:
    model = small_model(layout)
    requests = [Generation(context, (), most) for (context, _), most in zip(pairs(6, 20), [2, 5, 8] * 2, strict=True)]
    expected = []
    for request in requests:
        tokens = BYTES.encode(request.context)
        written = model.generate(torch.tensor([tokens]), request.most, temperature=0)[0, len(tokens) :].tolist()
        if BYTES.end_of_text in written:
            written = written[: written.index(BYTES.end_of_text)]
        expected.append(BYTES.decode(written))
    assert any(expected)
    for batch_tokens in (1, 100, 10_000):
        assert Scorer(model, BYTES, LONGEST, batch_tokens=batch_tokens).generate(requests) == expected


def test_generation_stops_where_it_is_told() -> None:
    scorer = Scorer(small_model("dense@32"), BYTES, LONGEST)
    (free,) = scorer.generate([Generation("abc", (), 20)])
    assert len(free) > 4
    stop = free[2:4]
    assert scorer.generate([Generation("abc", ("never", stop), 20)]) == [free[: free.index(stop)]]


def test_prompts_and_text_share_the_models_length() -> None:
    scorer = Scorer(small_model("dense@32"), BYTES, LONGEST)
    assert scorer.generate([Generation("abc" * 100, (), 1000)]) == scorer.generate(
        [Generation(("abc" * 100)[-LONGEST // 2 :], (), 1000)]
    )


def test_progress_reaches_the_end_once() -> None:
    seen: list[tuple[int, int]] = []
    scorer = Scorer(small_model("dense@32"), BYTES, LONGEST, batch_tokens=100)
    scorer.loglikelihoods([*pairs(9), ("a", "b" * 200)], lambda done, total: seen.append((done, total)))
    assert len(seen) > 1
    assert seen == sorted(seen)
    assert seen[-1] == (10, 10) != seen[-2]


@pytest.mark.numeric  # once: in float64 no draw comes near a tie
def test_held_out_loss_is_that_of_every_window(monkeypatch: pytest.MonkeyPatch) -> None:
    training, held_out = text._library()
    monkeypatch.setattr(text, "_library", lambda: (training, held_out[:20_000]))
    small = ("shape.width=16", "shape.depth=1", "shape.head_dim=8", "task.sequence=512", "budget.batch_tokens=512")
    config = override(recipe("lm_tiny:8e2a"), *small)
    model = build(config).model.double().eval()
    data = StandardLibrary(sequence=512, rows=1, split="held_out")
    assert data.windows > 30
    with torch.no_grad():
        tokens = data.at(np.arange(data.windows))
        want = torch.stack([next_token_loss(model(row[None, :-1]), row[None]) for row in tokens])
    found = held_out_loss(config, Scorer(model, BYTES, 512, batch_tokens=2_000), 7, lambda done, total: None)
    assert found.loss == pytest.approx(float(want.mean()), rel=1e-6)
    assert found.error == pytest.approx(float(want.std()) / len(want) ** 0.5, rel=1e-3)
    assert (found.windows, found.tokens) == (data.windows, data.windows * 512)
    assert found.bits_per_byte == pytest.approx(found.loss / math.log(2), rel=0.01)  # a token is a byte


@pytest.mark.numeric
def test_bits_per_byte_count_characters_that_windows_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A character of three bytes, half of which end in another window, is still three bytes."""
    stream = BYTES.documents(["語".encode() * 70] * 20)[1].astype(np.uint16)
    monkeypatch.setattr(text, "_library", lambda: (stream, stream))
    small = ("shape.width=16", "shape.depth=1", "shape.head_dim=8", "task.sequence=16", "budget.batch_tokens=16")
    config = override(recipe("lm_tiny"), *small)
    scorer = Scorer(build(config).model.eval(), BYTES, 16, batch_tokens=50)
    found = held_out_loss(config, scorer, 7, lambda done, total: None)
    size = found.tokens - len(stream) // 211  # ends of documents are tokens, not bytes
    assert found.bits_per_byte * math.log(2) == pytest.approx(found.loss * found.tokens / size, rel=2e-3)
