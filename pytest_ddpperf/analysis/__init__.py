"""Interprets measured figures: the diagnosis of a step, traces, and laws of scaling. All functions are pure."""
