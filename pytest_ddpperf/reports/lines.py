"""Lines for a terminal: no control characters, none wider than the terminal, names cut in the middle."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

INDENT = "  "
JOINED = "\u00a0"  # a space that no line is broken at
CUT = "..."
_LONGEST = 600  # characters of a remark: none of our own is longer, and what a rank raises is told in full elsewhere
_NUMBER = re.compile(r"(?<=\d) (?=[%A-Za-z])")  # the space between a number and what it counts
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


def folded(line: str, width: int, indent: str = "") -> list[str]:
    """A line in parts of at most so many characters; only a word that is longer is broken."""
    return textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False) or [""]


def _broken(line: str, width: int) -> list[str]:
    inner = INDENT * (2 if line.startswith(INDENT) else 1)
    kept = _NUMBER.sub(JOINED, line)
    return [part.replace(JOINED, " ") for part in folded(kept, max(width, len(inner) + 1), inner)]


def shortened(names: Iterable[str], width: int) -> dict[str, str]:
    """Each name in at most so many characters, a longer one cut in the middle; different names stay different."""
    every = dict.fromkeys(names)
    long = [name for name in every if len(name) > width]
    kept = {name: name for name in every if len(name) <= width}
    if not long:
        return kept
    room = max(width - len(CUT), 2)
    # The end of a test's id has its parameters, which tell more than its beginning.
    for head in sorted(range(room), key=lambda head: abs(head - room // 3)):
        cut = {name: name[:head] + CUT + name[len(name) - room + head :] for name in long}
        if len({*kept.values(), *cut.values()}) == len(every):
            return kept | cut
    return kept | _cut_where_different(long, room)


def _cut_where_different(names: Sequence[str], room: int) -> dict[str, str]:
    """Names that differ in the middle alone: cut before they differ, and numbered where that tells too little."""
    head, start = room // 3, next(i for i, letters in enumerate(zip_longest(*names)) if len(set(letters)) > 1)
    cut = {name: name[:head] + CUT + name[max(start, head) :][: room - head] for name in names}
    if len(set(cut.values())) == len(names):
        return cut
    return {name: f"{name[: room - len(str(number))]}{CUT}{number}" for number, name in enumerate(names, 1)}


def words_of(names: Sequence[str]) -> str:
    """Names in a row: ``forward, backward and optimizer``."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def whom(names: Sequence[str], of: int, short: Mapping[str, str] | None = None, width: int | None = None) -> str:
    """Those of so many benchmarks that a remark concerns: all, or half of them and more by their number, or by name."""
    if len(names) == of > 1:
        return "both benchmarks" if of == 2 else f"all {of} benchmarks"  # noqa: PLR2004
    if len(names) > _NAMED and 2 * len(names) >= of:
        return f"{len(names)} of {of} benchmarks"
    shown = [(short or {}).get(name, name) for name in names]
    named = min(len(shown), _NAMED)
    while named > 1 and width is not None and len(", ".join(shown[:named])) > width * 2 // 3:
        named -= 1
    if named == len(shown):
        return ", ".join(shown)
    if len(shown) > _NAMED == named:
        named -= 1
    return f"{', '.join(shown[:named])} and {len(shown) - named} more"
