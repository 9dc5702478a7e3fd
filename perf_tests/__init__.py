"""The example suite: copy it, put your own models in, and run `pytest perf_tests --ddpperf-world-size=4`."""
