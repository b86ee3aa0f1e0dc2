"""Benchmarks whose results are records: what ran, where, how long, and what it was compared with."""
