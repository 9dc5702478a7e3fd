"""JSON files that people review: rendered for small diffs and replaced in one piece."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_WIDTH = 100
_INDENT = "  "


def rounded(value: float) -> float:
    """The value to nine significant digits: more than any measurement holds, and short to write down."""
    return float(f"{value:.9g}")


def render(value: Any) -> str:
    """JSON text with sorted keys; a list of scalars, and what is short, is one line; ValueError on NaN and infinity."""
    return _lines(value, "") + "\n"


def _lines(value: Any, indent: str) -> str:
    if not isinstance(value, (Mapping, list)) or not value:
        return _flat(value)
    items = list(value.values()) if isinstance(value, Mapping) else value
    if not any(isinstance(item, (Mapping, list)) for item in items):
        flat = _flat(value)
        if isinstance(value, list) or len(indent) + len(flat) <= _WIDTH:
            return flat
    deeper = indent + _INDENT
    if isinstance(value, Mapping):
        parts = [f"{_flat(key)}: {_lines(value[key], deeper)}" for key in sorted(value)]
    else:
        parts = [_lines(item, deeper) for item in value]
    opening, closing = "{}" if isinstance(value, Mapping) else "[]"
    body = f",\n{deeper}".join(parts)
    return f"{opening}\n{deeper}{body}\n{indent}{closing}"


def _flat(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)


def replace_file(path: Path, text: str) -> None:
    """Writes a file so that every reader, and a crash at any moment, sees the old content or the new, whole."""
    # Beside the target, for only within one file system a rename is atomic; a hidden name, ignored by all readers.
    # Not by tempfile, whose files only their owner may read: the user's umask decides.
    draft = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.tmp")
    try:
        with draft.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
