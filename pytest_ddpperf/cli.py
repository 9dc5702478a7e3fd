"""The ddpperf command."""
