"""Imports the modules that ranks need once for all ranks, in copies of the process that forks ranks."""
