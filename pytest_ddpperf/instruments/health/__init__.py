"""The machine's health during a launch, read by the controller; the ranks do nothing for it. Imports no torch."""
