"""Chrome traces of ranks: their contents, the differences of ranks' clocks, and the differences of two runs. Pure."""
