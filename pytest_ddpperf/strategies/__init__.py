"""Strategies for training on several ranks: a table, the hand-written strategies, and a module for each of torch's."""
