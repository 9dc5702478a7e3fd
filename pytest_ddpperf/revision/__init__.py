"""The other side of a comparison of two revisions: its files, and how ranks come to import those and no others."""
