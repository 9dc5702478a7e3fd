"""Strategies for training on several ranks: a table, hand-written strategies, and modules that wrap torch's own."""
