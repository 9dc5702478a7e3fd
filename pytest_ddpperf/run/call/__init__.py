"""One call of a verb: what it asks for, how it is prepared and launched in rounds, and what is judged of it."""
