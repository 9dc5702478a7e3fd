"""What ``benchmarks/verdicts_real.py`` is made of."""
