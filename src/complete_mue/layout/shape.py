"""A model's shape and a run's budget: what the ratios of the rules are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from complete_mue.errors import ShapeError
from complete_mue.layout.notation import FeedForward, Parameters
from complete_mue.layout.numbers import count

# The paper's attention: query, key, value, output gate and output projection, each width x width.
ATTENTION_MATRICES = 5
DEEPEST = 1_000_000


@dataclass(frozen=True)
class ModelShape:
    """Residual width d, depth L, and the feed-forward block of every layer.

    ``feed_forward`` is one block for all layers, or a tuple with one block per layer. ``dense_layers`` makes the first
    layers dense at the same active width, as large MoE models do. ``head_dim`` matters only where attention heads grow
    with the width: leave it out for heads of fixed size.
    """

    width: int
    depth: int
    feed_forward: FeedForward | tuple[FeedForward, ...]
    dense_layers: int = 0
    head_dim: int | None = None

    def __post_init__(self) -> None:
        count("width", self.width)
        count("depth", self.depth, most=DEEPEST)
        count("dense_layers", self.dense_layers, least=0, most=self.depth)
        if self.head_dim is not None:
            count("head_dim", self.head_dim)
        if isinstance(self.feed_forward, FeedForward):
            return
        blocks = tuple(self.feed_forward) if isinstance(self.feed_forward, Iterable) else (self.feed_forward,)
        if not all(isinstance(block, FeedForward) for block in blocks):
            raise ShapeError(
                f"feed_forward = {self.feed_forward!r}: give a FeedForward, such as "
                'FeedForward.parse("8e2a", expert_width=64)',
                field="feed_forward",
                given=self.feed_forward,
            )
        object.__setattr__(self, "feed_forward", blocks)
        if len(self.feed_forward) != self.depth:
            raise ShapeError(
                f"feed_forward lists {len(self.feed_forward)} blocks for depth = {self.depth}: "
                "give one FeedForward for all layers, or exactly one per layer",
                field="feed_forward",
            )
        if self.dense_layers:
            raise ShapeError(
                "dense_layers beside one block per layer: write the dense layers into the list instead",
                field="dense_layers",
                given=self.dense_layers,
            )

    @classmethod
    def of_blocks(cls, width: int, blocks: Sequence[FeedForward], head_dim: int | None = None) -> ModelShape:
        """From every layer's block, in the shortest form: one block, dense layers before one, or one by one."""
        if not blocks:
            raise ShapeError("no layers: give one FeedForward per layer", field="feed_forward")
        main, first = blocks[-1], next((i for i, block in enumerate(blocks) if block.groups), 0)
        if all(block == main for block in blocks):
            return cls(width, len(blocks), main, head_dim=head_dim)
        if list(blocks) == [FeedForward.dense(main.active_width)] * first + [main] * (len(blocks) - first):
            return cls(width, len(blocks), main, dense_layers=first, head_dim=head_dim)
        return cls(width, len(blocks), tuple(blocks), head_dim=head_dim)

    @property
    def blocks(self) -> tuple[FeedForward, ...]:
        """The feed-forward block of each layer, first to last."""
        if not isinstance(self.feed_forward, FeedForward):
            return self.feed_forward
        return tuple(block for block, layers in self.layers.items() for _ in range(layers))

    @cached_property
    def layers(self) -> Mapping[FeedForward, int]:
        """How many layers each distinct block has, in order of first appearance; does not grow with the depth."""
        if not isinstance(self.feed_forward, FeedForward):
            return Counter(self.feed_forward)
        main = self.feed_forward
        if main.is_dense or not self.dense_layers:
            return {main: self.depth}
        runs = (FeedForward.dense(main.active_width), self.dense_layers), (main, self.depth - self.dense_layers)
        return {block: layers for block, layers in runs if layers}

    @property
    def kinds(self) -> tuple[FeedForward, ...]:
        """The distinct blocks, in order of first appearance."""
        return tuple(self.layers)

    def label(self, kind: FeedForward) -> str:
        """A kind's notation; with widths where two kinds of this shape would read alike."""
        alike = sum(str(other) == str(kind) for other in self.kinds) > 1
        return kind.with_widths if alike else str(kind)

    @property
    def notes(self) -> tuple[str, ...]:
        """What one should know of its layouts before training; mostly nothing."""
        return tuple(kind.note for kind in self.kinds if kind.note)

    @cached_property
    def main(self) -> FeedForward:
        """The block that names the model: the last one that routes, or the last layer's where none does."""
        blocks = self.kinds if isinstance(self.feed_forward, FeedForward) else self.feed_forward
        return next((block for block in reversed(blocks) if block.groups), blocks[-1])

    @property
    def active_width(self) -> int:
        """H of the main block."""
        return self.main.active_width

    @property
    def expansion(self) -> float:
        """e = H / d of the main block."""
        return self.active_width / self.width

    @cached_property
    def parameters(self) -> Parameters:
        """Matrix entries without embeddings: those of a model that was read (``counted``), else of gated attention with
        as many keys as queries, SwiGLU, and routers."""
        attention = ATTENTION_MATRICES * self.width**2
        total = Parameters(attention * self.depth, attention * self.depth)
        for kind, layers in self.layers.items():
            one = kind.parameters(self.width)
            total += Parameters(one.active * layers, one.total * layers)
        return total

    def counted(self, parameters: Parameters) -> ModelShape:
        """The same shape, of a model with so many weights: no rule depends on them, and no comparison sees them."""
        shape = replace(self)
        vars(shape)["parameters"] = parameters
        return shape


@dataclass(frozen=True)
class Budget:
    """B tokens per optimizer step, T steps."""

    batch_tokens: int
    steps: int

    def __post_init__(self) -> None:
        count("batch_tokens", self.batch_tokens)
        count("steps", self.steps)

    @property
    def tokens(self) -> int:
        """D = B T."""
        return self.batch_tokens * self.steps
