"""Frozen dataclasses of measurements, counts and verdicts. These modules import neither torch nor pytest."""
