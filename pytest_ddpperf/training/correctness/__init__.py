"""Verifies that a strategy trains what a single process would have trained. Importing this package imports no torch."""
