"""The command for machines with GPUs: what it runs, and what it says where there is no GPU."""

from __future__ import annotations

import sys

import pytest

from benchmarks import gpu
from benchmarks.gpu import END_SECONDS, is_done
from benchmarks.gpu_pieces.piece import MAX_SECONDS


def test_a_piece_ends_within_ten_minutes() -> None:
    assert MAX_SECONDS + 2 * END_SECONDS < 600
    assert max(piece.limit for piece in gpu.PIECES) <= MAX_SECONDS
    assert all(piece.seconds < piece.limit for piece in gpu.PIECES)


def test_a_failure_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ran: list[str] = []

    def fails(command: list[str], _limit: float) -> bool:
        ran.extend(word for word in command if word.startswith("--"))
        return len(ran) > 1

    monkeypatch.setattr(gpu, "is_done", fails)
    monkeypatch.setattr(gpu, "machine_here", lambda: "NVIDIA H200, torch 2.11.0+cu130")
    assert gpu.main([]) == 1
    assert ran == [f"--as-piece={piece.name}" for piece in gpu.PIECES]
    first, _, title, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("NVIDIA H200, torch 2.11.0+cu130, commit ")
    assert title == "gpu_tests, about 360 s: Do all tests pass that need a GPU?"


def test_without_a_gpu_the_command_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "LOOK", "raise SystemExit('the driver is too old')")
    with pytest.raises(SystemExit, match="CUDA can use no GPU here: the driver is too old; --dry runs all"):
        gpu.main(["failures"])


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; print('  found 3', flush=True); sys.exit(4)", "  found 3\n  NOT DONE: ended with status 4\n"),
        ("import time; print('  found 3', flush=True); time.sleep(60)", "  found 3\n  NOT DONE: not done after 1 s\n"),
        ("print('  found 3')", "  found 3\n"),
    ],
    ids=["fails", "takes too long", "is done"],
)
def test_what_a_piece_had_found_is_printed_however_it_ends(
    code: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert is_done([sys.executable, "-c", code], 1.0) is ("NOT DONE" not in said)
    assert capfd.readouterr().out == said


@pytest.mark.slow
@pytest.mark.parametrize("name", [piece.name for piece in gpu.PIECES])
def test_all_pieces_run_dry(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--dry", name]) == 0, capfd.readouterr().out
