"""Interprets measured figures: the diagnosis of a step, traces, and laws of scaling; pure, each with its source."""
