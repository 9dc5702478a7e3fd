"""The history of results: an SQLite file, its trend, and the changes of the trend."""
