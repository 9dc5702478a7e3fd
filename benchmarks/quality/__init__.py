"""What ``benchmarks/decision.py`` is made of: simulated launches and the verdicts on them."""
