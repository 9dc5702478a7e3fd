"""Counts the work of a step by watching its operators, modules and optimizers, without a clock. Needs torch."""
