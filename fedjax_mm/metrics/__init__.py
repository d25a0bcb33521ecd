"""Metrics from additive counts, selection of rounds and paired statistics, on the host."""
