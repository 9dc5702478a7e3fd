"""Runs a few steps under torch's profiler; measures communication, computation, and how long both overlap."""
