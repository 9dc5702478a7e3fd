"""The only place that makes a verdict: series beside a reference, metric by metric."""
