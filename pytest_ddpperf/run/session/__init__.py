"""The resources, settings and reports of a pytest session."""
