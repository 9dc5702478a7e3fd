"""The type of what runs the command in tests."""

from __future__ import annotations

from collections.abc import Callable

Run = Callable[..., str]
"""Takes the words of a command line and its expected exit status; gives back what is printed."""
