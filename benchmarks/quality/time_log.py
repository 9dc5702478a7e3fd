"""A pytest plugin that writes down when each launch of a benchmark began and ended, and what its ranks did when.

    pytest -p benchmarks.quality.time_log --time-log=FILE

A line of JSON for each launch, and one for each test. All launches go through ``Passes.launch``. Ranks import this
module as well, in each launch anew: so it leaves torch and pytest alone.
"""

from __future__ import annotations

import functools
import importlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

OPTION = "--time-log"
MEASURING = "run_launch"  # what ranks are told to run where steps are timed; anything else prepares
LAUNCH, RANK = "launch", "rank"
BUILD, WARM_UP, TIMED, GROWTH, DIAGNOSIS, WAITING = "build", "warm-up", "timed", "growth", "diagnosis", "waiting"
PARTS = (
    ("pytest_ddpperf.training.step", "build_step", BUILD),
    ("pytest_ddpperf.training.loop", "_warm_up", WARM_UP),
    ("pytest_ddpperf.training.loop", "timed_blocks", TIMED),
    ("pytest_ddpperf.training.loop", "held_after_steps", GROWTH),
    ("pytest_ddpperf.training.loop", "_diagnosis", DIAGNOSIS),
    ("pytest_ddpperf.launch.interleaving", "TurnClient.wait", WAITING),
)
"""What a rank does, by module and name of the function that does it."""

_lines: list[dict[str, Any]] = []


def pytest_addoption(parser: Any) -> None:
    """Take the name of the file."""
    parser.addoption(OPTION, metavar="FILE", help="write down here what launches did when")


def pytest_configure() -> None:
    """Note each launch from now on."""
    from pytest_ddpperf.run.passes import Passes

    launch = Passes.launch

    def noted(self: Any, settings: Any, variant: Any, function: Any, *args: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        name = getattr(function, "__name__", "")
        call = (on_rank, function, *args) if name == MEASURING else (function, *args)
        line: dict[str, Any] = {"function": name, "variant": variant.name, "other": variant.other}
        start = time.monotonic()
        try:
            result = launch(self, settings, variant, *call, **options)
            if name == MEASURING:
                result, line["spans"], line["missing"] = _parted(result)
                line["timed"] = math.fsum(result.values[0].step_times)
            else:
                line["checked"] = max((getattr(value, "seconds", 0.0) for value in result.values), default=0.0)
            return result
        finally:
            line["spans"] = [(LAUNCH, start, time.monotonic()), *line.get("spans", ())]
            _lines.append(line)

    Passes.launch = noted  # type: ignore[method-assign]


def pytest_runtest_logreport(report: Any) -> None:
    """Note how long a test took, with all that it did."""
    if report.when == "call":
        _lines.append({"test": report.nodeid, "seconds": report.duration})


def pytest_unconfigure(config: Any) -> None:
    """Write it all down."""
    file = config.getoption(OPTION)
    if file is not None:
        Path(file).write_text("".join(f"{json.dumps(line)}\n" for line in _lines), encoding="utf-8")


def on_rank(
    ctx: Any, function: Callable[..., Any], *args: Any
) -> tuple[Any, list[tuple[str, float, float]], list[str]]:
    """On a rank, of which the launch is the only one: what ``function`` gives, what was done when, what cannot be told.

    The clock is the same for all processes of a machine.
    """
    spans: list[tuple[str, float, float]] = []
    missing = [name for module, name, kind in PARTS if not _note(module, name, kind, spans)]
    start = time.monotonic()
    value = function(ctx, *args)
    return value, [(RANK, start, time.monotonic()), *spans], missing


def _note(module: str, name: str, kind: str, spans: list[tuple[str, float, float]]) -> bool:
    """Have each call of a function noted from now on; False where there is no such function."""
    owner: Any = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part, None)
    function = getattr(owner, last, None)
    if function is None:
        return False

    @functools.wraps(function)
    def noted(*args: Any, **options: Any) -> Any:
        start = time.monotonic()
        try:
            return function(*args, **options)
        finally:
            spans.append((kind, start, time.monotonic()))

    setattr(owner, last, noted)
    return True


def _parted(result: Any) -> tuple[Any, list[tuple[str, float, float]], list[str]]:
    """What the launch would have given without this, and the notes of its first rank, which asks for turns."""
    _, spans, missing = result.values[0]
    return replace(result, values=tuple(value for value, _, _ in result.values)), spans, missing
