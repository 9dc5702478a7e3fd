"""One benchmark from the call of a verb, such as ``check``, to its result."""
