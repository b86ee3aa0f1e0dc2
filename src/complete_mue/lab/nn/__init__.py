"""Layers built from a layout: one feed-forward block for every case of the unified formula, and its router."""

from complete_mue.lab.nn.feed_forward import FeedForward
from complete_mue.lab.nn.router import GroupRun, RouterConfig, Routing, group_runs, route, update_bias

__all__ = ["FeedForward", "GroupRun", "RouterConfig", "Routing", "group_runs", "route", "update_bias"]
