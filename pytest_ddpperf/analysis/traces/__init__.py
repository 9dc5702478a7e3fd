"""Chrome traces of ranks: reads them, aligns the ranks' clocks, and compares two runs. Pure functions."""
