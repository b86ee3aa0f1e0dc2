"""Real autoencoders (``diffusers``) and text encoders (``transformers``), loaded without pickle, at unit scale."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from complete_mue.errors import FileError
from complete_mue.lab.data.extras import in_our_words, need

_ADVICE = "give a local folder with config.json and .safetensors weights, or a name on the hub"


def fingerprint(module: nn.Module) -> str:
    """Checksum of all weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


class Autoencoder:
    """Pixels in [-1, 1] to latents of about unit size, and back.

    ``module`` follows ``diffusers``: ``encode(x)`` gives ``latent_dist`` or ``latent``, ``decode(z)`` gives
    ``sample``; ``config`` may say how latents are scaled. Of a distribution the mode is taken, so that a cache is
    the same every time.
    """

    def __init__(self, module: nn.Module, name: str | None = None) -> None:
        self.module, self.name = module.eval().requires_grad_(False), name or type(module).__name__

    @classmethod
    def load(cls, name: str | Path, *, device: str | torch.device = "cpu") -> Autoencoder:
        """From a local folder or the hub."""
        library = need("diffusers", f"the autoencoder {str(name)!r}")
        with in_our_words(f"autoencoder {str(name)!r}: cannot be loaded", _ADVICE):
            module = library.AutoModel.from_pretrained(str(name), use_safetensors=True)
        if not hasattr(module, "encode") or not hasattr(module, "decode"):
            raise FileError(f"autoencoder {str(name)!r}: a {type(module).__name__} has no encode and decode")
        return cls(module.to(device), str(name))

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Latents of pixels [rows, channels, (frames,) height, width]."""
        weight = next(self.module.parameters())
        with in_our_words(f"autoencoder {self.name}: cannot encode images of shape {list(images.shape)}"):
            encoded: Any = self.module.encode(images.to(weight.device, weight.dtype))
        if hasattr(encoded, "latent_dist"):
            encoded = encoded.latent_dist.mode()
        latents: Tensor = getattr(encoded, "latent", getattr(encoded, "latents", encoded)).float()
        shift, scale = self._scale(latents)
        return (latents - shift) * scale

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Pixels of latents, clipped to [-1, 1]."""
        weight = next(self.module.parameters())
        shift, scale = self._scale(latents)
        decoded: Any = self.module.decode((latents / scale + shift).to(weight.device, weight.dtype))
        images: Tensor = getattr(decoded, "sample", decoded)
        return images.float().clamp(-1, 1)

    def _scale(self, latents: Tensor) -> tuple[Tensor | float, Tensor | float]:
        """Shift and factor to unit size, as the model's config gives them: for all channels, or for each."""
        config: Any = getattr(self.module, "config", {})
        get = config.get if isinstance(config, Mapping) else lambda key: getattr(config, key, None)
        mean, std = get("latents_mean"), get("latents_std")
        if mean is not None and std is not None:
            view = (1, -1, *(1,) * (latents.ndim - 2))
            return latents.new_tensor(mean).view(view), 1 / latents.new_tensor(std).view(view)
        return get("shift_factor") or 0.0, get("scaling_factor") or 1.0


class TextEncoder:
    """Captions to the last hidden states of a text model."""

    def __init__(self, model: nn.Module, tokenizer: Any, name: str | None = None) -> None:
        self.module, self.tokenizer = model.eval().requires_grad_(False), tokenizer
        self.name = name or type(model).__name__
        self.tokenizer.padding_side = "right"
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token

    @classmethod
    def load(cls, name: str | Path, *, device: str | torch.device = "cpu") -> TextEncoder:
        """From a local folder or the hub: an encoder such as T5 or CLIP, or any model with hidden states."""
        library = need("transformers", f"the text encoder {str(name)!r}")
        with in_our_words(f"text encoder {str(name)!r}: cannot be loaded", _ADVICE):
            config = library.AutoConfig.from_pretrained(str(name))
            known = type(config) in library.MODEL_FOR_TEXT_ENCODING_MAPPING
            kind = library.AutoModelForTextEncoding if known else library.AutoModel
            model = kind.from_pretrained(str(name), use_safetensors=True)
            model = getattr(model, "text_model", model)
            if getattr(model.config, "is_encoder_decoder", False) and hasattr(model, "get_encoder"):
                model = model.get_encoder()
            tokenizer = library.AutoTokenizer.from_pretrained(str(name))
        return cls(model.to(device), tokenizer, str(name))

    @torch.no_grad()
    def encode(self, captions: Sequence[str], length: int) -> tuple[Tensor, Tensor]:
        """Features [rows, length, size], zero after the last token, and the number of tokens of each row."""
        tokens = self.tokenizer(
            list(captions), padding="max_length", truncation=True, max_length=length, return_tensors="pt"
        )
        device = next(self.module.parameters()).device
        ids, mask = tokens["input_ids"].to(device), tokens["attention_mask"].to(device)
        hidden: Tensor = self.module(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        return hidden * mask[..., None], mask.sum(-1)
