"""Frozen records of everything measured, counted and judged. Imports neither torch nor pytest."""
