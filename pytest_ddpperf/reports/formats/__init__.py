"""Files for other tools and for readers: each module renders the results document in one kind."""
