"""One benchmark from the call of a verb to its result: launches, passes, rounds."""
