"""The example suite. Copy it, replace its models with yours, and run `pytest perf_tests --ddpperf-world-size=4`."""
