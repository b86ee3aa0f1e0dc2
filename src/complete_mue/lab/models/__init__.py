"""Proxy models, built from a ModelShape and a plan."""

from complete_mue.lab.models.dit import DiffusionTransformer
from complete_mue.lab.models.lm import LanguageModel

__all__ = ["DiffusionTransformer", "LanguageModel"]
