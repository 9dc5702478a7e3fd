"""The progress of a running benchmark: its text, and its display at the end of the terminal's current line."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from statistics import fmean
from typing import Any

from pytest_ddpperf.records.launch import Launch

_LEAST_ROOM = 20  # columns; in less, nothing useful can be said


def progress_line(
    name: str, launch: int, of: int, elapsed: float, expected: float | None, *, last: Launch | None = None
) -> str:
    """Returns a benchmark's progress as text: ``ddp: launch 3 of 8, 12 s of about 31 s``.

    ``last``: the newest launch, whose mean loss and learning rate are added if they are known.
    """
    line = f"{name}: launch {launch} of {of}, {elapsed:.0f} s"
    if expected is not None:
        line += f" of about {max(expected, elapsed):.0f} s"
    ranks = () if last is None else last.ranks
    if losses := [rank.loss for rank in ranks if rank.loss is not None]:
        line += f", loss {fmean(losses):.4g}"
    if ranks and ranks[0].learning_rate is not None:
        line += f", learning rate {ranks[0].learning_rate:.4g}"
    return line


class LiveLine:
    """The text at the end of the terminal's line while a test or a command measures; shown only on a terminal."""

    def __init__(self, reporter: Any, capture: Any, *, watched: bool = False) -> None:
        """Stores pytest's reporter and capture manager. If these are None, ``watched`` says if stdout is a terminal."""
        self._reporter: Any = reporter
        self._capture = capture
        self._watched: bool = watched if reporter is None else reporter.isatty
        self._shown = 0
        self._lock = threading.Lock()  # launches of both sides have a thread each

    def show(self, text: str) -> None:
        """Shows a text in place of the previous one."""
        if not self._watched:
            return
        text = self._unsaid(text)
        with self.uncaptured():  # what is captured has the width of no terminal
            begun = 0 if self._reporter is None else self._reporter.config.get_terminal_writer().width_of_current_line
        room = self.width - begun - 2  # a space before, and none wraps
        if room < _LEAST_ROOM:
            return
        self._write(" " + (text if len(text) <= room else f"...{text[3 - room :]}"))

    def clear(self) -> None:
        """Removes the text, so that the line is as pytest wrote it."""
        if self._shown:
            self._write("")

    @property
    def tells_more(self) -> bool:
        """Returns whether pytest was started with ``-v``, so that its output is verbose."""
        return self._reporter is not None and self._reporter.config.get_verbosity() > 0

    @property
    def width(self) -> int:
        """The number of columns of the terminal; 80 if there is no terminal."""
        if self._reporter is None:
            return shutil.get_terminal_size().columns
        with self.uncaptured():  # what is captured has the width of no terminal
            width: int = self._reporter.config.get_terminal_writer().fullwidth
        return width

    @property
    def echoes(self) -> bool:
        """Returns whether pytest shows what tests print while they run (``-s``)."""
        return self._reporter is not None and self._reporter.config.getoption("capture", "no") == "no"

    def echo(self, rank: int, lines: Iterable[str], *, who: str = "rank") -> None:
        """Prints lines of a rank, each after a label such as ``[rank 0]``; ``who``: the word before the number."""
        with self._lock:
            self.clear()
            self._reporter.ensure_newline()
            sys.stdout.write("".join(f"[{who} {rank}] {line}\n" for line in lines))
            sys.stdout.flush()

    def _unsaid(self, text: str) -> str:
        """Returns the text without the part that pytest has already printed: the test's id with -v, else its file."""
        said = getattr(self._reporter, "currentfspath", None)
        if isinstance(said, str):
            return text.removeprefix(said)
        return text if said is None else text.partition("::")[2] or text

    def uncaptured(self) -> AbstractContextManager[None]:
        """Returns a context in which output bypasses pytest's capturing."""
        return nullcontext() if self._capture is None else self._capture.global_and_fixture_disabled()

    def _write(self, text: str) -> None:
        """Replaces the shown text: moves back, overwrites it with blanks, moves back again, and writes."""
        erased = "\b" * self._shown + " " * self._shown + "\b" * self._shown
        # Past pytest's writer, which counts columns to place its percentages, but not past what it still holds back.
        if self._reporter is not None:
            self._reporter.flush()
        with self.uncaptured():
            sys.stdout.write(erased + text)
            sys.stdout.flush()
        self._shown = len(text)


def command_line() -> LiveLine:
    """Returns the live line of a command outside of pytest; it shows nothing if its output is no terminal."""
    return LiveLine(None, None, watched=sys.stdout.isatty())
