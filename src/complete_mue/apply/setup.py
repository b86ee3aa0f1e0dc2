"""A training setup as a check sees it: a model, its optimizer, a loss, and perhaps a scheduler and a clip."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from complete_mue.apply.bind import tensors_of
from complete_mue.apply.family import Family
from complete_mue.errors import MueError, RunError
from complete_mue.layout import Role
from complete_mue.plan.plan import Plan

T = TypeVar("T")
Loss = Callable[[nn.Module, int], Tensor]
SEQUENCE = 64


@dataclass(frozen=True)
class Setup:
    """What ``build(plan)`` returns: the model initialized, the optimizer made, ready for the first step.

    ``loss(model, step)`` gives the training loss of a step; the same step gives the same batch. Without it the model is
    a language model, ``model(tokens)`` gives its logits, and a check brings its own text. ``clip(model)`` clips the
    gradients, where the run does: ``lambda model: mue.clip_grad_norm_(model, plan, 1.0)``.
    """

    model: nn.Module
    optimizer: Optimizer
    loss: Loss | None = None
    scheduler: Any = None
    family: Family | None = None
    clip: Callable[[nn.Module], Any] | None = None


def built(build: Callable[[Plan], Setup], plan: Plan) -> Setup:
    """``build(plan)``, or an error that says what is wrong with it."""
    setup = called("build(plan)", lambda: build(plan))
    if not isinstance(setup, Setup):
        raise RunError(f"build(plan) returned a {type(setup).__name__}: return mue.Setup(model, optimizer)")
    if not hasattr(setup.optimizer, "param_groups"):
        raise RunError(f"build(plan) gave a {type(setup.optimizer).__name__} as optimizer: give one of torch's")
    if setup.scheduler is not None and not hasattr(setup.scheduler, "step"):
        raise RunError(
            f"build(plan) gave a {type(setup.scheduler).__name__} as scheduler: give one of torch's, or None"
        )
    return setup


def called(what: str, call: Callable[[], T]) -> T:
    """What somebody's own function returns, or an error that names the function."""
    try:
        return call()
    except MueError:
        raise
    except Exception as problem:
        said = " ".join(str(problem).split())
        raise RunError(
            f"{what} failed with {type(problem).__name__}: {said}; call it in Python to see where"
        ) from problem


def loss_of(setup: Setup, plan: Plan) -> Loss:
    """The setup's own loss, or that of the next token on a check's own text, in batches of the plan's size."""
    own = setup.loss
    if own is not None:
        return lambda model, step: _one_number(called("loss(model, step)", lambda: own(model, step)))
    words = "model(tokens), for logits or an output with .logits (give loss= in mue.Setup where it takes other things),"
    embedding = _token_table(setup)
    rows = max(1, plan.budget.batch_tokens // SEQUENCE)

    def loss(model: nn.Module, step: int) -> Tensor:
        tokens = text(embedding.shape[0], rows, step).to(embedding.device)
        logits = called(words, lambda: _logits(model(tokens[:, :-1])))
        return F.cross_entropy(logits.flatten(0, -2).float(), tokens[:, 1:].flatten())

    return loss


def _logits(output: Any) -> Tensor:
    logits: Tensor = output if isinstance(output, Tensor) else output.logits
    return logits


def clip(setup: Setup) -> None:
    """Clip the gradients as the run does, where it does."""
    own = setup.clip
    if own is not None:
        called("clip(model)", lambda: own(setup.model))


def _one_number(loss: Any) -> Tensor:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        given = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise RunError(f"loss(model, step) returned {given}: return a tensor of one number")
    return loss


def _token_table(setup: Setup) -> nn.Parameter:
    tensors = tensors_of(setup.model, setup.family)
    tables = [one for one in tensors if one.spec.role is Role.EMBEDDING and one.spec.axes[0] == "vocab"]
    if len(tables) != 1:
        raise RunError(
            f"{len(tables)} embeddings with axes (vocab, …): without a table of tokens a check cannot make data; "
            "give loss= in mue.Setup(model, optimizer, loss)"
        )
    return tables[0].parameter


def text(vocab: int, rows: int, step: int, length: int = SEQUENCE) -> Tensor:
    """Made-up text of a step, tokens [rows, length + 1]: as skewed as words are, each hinting at the next.

    Tokens have frequencies of rank^-1.5, and a quarter of the time the next one is drawn from a ranking of the last
    one's own. So inputs and gradients have much in common, as in real text; of random tokens they have nothing. Large
    vocabularies have their first 256 tokens used.
    """
    chances = _chances(min(vocab, 256))
    draws = torch.Generator().manual_seed(step)
    tokens = [torch.multinomial(chances.mean(0), rows, replacement=True, generator=draws)]
    for _ in range(length):
        tokens.append(torch.multinomial(chances[tokens[-1]], 1, generator=draws)[:, 0])
    return torch.stack(tokens, dim=1)


@lru_cache(maxsize=2)
def _chances(vocab: int) -> Tensor:
    """Of each token after each other one, [vocab, vocab]."""
    ranks = torch.arange(1, vocab + 1, device="cpu").double() ** -1.5
    shares = (ranks / ranks.sum()).float()
    draws = torch.Generator().manual_seed(0)
    own = torch.stack([shares[torch.randperm(vocab, generator=draws, device="cpu")] for _ in range(vocab)])
    return 0.75 * shares + 0.25 * own
