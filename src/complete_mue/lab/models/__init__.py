"""Proxy models, built from a ModelShape and a plan."""

from complete_mue.lab.models.dit import DiffusionTransformer
from complete_mue.lab.models.lm import LanguageModel, next_token_loss

__all__ = ["DiffusionTransformer", "LanguageModel", "next_token_loss"]
