"""Computes the metrics of a measurement: for each metric a Series, with one sample for each launch that has it."""
