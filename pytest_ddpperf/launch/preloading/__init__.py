"""Imports modules once for all ranks, in copies of the process that forks ranks."""
