"""The process that launches ranks, case by case, as its standard input asks."""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

from benchmarks.campaign import at_fork
from benchmarks.campaign.kinds import Case
from benchmarks.campaign.training import add_up, read, take_turns, train
from pytest_ddpperf.launch.interleaving import TurnSlot, run_interleaved
from pytest_ddpperf.launch.launcher import Launcher

IMPORTED = """
import os
from benchmarks.campaign.training import reach, read, train as trained

CASE = read({case!r})
if "RANK" in os.environ:
    reach(CASE, int(os.environ["RANK"]), "import", {scratch!r})


def train(*arguments):
    return trained(*arguments)
"""


def main() -> None:
    """Answer each line of the input, a case or ``next`` or ``end``, with one line."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with ExitStack() as opened:
        preload = (at_fork.__name__,)
        first = opened.enter_context(Launcher(preload=preload))
        copy = opened.enter_context(Launcher(preload=preload, like=first))
        launchers = {"launcher": first, "turns": first, "copy": copy}
        used, case = first, None
        for launcher in (first, copy):
            _good(launcher)
        _answer(answers, {"ready": True, **_state(first, copy)})
        for line in sys.stdin:
            if line.strip() == "next":
                started = time.monotonic()
                said = _good(used) if case is None or case.way == "launcher" else _good(first) or _good(copy)
                _answer(answers, {"said": said, "seconds": time.monotonic() - started, **_state(first, copy)})
            else:
                case = read(line)
                used = launchers[case.way]
                outcome = _turns(case, first, copy) if case.way == "turns" else _launch(case, used)
                _answer(answers, {**outcome, **_state(first, copy)})


def _answer(answers: TextIO, content: dict[str, Any]) -> None:
    answers.write(json.dumps(content) + "\n")
    answers.flush()


def _state(*launchers: Launcher) -> dict[str, Any]:
    gc.collect()
    return {"zygotes": [launcher.pid for launcher in launchers], "files": len(os.listdir("/proc/self/fd"))}


def _good(launcher: Launcher) -> str:
    """What is wrong with a good launch; empty if nothing is."""
    try:
        values = launcher.run(add_up, world_size=2, device="cpu", backend="gloo", timeout=30).values
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "" if values == (3.0, 3.0) else repr(values)


def _launch(case: Case, launcher: Launcher) -> dict[str, Any]:
    scratch = os.environ[at_fork.SCRATCH]
    function: Callable[..., Any] = train
    if case.phase == "import":
        name = f"imported_{case.seed}_{case.number}".replace("-", "m")
        text = IMPORTED.format(case=json.dumps(_fields(case)), scratch=scratch)
        Path(scratch, f"{name}.py").write_text(text, encoding="utf-8")
        if scratch not in sys.path:
            sys.path.insert(0, scratch)
        importlib.invalidate_caches()
        function = importlib.import_module(name).train
    if case.phase in {"start", "join"}:
        Path(scratch, "at_fork.json").write_text(json.dumps(_fields(case)), encoding="utf-8")
    return _outcome(
        lambda: launcher.run(
            function, case, scratch, world_size=case.world_size, device="cpu", backend="gloo", timeout=case.timeout
        )
    )


def _turns(case: Case, first: Launcher, copy: Launcher) -> dict[str, Any]:
    scratch, guilty = os.environ[at_fork.SCRATCH], case.number % 2

    def launch(launcher: Launcher) -> Callable[[TurnSlot], object]:
        def run(slot: TurnSlot) -> object:
            size = case.world_size if slot.slot == guilty else 2
            return launcher.run(
                take_turns,
                case,
                slot,
                guilty,
                scratch,
                world_size=size,
                device="cpu",
                backend="gloo",
                timeout=case.timeout,
            )

        return run

    def abort() -> None:
        first.abort()
        copy.abort()

    return _outcome(lambda: run_interleaved([launch(first), launch(copy)], abort))


def _fields(case: Case) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(case)


def _outcome(run: Callable[[], object]) -> dict[str, Any]:
    started = time.monotonic()
    error: BaseException | None = None
    try:
        run()
    except BaseException as raised:
        error = raised
    return {
        "seconds": time.monotonic() - started,
        "ended": time.time(),
        "error": "" if error is None else type(error).__name__,
        "rank": getattr(error, "rank", None),
        "text": "" if error is None else str(error)[:200_000],
        "length": 0 if error is None else len(str(error)),
    }


if __name__ == "__main__":
    main()
