"""Finding the commit that made a benchmark worse."""
