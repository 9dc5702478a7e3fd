"""Simulates one rank of a group of any size in one process: counts or times its step without other ranks."""
