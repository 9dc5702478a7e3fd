"""What was measured, as text and files: one table with its renderers, failure texts, JSON."""
