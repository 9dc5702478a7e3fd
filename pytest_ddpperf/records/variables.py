"""Environment variables that only some ranks have."""

from __future__ import annotations

from collections.abc import Mapping


def variables(value: object) -> tuple[tuple[str, str], ...]:
    """Parses variables with texts or numbers, ``{"NCCL_ALGO": "Ring"}``, to sorted (name, text) pairs."""
    given = dict(value) if isinstance(value, Mapping) else {"": None}
    named = all(isinstance(name, str) and name and not {"=", "\0"} & {*name} for name in given)
    texts = (isinstance(text, (str, int, float)) and not isinstance(text, bool) for text in given.values())
    if not named or not all(texts) or any("\0" in str(text) for text in given.values()):
        raise ValueError("environment variables by name, with texts or numbers, such as {'NCCL_ALGO': 'Ring'}")
    return tuple(sorted((name, str(text)) for name, text in given.items()))
