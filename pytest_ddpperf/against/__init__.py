"""Comparison of the project with another revision: the revision's files, virtual environment and ranks."""
