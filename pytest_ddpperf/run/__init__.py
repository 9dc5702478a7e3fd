"""One benchmark from the call of a verb to its result, in four rooms."""
