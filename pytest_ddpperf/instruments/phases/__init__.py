"""The diagnosis: divides the time of a step into phases. Importing this package imports no torch."""
