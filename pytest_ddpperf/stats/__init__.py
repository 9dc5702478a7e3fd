"""Summaries, intervals and spreads: pure functions on numbers."""
