"""Layers built from a layout: one feed-forward block for every case of the unified formula, and its router."""
