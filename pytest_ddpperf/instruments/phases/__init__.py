"""The diagnosed pass: where the time of a step goes, phase by phase. Importing this package imports no torch."""
