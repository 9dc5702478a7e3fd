"""Turns a measurement into named series, each with one sample per launch that has the metric."""
