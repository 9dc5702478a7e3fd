"""What several benchmarks share: steps, simulated launches and their verdicts, and runs of pytest."""
