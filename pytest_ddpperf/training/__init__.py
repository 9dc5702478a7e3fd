"""What runs on a rank: a workload or a user's own step, warmed up and timed."""
