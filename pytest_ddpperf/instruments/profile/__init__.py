"""A few steps under torch's profiler: what was sent when, and what was computed meanwhile."""
