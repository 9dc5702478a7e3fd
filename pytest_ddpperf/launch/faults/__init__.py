"""Which rank has failed or hangs, why, and in what words: exceptions, ends, stacks, collectives."""
