"""Stored measurements: their environments, their format and their files."""
