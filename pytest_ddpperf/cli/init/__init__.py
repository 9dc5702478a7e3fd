"""``ddpperf init``: a first test file and a CI job for a project, from what its files say."""
