"""Summaries, intervals, the verdict and the rule that adds launches: pure functions on numbers."""
