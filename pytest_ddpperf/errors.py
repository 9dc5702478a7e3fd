"""The errors of this plugin, whose messages begin with one clear sentence, and checks of arguments that raise them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

E = TypeVar("E", bound="DdpperfError")
PACKAGE = __file__.removesuffix("errors.py")  # begins the path of each of our files
_LONGEST = 400  # characters of an exception's message in a sentence
NOT_MEASURED = 10  # pytest's exit status if nothing was found worse but not all was measured; its own statuses end at 6


class DdpperfError(Exception):
    """The base class of the errors that this plugin raises on purpose; ``benchmark`` names the failed benchmark.

    The plugin shows only the text of such an error: first the problem, then the cure, then the line of the test.

    Attributes:
        benchmark: name and number of ranks of the benchmark that failed; None if unknown.
        sections: titles and texts of the ranks' output, for the test's report.
        where: the innermost line of the user's code on the rank that failed, as ``file:line in function``; or empty.
    """

    where = ""

    def __init__(
        self, message: str, *, benchmark: tuple[str, int] | None = None, sections: Sequence[tuple[str, str]] = ()
    ) -> None:
        super().__init__(message)
        self.benchmark = benchmark
        self.sections = tuple(sections)

    @property
    def headline(self) -> str:
        """The first line of the message, which names the problem without the cure and the details."""
        first, *others = str(self).split("\n")
        return f"{first} {next(filter(None, map(str.strip, others)), '')}".rstrip() if first.endswith(":") else first

    @property
    def summary(self) -> str:
        """The headline, with the line of the user's code that failed on a rank, if it is known."""
        return f"{self.headline} ({self.where.partition(' ')[0]})" if self.where else self.headline


def hidden(excinfo: Any) -> bool:
    """Returns whether pytest hides the plugin's frames; modules assign this function to ``__tracebackhide__``.

    The frames are shown only if the plugin's own code raised an error that is no DdpperfError.
    """
    entry = excinfo.tb
    while entry.tb_next is not None:
        entry = entry.tb_next
    ours = not isinstance(excinfo.value, Exception) or isinstance(excinfo.value, DdpperfError)
    return ours or not entry.tb_frame.f_code.co_filename.startswith(PACKAGE)


def in_a_line(error: BaseException) -> str:
    """Returns an exception's class and the first line of its message, shortened if long; never raises."""
    try:
        message = str(error).strip().partition("\n")[0]
    except BaseException as second:  # noqa: BLE001  a __str__ may raise anything
        message = f"(and {type(second).__name__} while its text was formatted)"
    return f"{type(error).__name__}{': ' * bool(message)}{message[:_LONGEST]}{'...' * (len(message) > _LONGEST)}"


def reason(report: Any, error: BaseException | None) -> str:
    """Returns why a test failed, in one line, from pytest's report and the raised error; empty if it did not fail."""
    words = str(report.longrepr) if error is None else in_a_line(error)
    return (error.headline if isinstance(error, DdpperfError) else words) if report.failed else ""


def extended(error: E, *, before: str = "", after: str = "", benchmark: tuple[str, int] | None = None) -> E:
    """Returns a copy of an error, with text around its message, or with the failed benchmark's name and ranks."""
    made = type(error).__new__(type(error), f"{before}{error}{after}")  # kinds have different arguments; facts follow
    vars(made).update(vars(error))
    made.benchmark = benchmark or error.benchmark
    return made.with_traceback(error.__traceback__)


class FoundWrong(DdpperfError):
    """Raised if a result is wrong or worse than required; running the test again would not change that.

    If a test fails with another DdpperfError, the benchmark has no result.
    """


class SettingError(DdpperfError):
    """Raised if a setting has an invalid value; the message names the setting, the value and the possible values."""


class PayloadError(DdpperfError):
    """Raised if processes cannot exchange a function or a result; the message names the object and the reason."""


class WorkloadError(DdpperfError):
    """Raised for a mistake in the user's model, step or script, such as a step that is not callable, or a NaN loss."""


class TrainingEnded(WorkloadError):
    """Raised if a script trains for fewer steps than the benchmark needs."""


class IncorrectTraining(FoundWrong):
    """Raised if a strategy computes other values than a single process; the message names parameter, rank and error."""

    def __init__(self, message: str, *, wrong: Mapping[tuple[str, int], str]) -> None:
        super().__init__(message)
        self.wrong = wrong  # by benchmark, the reason in one line

    @property
    def causes(self) -> list[str]:
        """Texts on the first incorrect benchmark: the likely cause, if it is known, and how the values differ."""
        seen, _, cause = self.headline.removeprefix("broken: ").partition("; likely cause: ")
        cause, _, extent = cause.partition("; ")
        return [*filter(None, [cause]), "; ".join(filter(None, (seen, extent)))]

    @property
    def summary(self) -> str:
        """The difference of the first incorrect benchmark's values, and the likely cause if it is known."""
        *likely, seen = self.causes
        return ": ".join([seen.partition(":")[0], *likely]) if likely else seen


class LaunchError(DdpperfError):
    """Raised if ranks cannot start: torch cannot be imported, the backend does not exist, or devices are missing."""


class RankFailed(DdpperfError):
    """Raised if a rank raises, exits, is killed or blocks; the message starts with this rank and the reason.

    Attributes:
        rank: the global rank that failed first; None if no single rank is to blame.
        stack: the part of the message with the traceback or stack of the first rank.
        others: the part of the message with the stacks of other ranks.
        out_of_memory: whether a rank failed because memory ran out: it raised an error, or the kernel killed it.
        shared: whether other launches used the memory at the same time.
    """

    shared = False

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        sections: Sequence[tuple[str, str]] = (),
        out_of_memory: bool = False,
        where: str = "",
        stack: str = "",
        others: str = "",
    ) -> None:
        super().__init__(message, sections=sections)
        self.rank, self.where, self.stack, self.others = rank, where, stack, others
        self.out_of_memory = out_of_memory

    @property
    def causes(self) -> list[str]:
        """Two texts: the failed rank with the reason, and the line of code if it is known."""
        return [str(self).partition("\n")[0], *([f"at {self.where}"] if self.where else [])]


class RanksTimedOut(RankFailed):
    """Raised if ranks do not finish before the deadline; the message has the stacks of all ranks."""


class ReferenceFailed(DdpperfError):
    """Raised if the other revision cannot run a benchmark that this checkout can run; the message gives the reason."""

    def __init__(self, message: str, *, benchmark: tuple[str, int]) -> None:
        super().__init__(message, benchmark=benchmark)
        self.benchmark: tuple[str, int] = benchmark


class ReferenceStopped(DdpperfError):
    """Raised if a launch of the compared revision fails after an earlier launch of the same benchmark succeeded."""


class SameCode(DdpperfError):
    """Raised if both revisions in a comparison ran the same file; the message names the file and the cure."""


class RanksDiffer(FoundWrong):
    """Raised if ranks return different values, or do not raise the expected error; the message names these ranks."""


class RankSkipped(DdpperfError):
    """Raised if a rank calls ``pytest.skip``; the fixture then skips the test."""


class UnexpectedCount(FoundWrong):
    """Raised if a step's counts differ from ``ddpperf.expect``; the message has the parts of each count."""


class TargetMissed(FoundWrong):
    """Raised if a metric misses its target in ``ddpperf.expect``; the message has the interval and the target."""


class QualityLost(FoundWrong):
    """Raised if a strategy's model is worse than the first strategy's, or differs; the message names both."""


class NotTimed(DdpperfError):
    """Raised if a test reads a measured time, but the run measured none; pytest then skips the rest of the test."""


class BaselineError(DdpperfError):
    """Raised if a baseline cannot be read or written; the message names the file, the field and the cure."""


class HistoryError(DdpperfError):
    """Raised if a history of runs cannot be read or written; the message names the file and the cure."""


class TraceError(DdpperfError):
    """Raised if traces cannot be read or combined; the message names the file or the ranks, and the reason."""


class Regression(FoundWrong):
    """Raised if a verdict fails the test (see ``--ddpperf-fail-on``); the message explains the result."""

    def __init__(self, message: str, *, summary: str = "") -> None:
        super().__init__(message)
        self._cause = summary

    @property
    def summary(self) -> str:
        """The cause in one line."""
        return self._cause or self.headline


def require_ranks(name: str, value: int, least: int = 1) -> int:
    """Returns the value if it is a whole number of at least ``least``; else raises a SettingError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SettingError(f"{name}={value!r} is not valid; give a whole number of at least {least}")
    return value


def require_number(name: str, value: float, *, positive: bool = False) -> float:
    """Returns the value if it is finite and at least 0 (above 0 if ``positive``); else raises a SettingError."""
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or value < 0 or (positive and value == 0):
        bound = "more than 0" if positive else "at least 0"
        raise SettingError(f"{name}={value!r} is not valid; give a finite number of {bound}")
    return float(value)


def require_one_of(name: str, value: str, known: Collection[str]) -> str:
    """Returns the value if it is one of ``known``; else raises a SettingError."""
    if value not in known:
        raise SettingError(f"{name}={value!r} is not known; give one of {', '.join(known)}")
    return value
