"""The diagnosed pass: the time of a step, phase by phase. Importing this package imports no torch."""
