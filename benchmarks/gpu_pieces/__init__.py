"""The pieces of ``benchmarks/gpu.py``: each answers one question on a machine with GPUs, in less than ten minutes."""
