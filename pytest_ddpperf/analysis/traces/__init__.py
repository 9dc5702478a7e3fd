"""Chrome traces of ranks: what is in them, how their clocks differ, how two runs differ. Pure."""
