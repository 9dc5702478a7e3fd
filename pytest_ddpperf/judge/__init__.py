"""The only package that makes verdicts: compares each metric of a measurement with the reference."""
