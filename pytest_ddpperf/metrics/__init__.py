"""Computes the metrics of a measurement: a Series for each metric, with one sample for each launch."""
