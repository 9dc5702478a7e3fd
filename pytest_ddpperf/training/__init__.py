"""The code that runs on a rank: it builds a workload or a user's own step, warms it up and times it."""
