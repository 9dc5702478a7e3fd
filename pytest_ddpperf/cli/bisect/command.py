"""``ddpperf bisect``: the commit that made a benchmark worse."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_ddpperf.cli.bisect.attempts import FORCED, attempts, longest
from pytest_ddpperf.cli.bisect.bisector import Hunt
from pytest_ddpperf.cli.bisect.commits import SHORT, Range, commits_between, described
from pytest_ddpperf.cli.bisect.endpoints import ERROR, Ends, ends_of, sharpened
from pytest_ddpperf.cli.bisect.estimate import again_line, search_lines
from pytest_ddpperf.cli.bisect.processes import Started, command_line, run_probe
from pytest_ddpperf.cli.bisect.target import (
    Target,
    is_counted,
    not_compared,
    obstacle,
    require_known,
    shown,
    targets,
    undecided,
)
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.phrases import comparison_text, first_of, note_text
from pytest_ddpperf.run.probe import Outcome, Probe
from pytest_ddpperf.units import format_count, format_percent

FOUND, NOT_FOUND, INTERRUPTED = 0, 1, 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes; all else is pytest's, in the order as given."""
    parser.usage = (
        "ddpperf bisect [-h] --good REV [--bad REV] [--metric NAME] [--first-parent] "
        "[TESTS and options of pytest, such as perf -k small ...]"
    )
    parser.add_argument("--good", required=True, metavar="REV", help="a commit from before the change")
    parser.add_argument("--bad", default="HEAD", metavar="REV", help="a commit that has it (default: %(default)s)")
    parser.add_argument("--metric", metavar="NAME", help="what to follow (default: what is worse at --bad)")
    parser.add_argument(
        "--first-parent", action="store_true", help="see a merge as one commit, and leave out what it merged"
    )
    parser.epilog = (
        "All other arguments go to pytest as they are: tests, and options such as --ddpperf-world-size=4. Without "
        "tests pytest runs those that it always does. Of all benchmarks that are worse one is followed."
    )


def run(options: argparse.Namespace) -> int:
    """Search, and tell what was found.

    Returns:
        0 where it is one commit, 1 where it is not, or the ends do not differ or are not known well enough, 130 after
        Ctrl-C.

    Raises:
        DdpperfError: the commits or the tests are not there, or cannot be searched.
    """
    require_known(options.metric)
    between = commits_between(options.good, options.bad, Path.cwd(), first_parent=options.first_parent)
    try:
        with _ending_on_sigterm():
            return _search(between, options)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return INTERRUPTED


@contextlib.contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """Have SIGTERM unwind the stack, so that a probe is ended and nothing is left behind."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _search(between: Range, options: argparse.Namespace) -> int:
    given = tuple(options.rest)
    good, bad = (described(between.root, commit).short for commit in (between.good, between.bad))
    print(f"good {good}\nbad  {bad}", flush=True)
    settings = {**FORCED, **({"counted_only": True} if is_counted(options.metric) else {})}
    red: list[Target] = []
    for outcome in attempts(_probe_ends, Probe(between.bad, settings, options.metric), Started(between.good, given)):
        red = targets(outcome, options.metric)
        if red or not undecided(outcome, options.metric):
            break
    ends = ends_of(between, red[0], outcome) if red else None
    if ends is not None:
        ends, outcome = sharpened(ends, outcome, given, _probe_ends)
    if ends is None:
        print(_nothing_red(outcome, options))
        return NOT_FOUND
    print(_ends_text(ends, red), flush=True)
    if not ends.searchable:
        print(_not_searchable(ends))
        return NOT_FOUND
    print(*search_lines(ends), "", sep="\n", flush=True)
    hunt = Hunt(ends, given, run_probe)
    number = 0
    while (commit := hunt.next) is not None:
        number += 1
        print(f"probe {number} of about {max(number, hunt.expected)}: {commit.short} ...", end=" ", flush=True)
        probed = hunt.probe(commit.hash)
        words = (f"skipped: {probed.text}",) if probed.answer == "skipped" else (probed.text, probed.answer)
        print(*words, flush=True)
    print(flush=True)
    return _conclude(hunt)


def _probe_ends(probe: Probe, started: Started) -> Outcome:
    """Runs a probe of the ends; where it is not the first one, it is told before how long it may take."""
    seconds = longest(probe.settings)
    if seconds is not None:
        print(again_line(seconds), flush=True)
    return run_probe(probe, started)


def _not_searchable(ends: Ends) -> str:
    """Why there is nothing that probes could tell."""
    return (
        f"the ends are not known well enough to search: that they differ may be wrong by {format_percent(ends.error)}, "
        f"and all answers of a search together by {format_percent(ERROR)} at most, so that no probe could tell\n"
        "measure on a quieter machine, or with more --ddpperf-launches, or follow a count with --metric"
    )


def _nothing_red(outcome: Outcome, options: argparse.Namespace) -> str:
    """Why there is nothing to search for.

    Raises:
        SettingError: there is no such metric, or no benchmark.
    """
    asked, reason = command_line(options.rest), obstacle(outcome)
    if reason is not None and not outcome.failures and not outcome.results:
        raise SettingError(f"{asked} measures no benchmark: none of its tests calls ddpperf.check or the like")
    if reason is not None:
        return f"{options.bad} cannot be held against {options.good}: {reason}"
    told = [f"{result.test} {result.name}: {comparison_text(one)}" for result, one in shown(outcome, options.metric)]
    lacking = first_of(not_compared(outcome))
    if options.metric is not None and not told:
        known = dict.fromkeys(one.series.metric for result in outcome.results for one in result.comparisons)
        if options.metric in known:
            head = (
                f"{options.bad} cannot be held against {options.good}: nothing that was compared has {options.metric}"
            )
            return "\n  ".join([head, *lacking])
        raise SettingError(f"--metric {options.metric}: {asked} has no such metric; it has {', '.join(known)}")
    words = "cannot be told apart from" if undecided(outcome, options.metric) else "is not worse than"
    head = f"{options.bad} {words} {options.good}: there is nothing to search for"
    return "\n  ".join([head, *told, *lacking])


def _ends_text(ends: Ends, red: list[Target]) -> str:
    """What is followed, and what else is worse."""
    test, (name, size) = ends.target.test, ends.target.benchmark
    others = dict.fromkeys(one.metric for one in red if one.metric != ends.target.metric)
    also = f"\nalso worse: {', '.join(others)}; --metric follows one of them" if others else ""
    return f"{test} {name}, {format_count(size, 'rank')}: {comparison_text(ends.comparison)}{also}"


def _conclude(hunt: Hunt) -> int:
    suspects = hunt.search.suspects
    if len(suspects) > 1:
        print("\n".join(_range_lines(hunt, suspects)))
        return NOT_FOUND
    commit = hunt.described(suspects[0])
    before, held = hunt.confirmation(commit.hash)
    told = held if isinstance(held, str) else comparison_text(held)
    found = isinstance(held, str) or held.verdict in {Verdict.REGRESSED, Verdict.INCONCLUSIVE}
    lines = [
        f"{commit.hash} is the first bad commit",
        *(f"  {line}" for line in (commit.subject, f"{commit.author}, {commit.date}") if line.strip(", ")),
        f"  against {before[:SHORT]}, which came before: {told}",
        *([] if isinstance(held, str) else [f"    {part}" for part in note_text(held).split("; ") if part]),
        _sureness(hunt),
    ]
    if not found:
        lines.append("  not so against the one before: the change came with several commits, or a probe was wrong")
    print("\n".join(lines))
    return FOUND if found else NOT_FOUND


def _range_lines(hunt: Hunt, suspects: Sequence[str]) -> list[str]:
    told = [f"  {line}" for line in first_of([hunt.described(commit).short for commit in suspects])]
    head = f"the first bad commit is one of these {len(suspects)}; all but the last say nothing of themselves"
    return [head, *told, _sureness(hunt)]


def _sureness(hunt: Hunt) -> str:
    """How far the answer can be trusted."""
    if hunt.ends.target.counted:
        return "  sure: counts have no noise"
    wrong = f"{100 * hunt.error:.2g} %" if hunt.error >= 1e-4 else "under 0.01 %"  # noqa: PLR2004 - two decimals
    return (
        f"  {format_percent(max(0.0, 1 - hunt.error))} sure: the ends and all probes together may be wrong by {wrong}"
    )
