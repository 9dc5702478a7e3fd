"""A measurement becomes named series, each with a sample for each launch that has the metric."""
