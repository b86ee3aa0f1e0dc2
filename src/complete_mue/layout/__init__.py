"""What a model is: notation, shape, budget, roles, reference. Plain data, validated when made."""

from complete_mue.layout.notation import FeedForward, Parameters, RoutedGroup
from complete_mue.layout.reference import Hyper, Reference, Tuned
from complete_mue.layout.shape import Budget, ModelShape
from complete_mue.layout.tensors import Role, TensorSpec
from complete_mue.layout.toml_files import read_reference, read_target

__all__ = [
    "Budget",
    "FeedForward",
    "Hyper",
    "ModelShape",
    "Parameters",
    "Reference",
    "Role",
    "RoutedGroup",
    "TensorSpec",
    "Tuned",
    "read_reference",
    "read_target",
]
