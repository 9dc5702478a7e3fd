"""The ways to train over several ranks: a table of names, the hand-written ones, and a file for each of torch's."""
