"""Results as texts and files: one table with several renderers, failure texts, and JSON."""
