"""One call of ``check`` or another method of the fixture: its settings, preparation, rounds of launches, judgement."""
