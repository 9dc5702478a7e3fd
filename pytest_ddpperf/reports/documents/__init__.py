"""Types of JSON reports: type checkers compare the builders with them, and published schemas are made from them."""
