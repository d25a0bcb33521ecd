"""Benchmarks: fixed workloads, timed in processes of their own and side by side.

What is imported here and by `fedjax_mm.bench.measure` does without JAX: the process that compares stays small, since a
process it starts counts the memory it had at that moment as its own peak.
"""
