"""The exported language model for transformers: plain torch, no multipliers. `mue export` copies this file into the
model's folder, so it imports nothing of the package.

Pre-norm, RMSNorm, attention gated by a sigmoid of the block's input, SwiGLU or mixture of experts, rotary positions.
A layer's block is a list of always-active width and groups of routed experts, [experts, active, expert width] each:
the best ``active`` of each group are taken, and the weights of all that are taken sum to one.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast


class CompleteMueConfig(PretrainedConfig):
    """Sizes. ``blocks`` has one entry per layer: {"branch": width, "groups": [[experts, active, width]]}."""

    model_type = "complete_mue"

    def __init__(
        self,
        vocab_size: int = 257,
        hidden_size: int = 64,
        num_hidden_layers: int = 2,
        head_dim: int = 16,
        blocks: list[dict[str, Any]] | None = None,
        max_position_embeddings: int = 2048,
        rope_theta: float = 10_000.0,
        rms_norm_eps: float = 1e-6,
        qk_norm: bool = False,
        router_score: str = "sigmoid",
        selection_bias: bool = False,
        logit_bias: bool = False,
        **rest: Any,
    ) -> None:
        self.vocab_size, self.hidden_size, self.num_hidden_layers = vocab_size, hidden_size, num_hidden_layers
        self.head_dim, self.num_attention_heads = head_dim, hidden_size // head_dim
        self.num_key_value_heads = self.num_attention_heads
        self.blocks = blocks or [{"branch": hidden_size, "groups": []} for _ in range(num_hidden_layers)]
        self.max_position_embeddings, self.rope_theta = max_position_embeddings, rope_theta
        self.rms_norm_eps, self.qk_norm = rms_norm_eps, qk_norm
        self.router_score, self.selection_bias, self.logit_bias = router_score, selection_bias, logit_bias
        for name in ("num_attention_heads", "num_key_value_heads"):
            rest.pop(name, None)
        super().__init__(**{"tie_word_embeddings": False, **rest})


class CompleteMueNorm(nn.Module):
    """x / rms(x) * weight, in float32 at least."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        """x [..., size] -> the same shape."""
        wide = x if x.dtype == torch.float64 else x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


class CompleteMueAttention(nn.Module):
    """Softmax attention, gated, projected."""

    def __init__(self, config: CompleteMueConfig, layer: int) -> None:
        super().__init__()
        width = config.hidden_size
        self.layer, self.head_dim = layer, config.head_dim
        self.into = nn.Linear(width, 4 * width, bias=False)  # query, key, value, gate
        self.out = nn.Linear(width, width, bias=False)
        self.query_norm = CompleteMueNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else nn.Identity()
        self.key_norm = CompleteMueNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else nn.Identity()

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor, past: Any) -> Tensor:
        """x [batch, tokens, width]; mask [batch, 1, tokens, all tokens], True where a token may look."""
        query, key, value, gate = self.into(x).chunk(4, dim=-1)
        query, key, value = (part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in (query, key, value))
        query, key = rotate(self.query_norm(query), *rotary), rotate(self.key_norm(key), *rotary)
        if past is not None:
            key, value = past.update(key, value, self.layer)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.out(mixed.transpose(1, 2).flatten(-2) * torch.sigmoid(gate))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [batch, heads, tokens, head_dim], its two halves paired."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class CompleteMueSwiGlu(nn.Module):
    """down (silu(gate x) * value x); ``up`` holds gate rows, then value rows."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * hidden, bias=False), nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., width] -> the same shape."""
        gate, value = self.up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * value)


class CompleteMueExperts(nn.Module):
    """One group of routed experts."""

    def __init__(self, width: int, experts: int, active: int, hidden: int) -> None:
        super().__init__()
        self.active = active
        self.up = nn.Parameter(torch.empty(experts, 2 * hidden, width))
        self.down = nn.Parameter(torch.empty(experts, width, hidden))

    def forward(self, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        """x [tokens, width]; index, weight [tokens, active] -> the weighted sum, [tokens, width]."""
        y = torch.zeros(x.shape, dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
        for expert in index.unique().tolist():
            token, slot = torch.where(index == expert)
            gate, value = F.linear(x[token], self.up[expert]).chunk(2, dim=-1)
            output = F.linear(F.silu(gate) * value, self.down[expert])
            y.index_add_(0, token, (weight[token, slot, None] * output).to(y.dtype))
        return y.to(x.dtype)


class CompleteMueBlock(nn.Module):
    """Always-active branch and routed groups; either may be missing."""

    def __init__(self, config: CompleteMueConfig, branch: int, groups: list[list[int]]) -> None:
        super().__init__()
        width = config.hidden_size
        self.score = config.router_score
        self.branch = CompleteMueSwiGlu(width, branch) if branch else None
        self.experts = nn.ModuleList(CompleteMueExperts(width, *group) for group in groups)
        total = sum(group[0] for group in groups)
        self.router = nn.Parameter(torch.empty(total, width)) if groups else None
        self.router_bias = nn.Parameter(torch.zeros(total)) if groups and config.logit_bias else None
        bias = torch.zeros(total) if groups and config.selection_bias else None
        self.register_buffer("selection_bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, tokens, width] -> the same shape."""
        if self.router is None:
            assert self.branch is not None
            return self.branch(x)
        tokens = x.flatten(0, -2)
        y = self._routed(tokens)
        if self.branch is not None:
            y = y + self.branch(tokens)
        return y.view(x.shape)

    def _routed(self, tokens: Tensor) -> Tensor:
        assert self.router is not None
        wide = torch.promote_types(tokens.dtype, torch.float32)
        logits = tokens.to(wide) @ self.router.to(wide).T  # [tokens, experts of all groups]
        if self.router_bias is not None:
            logits = logits + self.router_bias.to(wide)
        order = logits
        if self.selection_bias is not None:
            order = (logits.sigmoid() if self.score == "sigmoid" else logits.softmax(-1)) + self.selection_bias
        sizes = [len(group.up) for group in self.experts]
        chosen = [
            part.topk(group.active, dim=-1).indices
            for part, group in zip(order.split(sizes, dim=-1), self.experts, strict=True)
        ]
        picked = [part.gather(-1, i) for part, i in zip(logits.split(sizes, dim=-1), chosen, strict=True)]
        scores = torch.cat(picked, dim=-1)
        weight = (F.logsigmoid(scores) if self.score == "sigmoid" else scores).softmax(-1)
        shares = weight.split([group.active for group in self.experts], dim=-1)
        parts = [group(tokens, i, w) for group, i, w in zip(self.experts, chosen, shares, strict=True)]
        return sum(parts[1:], parts[0])


class CompleteMueLayer(nn.Module):
    """One residual layer."""

    def __init__(self, config: CompleteMueConfig, number: int) -> None:
        super().__init__()
        self.attention_norm = CompleteMueNorm(config.hidden_size, config.rms_norm_eps)
        self.attention = CompleteMueAttention(config, number)
        self.feed_forward_norm = CompleteMueNorm(config.hidden_size, config.rms_norm_eps)
        self.feed_forward = CompleteMueBlock(config, **config.blocks[number])

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor, past: Any) -> Tensor:
        """x [batch, tokens, width] -> the same shape."""
        x = x + self.attention(self.attention_norm(x), rotary, mask, past)
        return x + self.feed_forward(self.feed_forward_norm(x))


class CompleteMueForCausalLM(PreTrainedModel, GenerationMixin):
    """Next-token logits."""

    config_class = CompleteMueConfig
    base_model_prefix = "model"
    _no_split_modules = ("CompleteMueLayer",)
    _supports_sdpa = True

    def __init__(self, config: CompleteMueConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(CompleteMueLayer(config, n) for n in range(config.num_hidden_layers))
        self.final_norm = CompleteMueNorm(config.hidden_size, config.rms_norm_eps)
        self.readout = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The table of tokens."""
        return self.embedding

    def get_output_embeddings(self) -> nn.Module:
        """The readout."""
        return self.readout

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """A plain default for a model made without weights, normal with std 1/sqrt(fan-in)."""
        for name, weight in module.named_parameters(recurse=False):
            if name == "router_bias":
                nn.init.zeros_(weight)
            elif weight.ndim == 1:  # of a norm
                nn.init.ones_(weight)
            else:
                nn.init.normal_(weight, std=1.0 if isinstance(module, nn.Embedding) else weight.shape[-1] ** -0.5)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **_: Any,
    ) -> CausalLMOutputWithPast:
        """input_ids [batch, tokens]; attention_mask [batch, all tokens], 0 at padding on either side."""
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        seen = past_key_values.get_seq_length() if past_key_values is not None else 0
        batch, tokens = input_ids.shape
        places = torch.arange(seen, seen + tokens, device=input_ids.device)
        x = self.embedding(input_ids)
        rotary = self._rotary(places[None] if position_ids is None else position_ids, x.dtype)
        mask = _mask(places, attention_mask, batch)
        for layer in self.layers:
            x = layer(x, rotary, mask, past_key_values)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.readout(self.final_norm(x[:, kept]))
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)

    def _rotary(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin, [batch, 1, tokens, head_dim / 2]; computed in float64, as in training."""
        size = self.config.head_dim
        powers = -torch.arange(0, size, 2, device=positions.device).double() / size
        angles = positions[:, None, :, None].double() * self.config.rope_theta**powers
        return angles.cos().to(dtype), angles.sin().to(dtype)


def _mask(places: Tensor, attention_mask: Tensor | None, batch: int) -> Tensor:
    """Who may look where: back, not at padding, and always at itself (so that no row is empty)."""
    everything = torch.arange(int(places[-1]) + 1, device=places.device)
    causal = everything[None, :] <= places[:, None]
    if attention_mask is None:
        return causal[None, None]
    if attention_mask.ndim != 2:
        raise ValueError(f"attention_mask has {attention_mask.ndim} axes: give [batch, tokens]")
    seen = attention_mask[:, None, None, : len(everything)].bool()
    return (causal & seen) | (everything[None, :] == places[:, None])
