"""What the plugin says of unchanged code, and of code that is slower by a known share."""

from __future__ import annotations

import random
import shutil
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu_pieces.piece import Notes, Piece, Place
from benchmarks.quality.project import ROOT, pytest_results
from benchmarks.quality.rates import rate_text
from pytest_ddpperf.stats.rates import Rate

SLOWED_TEST = "perf_tests/test_language_model.py::test_small[ddp]"
UNCHANGED_TESTS = (
    SLOWED_TEST,
    "perf_tests/test_language_model.py::test_larger",
    "perf_tests/test_digits.py::test_digits",
)
DRY_TEST = "perf_tests/test_language_model.py::test_small[naive]"
SAVED = 4
RUNS = 6
SHARES = (0.0, 0.03, 0.1)
RED = ("regressed", "broken")
AA, INJECTED = "unchanged", "slower"  # folders of baselines


def unchanged(place: Place, notes: Notes) -> None:
    """Saves a baseline several times, and compares a run with each of them once the next is saved."""
    folders = [place.folder / AA / str(number) for number in range(place.chosen(SAVED, 1))]
    tests = place.chosen(UNCHANGED_TESTS, (DRY_TEST,))
    for folder, saved_before in zip((*folders, None), (None, *folders), strict=True):
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
            saved = measured(place, folder, tests, ("--ddpperf-save", "--ddpperf-force-save"))
            notes(saved=[*notes.found.get("saved", []), saved])
        if saved_before:
            notes(compared=[*notes.found.get("compared", []), measured(place, saved_before, tests)])


def slower(place: Place, notes: Notes) -> None:
    """Compares runs of the same step with 0, 3 and 10 % more, in random order, with one baseline."""
    folder, test = place.folder / INJECTED, place.chosen(SLOWED_TEST, DRY_TEST)
    run = partial(measured, place, folder, (test,))
    shutil.rmtree(folder, ignore_errors=True)
    run(("--ddpperf-save", "--ddpperf-force-save"), share=0.0)
    each = list(place.chosen(SHARES, SHARES[-1:])) * place.chosen(RUNS, 1)
    for share in random.Random(0).sample(each, len(each)):  # noqa: S311  no secret
        (result,) = run(share=share)
        notes(runs=[*notes.found.get("runs", []), {"share": share, **result}])


def measured(
    place: Place, folder: Path, tests: Sequence[str], options: Sequence[str] = (), share: float | None = None
) -> list[dict[str, Any]]:
    """A run of the example suite's tests beside the baselines in ``folder``; with a share, by times alone.

    What is counted would tell of the hook that makes a step slower.
    """
    slowed = () if share is None else ("--ddpperf-counted=false", "--ddpperf-verify=false")
    results = pytest_results(
        folder.name,
        ROOT,
        (
            *tests,
            f"--ddpperf-baseline-dir={folder}",
            f"--ddpperf-max-time={place.chosen(6, 1)}",
            *place.chosen((), ("--ddpperf-verify=false", "--ddpperf-counted=false", "--ddpperf-steps=5")),
            *slowed,
            *options,
        ),
        (ROOT,),
        1,
        device=place.device,
        backend=place.backend,
        variables={} if share is None else {"PERF_TESTS_SLOW": f"small:{share:g}"},
    )
    return [_kept(result) for result in results]


def _kept(result: Mapping[str, Any]) -> dict[str, Any]:
    step = result["metrics"].get("step_time", {})
    gated = {name: metric["verdict"] for name, metric in result["metrics"].items() if metric["gated"]}
    return {
        "test": result["test"],
        "verdict": result["verdict"],
        "red": [name for name, verdict in gated.items() if verdict in RED],
        "findings": result["findings"],
        "launches": result["launches"],
        "seconds": result["seconds"],
        **{name: step.get(name) for name in ("value", "samples", "change", "change_interval", "bound", "mde")},
    }


def unchanged_lines(found: Mapping[str, Any]) -> list[str]:
    saved, compared = found.get("saved", []), found.get("compared", [])
    told = []
    for test in dict.fromkeys(result["test"] for run in saved for result in run):
        runs = [result for run in saved for result in run if result["test"] == test]
        within = [_relative(run["samples"]) for run in runs if len(run["samples"] or ()) > 1]
        between = _relative([run["value"] for run in runs]) if len(runs) > 1 else None
        seconds, step = (statistics.median(run[name] for run in runs) for name in ("seconds", "value"))
        told.append(
            f"{test}: {len(runs)} runs of {seconds:.0f} s, step {1e3 * step:.2f} ms; launches scatter by "
            f"{_percent(statistics.median(within) if within else None)}, runs by {_percent(between)}"
        )
    results = [result for run in compared for result in run]
    if results:
        red = sum(result["verdict"] in RED for result in results)
        told.append(
            f"unchanged code was red in {rate_text(Rate(red, len(results), len(results)))}: {_verdicts(results)}"
        )
        told += _red_lines(results)
    return told


def slower_lines(found: Mapping[str, Any]) -> list[str]:
    told = []
    for share in sorted({run["share"] for run in found.get("runs", [])}):
        runs = [run for run in found["runs"] if run["share"] == share]
        red = rate_text(Rate(sum(run["verdict"] in RED for run in runs), len(runs), len(runs)))
        changes = [run["change"] for run in runs if run["change"] is not None]
        change = _percent(statistics.median(changes) if changes else None, sign="+")
        told.append(f"{share:+.0%}: red in {red}, changed by {change} (median): {_verdicts(runs)}")
        told += _red_lines(runs) if not share else []
    return told


def _verdicts(results: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{times} {verdict}" for verdict, times in Counter(each["verdict"] for each in results).items())


def _red_lines(results: Sequence[Mapping[str, Any]]) -> list[str]:
    red = [result for result in results if result["verdict"] in RED]
    return [f"  RED {result['test']}: {', '.join(result['red']) or result['findings']}" for result in red]


def _relative(values: Sequence[float]) -> float:
    return statistics.stdev(values) / statistics.fmean(values)


def _percent(share: float | None, sign: str = "") -> str:
    return "-" if share is None else f"{share:{sign}.1%}"


PIECES = (
    Piece(
        name="unchanged",
        question="Is unchanged code ever red, and how far do launches and runs lie apart?",
        seconds=420,
        run=unchanged,
        lines=unchanged_lines,
    ),
    Piece(
        name="slower",
        question="Is a step that is slower by 3 and 10 % red, and one that is not slower green?",
        seconds=400,
        run=slower,
        lines=slower_lines,
        dry="one run of +10 % on the CPU, where matrices are multiplied in place of torch.cuda._sleep",
    ),
)
