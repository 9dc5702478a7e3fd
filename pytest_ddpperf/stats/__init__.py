"""Summaries of steps, centers and intervals over launches: pure functions on numbers."""
