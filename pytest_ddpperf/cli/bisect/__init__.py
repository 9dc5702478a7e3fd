"""``ddpperf bisect``: the commit that made a benchmark worse."""
