"""Frozen records of all measurements, counts and verdicts. They import neither torch nor pytest."""
