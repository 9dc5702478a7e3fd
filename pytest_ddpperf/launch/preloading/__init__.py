"""Imports the modules that ranks need only once, in copies of the process that forks ranks."""
