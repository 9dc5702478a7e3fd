"""The only place that makes a verdict: compares series with a reference, metric by metric."""
