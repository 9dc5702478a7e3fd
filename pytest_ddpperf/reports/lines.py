"""Lines for a terminal: no control characters, none wider than the terminal, names whole."""

from __future__ import annotations

import re
from collections.abc import Sequence
from unicodedata import category, east_asian_width

INDENT = "  "
JOINED = "\u00a0"  # a space that no line is broken at
CUT = "..."
_LONGEST = 600  # characters of a remark: none of our own is longer, and what a rank raises is told in full elsewhere
_NUMBER = re.compile(r"(?<=\d) (?=[%A-Za-z])")  # the space between a number and what it counts
LABEL = 11  # columns of the label of a paragraph
_NAMED = 3  # benchmarks with the same remark


def printable(text: str) -> str:
    r"""The text with an escape for each control character: a terminal's ESC is ``\x1b``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def wrapped(lines: Sequence[str], width: int | None) -> list[str]:
    """The lines, broken where they are longer than ``width``; what follows is indented. None: as they are."""
    lines = [printable(line) for line in lines]
    return lines if width is None else [part for line in lines for part in _broken(line, width)]


def clipped(line: str, width: int | None) -> list[str]:
    """A remark, broken where it is longer than ``width``, without what is beyond ``_LONGEST`` characters."""
    line = printable(line)
    return wrapped([line if width is None or len(line) <= _LONGEST else line[: _LONGEST - len(CUT)] + CUT], width)


def columns(text: str) -> int:
    """Returns how many columns of a terminal a text takes: a wide character two, one that joins another none."""
    if text.isascii():
        return len(text)
    return sum(0 if category(each) in {"Mn", "Me"} else 1 + (east_asian_width(each) in "WF") for each in text)


def folded(line: str, width: int, indent: str = "") -> list[str]:
    """A line in parts of at most so many columns; only a word that is longer is broken."""
    parts, width = [""], max(width, columns(indent) + 2)
    for i, word in enumerate(line.split(" ")):
        longer = f"{parts[-1]} {word}" if i else word
        if columns(longer) > width and parts[-1].strip():
            if not word:
                continue
            parts[-1] = parts[-1].rstrip(" ")
            parts.append(longer := indent + word)
        parts[-1] = longer
        while columns(parts[-1]) > width:
            fits = next(end for end in range(width, 0, -1) if columns(parts[-1][:end]) <= width)
            parts[-1:] = [parts[-1][:fits], indent + parts[-1][fits:]]
    return parts


def labelled(label: str, text: str, width: int) -> list[str]:
    """A paragraph behind its label, below which its other lines leave room."""
    kept = _NUMBER.sub(JOINED, f"{label:<{LABEL}}{printable(text)}")
    return [part.replace(JOINED, " ") for part in folded(kept, width, " " * LABEL)]


def command(label: str, text: str, width: int) -> list[str]:
    """A command behind its label, in lines that a shell takes as one."""
    first, *options = printable(text).split(" --")
    lines = [f"{label:<{LABEL}}{first}"]
    for option in options:
        longer = f"{lines[-1]} --{option}"
        lines[-1:] = [longer] if len(longer) + 2 <= width else [f"{lines[-1]} \\", f"{'':{LABEL}}--{option}"]
    return lines


def cut_after(most: int | None, lines: Sequence[str], width: int) -> list[str]:
    """The first lines of a paragraph, with dots where more follow; None: all."""
    if most is None or len(lines) <= most:
        return list(lines)
    return [*lines[: most - 1], f"{folded(lines[most - 1], width - len(CUT) - 1)[0]} {CUT}"]


def _broken(line: str, width: int) -> list[str]:
    inner = INDENT * (2 if line.startswith(INDENT) else 1)
    kept = _NUMBER.sub(JOINED, line)
    return [part.replace(JOINED, " ") for part in folded(kept, max(width, len(inner) + 1), inner)]


def words_of(names: Sequence[str]) -> str:
    """Names in a row: ``forward, backward and optimizer``."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def whom(names: Sequence[str], of: int) -> str:
    """Those of so many benchmarks that a remark concerns: all, or half of them and more by their number, or by name."""
    if len(names) == of > 1:
        return "both benchmarks" if of == 2 else f"all {of} benchmarks"  # noqa: PLR2004
    if len(names) > _NAMED and 2 * len(names) >= of:
        return f"{len(names)} of {of} benchmarks"
    if len(names) <= _NAMED:
        return ", ".join(names)
    return f"{', '.join(names[: _NAMED - 1])} and {len(names) - _NAMED + 1} more"
