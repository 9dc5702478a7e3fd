"""pytest-ddpperf: the speed, memory and scaling of distributed PyTorch training as tests that pass or fail."""
