"""``ddpperf init``: writes a first test file and a CI job for a project, based on its files."""
