"""Runs and judges one benchmark: from the call of ``check``, or another method of the fixture, to the result."""
