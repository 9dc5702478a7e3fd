"""One rank of a group of any size, in one process: its step is counted or timed without other ranks."""
