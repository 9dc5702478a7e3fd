"""Files for other tools and for readers: each module writes the results document in one format."""
