"""What the plugin says of unchanged code beside another revision, and of code that is slower by a known share."""

from __future__ import annotations

import random
import shutil
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_pieces.piece import Notes, Piece, Place
from benchmarks.quality.project import AS_NOBODY, ROOT, pytest_results, rate_text
from pytest_ddpperf.against.git import git
from pytest_ddpperf.stats.rates import Rate

WORK = """\
import os
from dataclasses import replace

from perf_tests.extra_work import slowed
from perf_tests.language_model import SMALL, LanguageModel, language_model


def model():
    os.environ["PERF_TESTS_SLOW"] = "small:{share}"  # 0 adds the same hook without work
    return slowed(LanguageModel(SMALL), "small")


WORK = replace(language_model(SMALL, batch_size={batch}), model=model)
"""
TEST = """\
from work import WORK


def test_step(ddpperf):
    ddpperf.check(WORK, strategy="ddp", verify=False, counts='off')
"""
BASE = "base"
RUNS = 8  # of unchanged code
EACH = 4  # of each share
SHARES = (0.03, 0.1, 0.5)
RED = ("regressed", "broken")
COLUMNS = ("samples", "baseline_samples", "change", "change_interval", "bound", "mde")


def unchanged(place: Place, notes: Notes) -> None:
    """Compares a commit that changes nothing with the one before."""
    _compared(place, notes, (0.0,) * place.chosen(RUNS, 1))


def slower(place: Place, notes: Notes) -> None:
    """Compares commits that make a step slower, in random order."""
    shares = list(place.chosen(SHARES, SHARES[-1:])) * place.chosen(EACH, 1)
    _compared(place, notes, random.Random(0).sample(shares, len(shares)))  # noqa: S311  no secret


def _compared(place: Place, notes: Notes, shares: Sequence[float]) -> None:
    folder = place.folder / "paired"
    shutil.rmtree(folder, ignore_errors=True)
    make_project(folder, sorted({*shares}), batch=place.chosen(8, 2))
    for share in shares:
        git(folder, "checkout", "-q", branch_of(share))
        (result,) = pytest_results(
            branch_of(share),
            folder,
            (
                "test_step.py",
                f"--ddpperf-against={BASE}",
                f"--ddpperf-max-time={place.chosen(15, 2)}",
                *place.chosen((), ("--ddpperf-steps=5", "--ddpperf-launches=2")),
            ),
            (folder, ROOT),
            1,
            device=place.device,
            backend=place.backend,
        )
        notes(runs=[*notes.found.get("runs", []), {"share": share, **_kept(result)}])


def branch_of(share: float) -> str:
    """The branch whose step is slower by a share."""
    return f"slower-{share:g}"


def make_project(folder: Path, shares: Sequence[float], batch: int) -> None:
    """A git repository with a branch for each share, and the base that all of them are compared with."""
    folder.mkdir(parents=True)
    (folder / "test_step.py").write_text(TEST, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (folder / ".gitignore").write_text("__pycache__\n", encoding="utf-8")
    git(folder, "init", "-q", "-b", BASE)
    for branch, share, more in ((BASE, 0.0, ""), *((branch_of(share), share, "\n# touched\n") for share in shares)):
        if branch != BASE:
            git(folder, "checkout", "-q", "-b", branch, BASE)
        (folder / "work.py").write_text(WORK.format(share=share, batch=batch) + more, encoding="utf-8")
        git(folder, "add", "-A")
        git(folder, *AS_NOBODY, "commit", "-q", "-m", branch)


def _kept(result: Mapping[str, Any]) -> dict[str, Any]:
    step = result["metrics"].get("step_time", {})
    gated = {name: metric["verdict"] for name, metric in result["metrics"].items() if metric["gated"]}
    return {
        "verdict": result["verdict"],
        "red": [name for name, verdict in gated.items() if verdict in RED],
        "findings": result["findings"],
        "turns": result["turns"],
        "launches": result["launches"],
        "seconds": result["seconds"],
        **{name: step.get(name) for name in COLUMNS},
    }


def lines(found: Mapping[str, Any]) -> list[str]:
    """How often each share was red, what could be ruled out, and how far launches lie apart."""
    told = []
    for share in sorted({run["share"] for run in found.get("runs", [])}):
        runs = [run for run in found["runs"] if run["share"] == share]
        red = rate_text(Rate(sum(run["verdict"] in RED for run in runs), len(runs), len(runs)))
        verdicts = ", ".join(f"{times} {name}" for name, times in Counter(run["verdict"] for run in runs).items())
        told.append(
            f"{share:+.0%}: red in {red}, changed by {_median(runs, 'change')}, at most {_median(runs, 'bound')} "
            f"(medians): {verdicts}"
        )
        within = [_relative(run["samples"]) for run in runs if len(run["samples"] or ()) > 1]
        if within:
            told.append(
                f"  launches scatter by {statistics.median(within):.1%}, {_median(runs, 'launches', '.0f')} a side"
            )
        told += [
            f"  RED: {', '.join(run['red']) or run['findings']}" for run in runs if not share and run["verdict"] in RED
        ]
    return told


def _median(runs: Sequence[Mapping[str, Any]], name: str, form: str = "+.1%") -> str:
    known = [run[name] for run in runs if run[name] is not None]
    return format(statistics.median(known), form) if known else "-"


def _relative(values: Sequence[float]) -> float:
    return statistics.stdev(values) / statistics.fmean(values)


PIECES = (
    Piece(
        name="same_code",
        question="Side by side with a commit of the same code, is it ever red, and what can be ruled out?",
        seconds=340,
        run=unchanged,
        lines=lines,
    ),
    Piece(
        name="slower_code",
        question="Side by side, is a step that is slower by 3, 10 and 50 % red?",
        seconds=480,
        run=slower,
        lines=lines,
        dry="one run of +50 % on the CPU, where matrices are multiplied in place of torch.cuda._sleep",
    ),
)
