"""Sweeps: many runs, fused in one program where they have one shape."""
