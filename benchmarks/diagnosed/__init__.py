"""Trainings with a planted bottleneck, which their names tell; see ``benchmarks/diagnosis.py``."""
