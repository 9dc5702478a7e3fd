"""The ways to train over several ranks: a table of their names, and one file each that says how."""
