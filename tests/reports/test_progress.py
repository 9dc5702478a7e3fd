from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from pytest_ddpperf.reports.progress import LiveLine, command_line, progress_line
from tests.factories import make_launch, make_rank_launch


def test_progress_says_launch_and_time() -> None:
    assert progress_line("ddp", 3, 8, 12.4, 31.0) == "ddp: launch 3 of 8, 12 s of about 31 s"
    assert progress_line("ddp", 1, 8, 0.2, None) == "ddp: launch 1 of 8, 0 s"
    assert progress_line("ddp", 8, 8, 40.0, 31.0).endswith("40 s of about 40 s")  # never less than what has passed


@pytest.mark.parametrize(
    ("losses", "rate", "told"),
    [
        ((2.0, 4.0), 0.001, ", loss 3, learning rate 0.001"),
        ((2.0, 2.5), None, ", loss 2.25"),
        ((None, None), 0.1, ", learning rate 0.1"),
        ((None, None), None, ""),
    ],
)
def test_progress_shows_loss_and_learning_rate_of_the_last_launch_if_known(
    losses: tuple[float | None, ...], rate: float | None, told: str
) -> None:
    ranks = tuple(
        replace(make_rank_launch(rank=rank, loss=loss), learning_rate=rate) for rank, loss in enumerate(losses)
    )
    last = make_launch(ranks=ranks)
    assert progress_line("ddp", 2, 8, 12.4, 31.0, last=last) == f"ddp: launch 2 of 8, 12 s of about 31 s{told}"


WORKLOAD = """
import torch
from pytest_ddpperf import Workload

workload = Workload(
    model=lambda: torch.nn.Linear(8, 8),
    batch=lambda: (torch.rand(4, 8), torch.zeros(4, 8)),
    loss=torch.nn.functional.mse_loss,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.125),
    samples_per_step=4,
)


def test_step(ddpperf):
    ddpperf.measure(workload, world_size=2, launches=2, steps=5, warmup=1, max_time=1, device="cpu", backend="gloo")
"""


@pytest.mark.slow  # pytest has a terminal, and so a process of its own
@pytest.mark.parametrize("options", [(), ("-v",)])
def test_a_terminal_shows_loss_and_learning_rate_if_more_is_asked_for(
    pytester: pytest.Pytester, options: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_suite=WORKLOAD)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--color=no", *options]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env={**os.environ, "COLUMNS": "150"}) as run:
        os.close(theirs)
        shown = b""
        with suppress(OSError), open(ours, "rb", buffering=0) as terminal:  # noqa: PTH123 - which has no name
            while part := terminal.read(4096):
                shown += part
    assert run.returncode == 0
    told = re.search(r"launch 2 of 2, \d+ s of about \d+ s, loss 0\.\d+, learning rate 0\.125", shown.decode())
    assert "launch 2 of 2" in shown.decode()
    assert (told is not None) is bool(options)


def make_terminal(
    *,
    isatty: bool = True,
    fullwidth: int = 80,
    width_of_current_line: int = 10,
    currentfspath: Path | str | None = None,
) -> Any:
    """What LiveLine asks of pytest's reporter, its writer and its capture manager."""
    writer = SimpleNamespace(fullwidth=fullwidth, width_of_current_line=width_of_current_line)
    config = SimpleNamespace(get_terminal_writer=lambda: writer)
    reporter = SimpleNamespace(isatty=isatty, currentfspath=currentfspath, config=config, flush=Mock())
    reporter.global_and_fixture_disabled = nullcontext
    return reporter


def screen(written: str) -> str:
    """The line as a terminal shows it: a backspace goes left, whatever is printed overwrites."""
    cells: list[str] = []
    column = 0
    for character in written:
        if character == "\b":
            column -= 1
            continue
        cells[column : column + 1] = [character]
        column += 1
    return "".join(cells).rstrip()


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (None, "p/t.py::test_x ddp: counting"),
        (Path("p/t.py"), "test_x ddp: counting"),
        ("p/t.py::test_x ", "ddp: counting"),
    ],
    ids=["quiet", "file", "verbose"],
)
def test_the_live_line_does_not_repeat_the_text_before_it(
    said: Path | str | None, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = make_terminal(currentfspath=said)
    LiveLine(terminal, terminal).show("p/t.py::test_x ddp: counting")
    assert capsys.readouterr().out == f" {shown}"


def test_the_line_is_replaced_and_cleared(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = make_terminal()
    line = LiveLine(terminal, terminal)
    line.show("a long first text")
    line.show("short")
    shown = capsys.readouterr().out
    line.clear()
    cleared = shown + capsys.readouterr().out
    line.clear()
    assert (screen(shown), screen(cleared)) == (" short", "")
    assert capsys.readouterr().out == ""
    assert terminal.flush.call_count == 3


@pytest.mark.parametrize("terminal", [None, make_terminal(isatty=False), make_terminal(width_of_current_line=70)])
def test_nothing_is_written_without_a_terminal_or_enough_columns(
    capsys: pytest.CaptureFixture[str], terminal: Any
) -> None:
    line = LiveLine(terminal, terminal)
    line.show("text")
    line.clear()
    assert capsys.readouterr().out == ""


def test_a_long_text_is_cut_at_its_start_so_that_it_never_wraps(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = make_terminal(fullwidth=40, width_of_current_line=10)
    LiveLine(terminal, None).show("x" * 50 + ": launch 3 of 8")
    written = capsys.readouterr().out
    assert len(written) + 10 < 40
    assert written.startswith(" ...x")
    assert written.endswith("x: launch 3 of 8")


def test_a_command_has_a_separate_live_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command_line().show("memory of candidate 1 of 8")
    assert capsys.readouterr().out == ""  # which is no terminal
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    line = command_line()
    line.show("memory of candidate 1 of 8")
    line.show("ddp: launch 2 of 3")
    assert screen(capsys.readouterr().out) == " ddp: launch 2 of 3"
    assert not line.echoes
    line.clear()
