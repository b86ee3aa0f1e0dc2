"""A plan on a model: bind, initialize, parameter groups, checks. For any nn.Module."""

from complete_mue.apply.bind import Binding, bind, describe, normalize_routing, probe
from complete_mue.apply.families import FAMILIES
from complete_mue.apply.family import Family
from complete_mue.apply.initialize import initialize
from complete_mue.apply.optim import check_scheduler, clip_grad_norm_, param_groups
from complete_mue.apply.probe import Seen
from complete_mue.apply.seen_routing import Routing

__all__ = [
    "FAMILIES",
    "Binding",
    "Family",
    "Routing",
    "Seen",
    "bind",
    "check_scheduler",
    "clip_grad_norm_",
    "describe",
    "initialize",
    "normalize_routing",
    "param_groups",
    "probe",
]
