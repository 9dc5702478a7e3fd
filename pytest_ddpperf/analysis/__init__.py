"""Interprets measured figures: the diagnosis of a step, traces, and laws of scaling. Pure functions with sources."""
