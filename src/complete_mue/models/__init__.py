"""Proxy models, built from a ModelShape and a plan."""

from complete_mue.models.dit import DiffusionTransformer
from complete_mue.models.lm import LanguageModel

__all__ = ["DiffusionTransformer", "LanguageModel"]
