"""pytest hooks and fixtures, and nothing else."""
