"""A few steps under torch's profiler: the communication, its times, and the simultaneous computation."""
