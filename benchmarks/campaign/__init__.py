"""A campaign of random faults: what ranks do wrong, and what the report says of it."""
