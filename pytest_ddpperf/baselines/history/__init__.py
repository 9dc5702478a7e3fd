"""The history of results: an SQLite file, its trend, and where the trend changed."""
