"""One rank of a group of any size, in one process: what its step does is counted, and nobody measures a time."""
