"""What reads a figure on a rank or its host. No instrument runs in a step that is timed."""
