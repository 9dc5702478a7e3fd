"""What several benchmarks share: projects to throw away, runs of pytest and their results, a busy machine."""
