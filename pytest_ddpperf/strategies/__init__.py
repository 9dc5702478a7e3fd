"""The ways to train over several ranks: a table of their names, and one file for each."""
