"""The machine's health during a launch, seen from the controller: the ranks do nothing for it. Imports no torch."""
