"""Exact transfer rules: ratios, the layer table, schedule, SDE report, routing factor, and the named rule sets."""

from complete_mue.rules.catalog import CATALOG, DEFAULT_RULES, Rules, register_rules
from complete_mue.rules.ratios import Ratios
from complete_mue.rules.sde import LoadSde, Sde

__all__ = ["CATALOG", "DEFAULT_RULES", "LoadSde", "Ratios", "Rules", "Sde", "register_rules"]
