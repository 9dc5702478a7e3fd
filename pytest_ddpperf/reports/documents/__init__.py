"""The types of JSON reports, from which the published JSON schemas are made; and code that writes and reads reports."""
