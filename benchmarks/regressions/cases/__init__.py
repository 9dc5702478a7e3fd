"""One public regression a file."""
