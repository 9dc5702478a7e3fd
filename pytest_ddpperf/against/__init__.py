"""Comparison with another revision of the project: its worktree, its environment, its ranks."""
