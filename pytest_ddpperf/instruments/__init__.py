"""The code that reads figures on a rank or its host. No instrument runs in a step that is timed."""
