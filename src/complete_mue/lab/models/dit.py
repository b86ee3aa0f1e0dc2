"""The diffusion transformer: velocity of a flow from noise to images or video, with text in context.

Patches and text tokens form one sequence; every layer is modulated by the time (AdaLN: shift, scale and gate of both
branches); rotary positions have one axis per patch axis. Built from a ModelShape and a plan like the language model,
with the same optional replica axis.

Axes: replica (optional, first), batch, channels, frames (video), height, width, tokens (text first, then patches).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from complete_mue.errors import ShapeError
from complete_mue.lab.models.residual_layer import (
    Layer,
    LayerOptions,
    LayerRunner,
    build_layers,
    head_dim,
    inside,
    multiplier,
)
from complete_mue.lab.nn.linear import RmsNorm, embedding, linear, times
from complete_mue.lab.nn.rope import picture_rotary
from complete_mue.lab.nn.router import Routing
from complete_mue.layout import ModelShape, Role, TensorSpec
from complete_mue.layout.numbers import count
from complete_mue.plan.plan import Plan

TIME_FEATURES = 256
MODULATIONS = 6  # shift, scale, gate of attention and of the feed-forward block


class DiffusionTransformer(nn.Module):
    """Predicts dx/dt at (x_t, t) given text.

    ``patch`` gives the patch size per axis: (2, 2) for images, (1, 2, 2) for video. Text comes as token ids of a
    vocabulary (``text_vocab``; one more id stands for no text) or, with ``text_features``, as features of that size.
    """

    def __init__(
        self,
        shape: ModelShape,
        channels: int,
        patch: Sequence[int] = (2, 2),
        plan: Plan | None = None,
        *,
        text_vocab: int = 256,
        text_features: int | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__()
        if len(patch) not in (2, 3):
            raise ShapeError(
                f"patch = {tuple(patch)}: give (height, width) for images or (frames, height, width) for video"
            )
        replicas = options.get("replicas")
        self.shape, self.replicas = shape, replicas
        self.channels, self.patch = count("channels", channels), tuple(count("patch", size) for size in patch)
        self.text_vocab, self.text_features = text_vocab, text_features
        self.head_dim = head_dim(shape)
        # A head's channels, shared evenly over the position axes, each an even number.
        self.rotary_splits = (2 * (self.head_dim // (2 * len(patch))),) * len(patch)
        lead, d = () if replicas is None else (replicas,), shape.width
        pixels = channels * math.prod(self.patch)

        self.patch_in = nn.Parameter(torch.empty(*lead, d, pixels))
        text_rows = text_vocab + 1 if text_features is None else d
        self.text_in = nn.Parameter(torch.empty(*lead, text_rows, d if text_features is None else text_features))
        self.no_text = None if text_features is None else nn.Parameter(torch.empty(*lead, 1, text_features))
        self.time_in = nn.Parameter(torch.empty(*lead, d, TIME_FEATURES))
        self.time_out = nn.Parameter(torch.empty(*lead, d, d))
        self.modulation = nn.ParameterList(torch.empty(*lead, MODULATIONS * d, d) for _ in shape.blocks)
        self.input_output = multiplier(plan, Role.EMBEDDING)
        self.layers = build_layers(shape, plan, causal=False, **options)
        self.run_layer = LayerRunner(_modulated)
        self.run_head: Callable[[RmsNorm, Tensor, Tensor, Tensor, Tensor, float], Tensor] = _velocity
        self.final_norm = RmsNorm(d, replicas=replicas)
        self.final_modulation = nn.Parameter(torch.empty(*lead, 2 * d, d))
        self.readout = nn.Parameter(torch.empty(*lead, pixels, d))
        self.readout_output = multiplier(plan, Role.READOUT)
        weights = (self.patch_in, self.text_in, self.time_in, self.time_out, self.final_modulation, self.readout)
        for weight in (*weights, *self.modulation, *([] if self.no_text is None else [self.no_text])):
            nn.init.normal_(weight, std=0.02)

    # -- forward ---------------------------------------------------------------------------------------------------

    def forward(self, x: Tensor, t: Tensor, text: Tensor, routings: list[Routing] | None = None) -> Tensor:
        """x [(K,) batch, channels, (frames,) height, width], t [(K,) batch] in [0, 1], text [(K,) batch, length
        (, features)] -> velocity of x's shape. Inputs without the replica axis serve all replicas.
        """
        if self.replicas is not None:
            x, t, text = self._shared(x, t, text)
        patches, grid = self._patches(x)  # [(K,) batch, tokens, pixels]
        words = self._words(text)  # [(K,) batch, length, width]
        h = torch.cat([words, times(self.input_output, linear(patches, self.patch_in))], dim=-2)
        time = self._time(t)  # [(K,) batch, 1, width]
        rotary = picture_rotary(words.shape[-2], grid, self.head_dim, self.rotary_splits, h)
        for number, (layer, weight) in enumerate(zip(self.layers, self.modulation, strict=True)):
            h = self.run_layer(number, routings, layer, h, time, weight, rotary)
        h, modulation = h[..., words.shape[-2] :, :], self.final_modulation
        return self._image(self.run_head(self.final_norm, modulation, self.readout, h, time, self.readout_output), grid)

    def compile_parts(self) -> None:
        """Compile the layers, one for all of a kind, and the head."""
        self.run_layer.compile()
        self.run_head = torch.compile(self.run_head, dynamic=False)

    def drop_text(self, text: Tensor, dropped: Tensor) -> Tensor:
        """Text with the dropped rows (a mask over the batch) replaced by "no text", for classifier-free guidance."""
        mask = dropped.view(*dropped.shape, *(1,) * (text.ndim - dropped.ndim))
        return text.masked_fill(mask, self.text_vocab if self.text_features is None else math.nan)

    def _shared(self, x: Tensor, t: Tensor, text: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        sizes = (2 + len(self.patch), 1, 2 if self.text_features is None else 3)
        return tuple(
            part.expand(self.replicas, *part.shape) if part.ndim == size else part
            for part, size in zip((x, t, text), sizes, strict=True)
        )

    def _patches(self, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        axes = len(self.patch)
        sizes = x.shape[-axes:]
        if x.shape[-axes - 1] != self.channels or any(size % p for size, p in zip(sizes, self.patch, strict=True)):
            raise ShapeError(
                f"x has shape {tuple(x.shape)}: "
                f"give {self.channels} channels and sizes divisible by the patch {self.patch}"
            )
        grid = tuple(size // p for size, p in zip(sizes, self.patch, strict=True))
        lead = x.shape[: -axes - 1]
        split = [part for pair in zip(grid, self.patch, strict=True) for part in pair]
        x = x.reshape(*lead, self.channels, *split)  # channels, then grid and patch axes in turns
        first = len(lead)
        x = x.permute(*range(first), *range(first + 1, x.ndim, 2), first, *range(first + 2, x.ndim, 2))
        return x.reshape(*lead, math.prod(grid), self.channels * math.prod(self.patch)), grid

    def _image(self, tokens: Tensor, grid: tuple[int, ...]) -> Tensor:
        axes, lead = len(grid), tokens.shape[:-2]
        x = tokens.reshape(*lead, *grid, self.channels, *self.patch)
        first = len(lead)
        order = [*range(first), first + axes]
        for i in range(axes):
            order += [first + i, first + axes + 1 + i]
        x = x.permute(*order)
        return x.reshape(*lead, self.channels, *(g * p for g, p in zip(grid, self.patch, strict=True)))

    def _words(self, text: Tensor) -> Tensor:
        if self.text_features is not None:
            assert self.no_text is not None
            empty = self.no_text if self.replicas is None else self.no_text[:, None]
            words = linear(torch.where(text.isnan(), empty.to(text.dtype), text), self.text_in)
        else:
            words = embedding(text, self.text_in)
        return times(self.input_output, words)

    def _time(self, t: Tensor) -> Tensor:
        half = TIME_FEATURES // 2
        frequencies = torch.exp(-math.log(10_000) * torch.arange(half, device=t.device, dtype=torch.float64) / half)
        angles = 1000 * t[..., None].double() * frequencies
        features = torch.cat([angles.cos(), angles.sin()], dim=-1).to(self.time_in.dtype)
        hidden = F.silu(linear(features[..., None, :], self.time_in))
        return F.silu(linear(hidden, self.time_out))

    # -- roles -----------------------------------------------------------------------------------------------------

    def tensors(self) -> tuple[TensorSpec, ...]:
        """Every parameter by name, role and axes, with what the forward multiplies it by."""
        front = () if self.replicas is None else ("replica",)
        into = self.input_output

        def spec(name: str, role: Role, *axes: str, fan_in: str | None = None, **options: Any) -> TensorSpec:
            return TensorSpec(name, role, (*front, *axes), fan_in, **options)

        if self.text_features is None:
            text = [spec("text_in", Role.EMBEDDING, "vocab", "width", multiplier=into)]
        else:
            text = [
                spec("text_in", Role.EMBEDDING, "width", "features", fan_in="features", multiplier=into),
                spec("no_text", Role.BIAS, "one", "features"),
            ]
        layers = [
            tensor
            for number, layer in enumerate(self.layers)
            for tensor in (
                spec(f"modulation.{number}", Role.MODULATION, "modulation", "width", fan_in="width", layer=number),
                *inside(f"layers.{number}", layer.tensors(), {}, number),
            )
        ]
        return (
            spec("patch_in", Role.EMBEDDING, "width", "pixels", fan_in="pixels", multiplier=into),
            *text,
            spec("time_in", Role.EMBEDDING, "width", "time", fan_in="time"),
            spec("time_out", Role.MODULATION, "modulation", "width", fan_in="width"),
            *layers,
            spec("final_norm.gain", Role.FINAL_NORM, "width"),
            spec("final_modulation", Role.MODULATION, "modulation", "width", fan_in="width"),
            spec("readout", Role.READOUT, "pixels", "width", fan_in="width", multiplier=self.readout_output),
        )


def _modulated(
    layer: Layer, x: Tensor, time: Tensor, weight: Tensor, rotary: tuple[Tensor, Tensor]
) -> tuple[Tensor, Routing | None]:
    """A layer with AdaLN; gates and scales are around 1, so that an untrained modulation leaves the layer as it is."""
    shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = linear(time, weight).chunk(MODULATIONS, dim=-1)
    inner = layer.attention_norm(x) * (1 + scale_a) + shift_a
    x = x + (1 + gate_a) * layer.attention(inner, rotary)
    inner = layer.feed_forward_norm(x) * (1 + scale_f) + shift_f
    routing = layer.feed_forward.route(inner)
    return x + (1 + gate_f) * layer.feed_forward(inner, routing), routing


def _velocity(norm: RmsNorm, modulation: Tensor, readout: Tensor, h: Tensor, time: Tensor, multiplier: float) -> Tensor:
    """The head: multiplier * readout of the modulated norm, [(K,) batch, tokens, pixels]."""
    shift, scale = linear(time, modulation).chunk(2, dim=-1)
    return times(multiplier, linear(norm(h) * (1 + scale) + shift, readout))
