"""What ranks import is imported once, in copies of the process that they are forked from."""
