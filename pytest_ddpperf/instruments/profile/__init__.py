"""Runs a few steps under torch's profiler: finds communication, its times, and the computation at the same time."""
