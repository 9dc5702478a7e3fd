"""``ddpperf bisect``: finds the commit that made a benchmark worse."""
