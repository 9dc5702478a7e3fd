"""Stored measurements: which environment they belong to, how they are written down, where they lie."""
