"""The command ``ddpperf``."""
