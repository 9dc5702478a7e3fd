"""Finds which rank has failed or hangs, and why, and describes it: exceptions, exits, stacks, collectives."""
