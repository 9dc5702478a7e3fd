"""``ddpperf bisect``: prints the search for the commit that made a benchmark worse."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from pytest_ddpperf.cli.bisect import bisector
from pytest_ddpperf.cli.bisect.package_search import cache_folder, conclusion, prepared
from pytest_ddpperf.cli.bisect.processes import command_line, run_probe
from pytest_ddpperf.cli.bisect.ranges import SHORT, CommitRange, commits_between
from pytest_ddpperf.cli.bisect.target import compared, not_compared, obstacle, undecided
from pytest_ddpperf.cli.options import add_option
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.lines import INDENT, wrapped
from pytest_ddpperf.reports.phrases import change_line, first_of
from pytest_ddpperf.reports.table import terminal_width
from pytest_ddpperf.run.session.probe import Outcome, Probe
from pytest_ddpperf.units import format_count, format_number, format_percent

FOUND, NOT_FOUND = 0, 1
_NO_LIMIT = "--ddpperf-max-time does not limit"
_SPANS = ((3600.0, "h"), (60.0, "min"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command; all other arguments go to pytest, in the user's order."""
    parser.usage = (
        "ddpperf bisect [-h] {--good REV [--bad REV] [--first-parent] | --packages OLD NEW [--pip-args ARGS] "
        "[--base-packages]} [--metric NAME] [TESTS and options of pytest, such as perf -k small ...]"
    )
    searched = parser.add_mutually_exclusive_group(required=True)
    searched.add_argument("--good", metavar="REV", help="a commit from before the change")
    text = "search packages in place of commits: two files of pip freeze, from before the change and with it"
    searched.add_argument("--packages", nargs=2, metavar=("OLD", "NEW"), help=text)
    text = "further arguments of pip install, such as '--index-url URL' or '--no-index --find-links DIR'"
    add_option(parser, "--pip-args", _pip_words, "ARGS", text)
    text = "also use the packages of this environment, which the files then need not list"
    parser.add_argument("--base-packages", action="store_true", help=text)
    parser.add_argument("--bad", default="HEAD", metavar="REV", help="a commit with the change (default: %(default)s)")
    parser.add_argument("--metric", metavar="NAME", help="metric to search by (default: one that is worse at --bad)")
    text = "treat a merge as one commit, without the commits that it merged"
    parser.add_argument("--first-parent", action="store_true", help=text)
    parser.epilog = (
        "All other arguments go to pytest: tests, and options such as --ddpperf-world-size=4. Without tests, pytest "
        "collects its usual tests. If several benchmarks are worse, the search follows one of them."
    )
    parser.set_defaults(run=run, pip_args=())
    parser.allow_abbrev = False


def _pip_words(text: object) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(str(text)))
    except ValueError as error:
        raise ValueError(f"arguments as a shell takes them: {error}") from None


def run(options: argparse.Namespace) -> int:
    """Bisects and prints the result; returns the exit status, ``FOUND`` only if a single commit or change is left."""
    with _ending_on_sigterm():
        if options.packages is not None:
            _tell(f"environments are kept in {cache_folder()}")
            options.good, options.bad = options.packages
            packages, of_packages = prepared(
                (options.good, options.bad), options.pip_args, options.rest, base=options.base_packages
            )
            return _bisect(packages, options, of_packages)
        commits = commits_between(options.good, options.bad, Path.cwd(), first_parent=options.first_parent)
        return _bisect(commits, options, partial(run_probe, arguments=options.rest))


@contextlib.contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """Turns SIGTERM into an exception in this context, so that a probe ends and removes its files."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _bisect(commits: bisector.Searched, options: argparse.Namespace, run: bisector.RunProbe) -> int:
    def run_ends(probe: Probe, against: str) -> Outcome:
        seconds = probe.settings.get("max_time")  # only a probe after the first one says how long it may take
        if isinstance(seconds, float):
            _tell(f"measuring good and bad again, up to {span(seconds)} a benchmark; {_NO_LIMIT} this repetition")
        return run(probe, against)

    _tell(f"good {commits.short(commits.good)}", f"bad  {commits.short(commits.bad)}")
    endpoints, outcome, worse = bisector.measured_ends(commits, options.metric, run_ends)
    if endpoints is None:
        _tell(_nothing_worse(outcome, options))
        return NOT_FOUND
    target, (name, ranks) = endpoints.target, endpoints.target.benchmark
    others = dict.fromkeys(other.metric for other in worse if other.metric != target.metric)
    also = f"\nalso worse: {', '.join(others)}; --metric chooses one of them" if others else ""
    change = change_line(endpoints.comparison)
    _tell(f"{target.test} {name}, {format_count(ranks, 'rank')}: {change}{also}")
    if not endpoints.searchable:
        _tell(
            "good and bad do not differ clearly enough for a search: the error probability of their comparison is "
            f"{format_percent(endpoints.error)}, and a search needs {format_percent(bisector.MAX_ERROR)} at most\n"
            "measure on a quiet machine, or with more --ddpperf-launches, or search by a count, such as --metric=flops"
        )
        return NOT_FOUND
    _tell(*_duration_lines(endpoints), "")
    search, number = bisector.Bisector(endpoints, run), 0
    while (commit := search.commits.next) is not None:
        number += 1
        total = max(number, bisector.expected_probes(commits))
        probe = f"probe {number} of about {total}: {commits.short(commit)} ..."
        print(*wrapped([probe], terminal_width()), sep="\n", end=" ", flush=True)
        found = search.probe(commit)
        text = f"skipped: {found.text}" if found.answer == "skipped" else f"{found.text} {found.answer}"
        fits = terminal_width() is None or len(f"{probe} {text}") <= (terminal_width() or 0)
        _tell(text if fits else f"\n{INDENT}{text}")
    _tell("")
    if isinstance(search.commits, CommitRange):
        return _conclude(search, search.commits)
    lines, single = conclusion(search, search.commits)
    _tell(*lines, _sureness(search))
    return FOUND if single else NOT_FOUND


def _tell(*texts: str) -> None:
    lines = [line for text in texts for line in text.split("\n")]
    print(*wrapped(lines, terminal_width()), sep="\n", flush=True)


def _nothing_worse(outcome: Outcome, options: argparse.Namespace) -> str:
    asked, good, bad, metric = command_line(options.rest), options.good, options.bad, options.metric
    reason = obstacle(outcome, outcome.results)
    if reason is not None and not outcome.failures and not outcome.results:
        raise SettingError(f"{asked} measures no benchmark: name tests that call ddpperf.check, compare or scaling")
    if reason is not None:
        return f"{bad} cannot be compared with {good}: {reason}"
    # Counts that are equal are omitted, unless one was asked for.
    lines = [
        f"{result.test} {result.name}: {change_line(comparison)}"
        for result, comparison in compared(outcome, metric)
        if metric is not None or comparison.series.scale != "exact" or comparison.change
    ]
    known = dict.fromkeys(comparison.series.metric for result in outcome.results for comparison in result.comparisons)
    if metric is None or lines:
        words = "cannot be distinguished from" if undecided(outcome, metric) else "is not worse than"
        head = f"{bad} {words} {good}: there is nothing to search for"
    elif metric in known:
        head = f"{bad} cannot be compared with {good}: no compared benchmark has the metric {metric}"
    else:
        raise SettingError(f"--metric {metric}: {asked} measured no such metric; give one of {', '.join(known)}")
    return "\n  ".join([head, *lines, *first_of(not_compared(outcome))])


def _duration_lines(endpoints: bisector.Endpoints) -> list[str]:
    """Returns lines that say how many commits there are to search and, for timed metrics, how long probes take."""
    commits = f"{format_count(len(endpoints.commits.suspects), endpoints.commits.noun)} to search"
    most = endpoints.effort.get("max_time")
    if most is None:
        return [commits]
    least, number = most / bisector.MORE_TIME, bisector.expected_probes(endpoints.commits)
    each = f"measuring for {span(least)} to {span(most)}"
    probes = f"1 probe to confirm it, {each}"
    if number:
        total = f"{span((number + 1) * least)} to {span((number + 1) * most)} in all"
        probes = f"about {format_count(number, 'probe')} and one to confirm, each {each}: {total}"
    # An attempt may take all of its time, and the next one has that so many times over.
    worst = sum(most * bisector.MORE_TIME**attempt for attempt in range(bisector.ATTEMPTS))
    again = f"{bisector.ATTEMPTS - 1} repetitions, each up to {bisector.MORE_TIME} times as long as the run before"
    return [
        f"{commits}, {probes}",
        f"an undecided probe has up to {again}: at most {span(worst)} for a probe",
        f"these estimates come from the runs of good and bad; {_NO_LIMIT} the probes",
    ]


def span(seconds: float) -> str:
    """Returns a duration with two digits: ``40 s``, ``2.7 min``, ``1.5 h``."""
    size, unit = next(((size, unit) for size, unit in _SPANS if seconds >= size), (1.0, "s"))
    return f"{format_number(float(f'{seconds / size:.2g}'))} {unit}"


def _conclude(search: bisector.Bisector, commits: CommitRange) -> int:
    """Prints the commits that may be the first bad one; if only one is left, compares it with its parent."""
    suspects = commits.suspects
    if len(suspects) > 1:
        _tell(f"the first bad commit is one of these {len(suspects)}; all but the last could not be judged")
        _tell(*(f"  {line}" for line in first_of([*map(commits.short, suspects)])), _sureness(search))
        return NOT_FOUND
    parent, comparison = search.confirm(suspects[0])
    text = comparison if isinstance(comparison, str) else change_line(comparison)
    verdict = None if isinstance(comparison, str) else comparison.verdict
    found = verdict is Verdict.REGRESSED
    said = "is the first bad commit" if found else "may be the first bad commit, but that was not confirmed"
    _tell("\n  ".join([f"{suspects[0]} {said}", *commits.details(suspects[0])]))
    _tell(f"  against {parent[:SHORT]}, which came before: {text}")
    if found:
        _tell(_sureness(search))
    elif verdict not in {None, Verdict.INCONCLUSIVE}:
        _tell(f"  the change does not come from {suspects[0][:SHORT]} alone, or a probe was wrong")
    return FOUND if found else NOT_FOUND


def _sureness(search: bisector.Bisector) -> str:
    if search.endpoints.target.counted:
        return "  sure: counts have no noise"
    error = search.error
    wrong = f"{100 * error:.2g} %" if error >= 1e-4 else "under 0.01 %"  # noqa: PLR2004 - two decimals
    return f"  {format_percent(max(0.0, 1 - error))} sure: the probability that any comparison was wrong is {wrong}"
