"""One call of a verb: its settings, its preparation, its rounds of launches, and its judgement."""
