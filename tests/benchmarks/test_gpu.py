"""The command for machines with GPUs: what it runs, what it keeps, what it says where there is no GPU."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu
from benchmarks.gpu import END_SECONDS, read
from benchmarks.gpu_pieces.piece import MAX_SECONDS, Notes, Piece, Place

ONE_GPU = "NVIDIA H200, torch 2.11.0+cu130"


def lines(found: Mapping[str, Any]) -> list[str]:
    return [f"found {found['number']}"]


def finds(place: Place, notes: Notes) -> None:
    notes(number=7)


PIECE = Piece(name="plain", question="Does it work?", seconds=10, run=finds, lines=lines)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the pieces that were run: each finds how many there were, and the piece ``bad`` fails."""
    names: list[str] = []

    def result_of(piece: Piece, place: Place, machine: str, limit: float) -> dict[str, Any]:
        names.append(piece.name)
        failed = "ended with status 1\nRuntimeError: no device" if piece.name == "bad" else ""
        ran = {"began": "2026-01-12T10:00:00+00:00", "seconds": 1.5, "machine": machine, "code": "3f2a1c0"}
        found = {"number": len(names)} if limit == math.inf else {"limit": limit}
        return {**ran, "dry": place.dry, "failed": failed, "found": found}

    pieces = (PIECE, replace(PIECE, name="bad"))
    monkeypatch.setattr(gpu, "PIECES", pieces)
    monkeypatch.setattr(gpu, "BY_NAME", {piece.name: piece for piece in pieces})
    monkeypatch.setattr(gpu, "result_of", result_of)
    monkeypatch.setattr(gpu, "machine_here", lambda: ONE_GPU)
    return names


def test_a_piece_ends_within_ten_minutes_and_says_how_long_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert MAX_SECONDS + 2 * END_SECONDS < 600
    assert max(piece.limit for piece in gpu.PIECES) <= MAX_SECONDS
    assert all(piece.seconds < piece.limit for piece in gpu.PIECES)
    assert gpu.main(["--list"]) == 0
    said = capsys.readouterr().out
    for piece in gpu.PIECES:
        assert f"{piece.name}: {piece.question}\n  takes about {piece.seconds:.0f} s" in said


@pytest.mark.parametrize("limit", ["0", "-5", "nan"])
def test_a_limit_that_is_no_time_is_refused(limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        gpu.main([f"--limit={limit}"])
    assert f"{limit}: takes seconds, above 0" in capsys.readouterr().err


def test_a_limit_holds_for_each_piece(ran: list[str], tmp_path: Path) -> None:
    assert gpu.main([f"--out={tmp_path}", "--limit=60", "plain"]) == 0
    assert ran == ["plain"]
    assert json.loads((tmp_path / "gpu.json").read_text())["pieces"]["plain"]["found"] == {"limit": 60.0}


def test_results_add_up_and_a_failure_does_not_end_the_others(
    ran: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [f"--out={tmp_path}"]
    assert gpu.main(options) == 1
    assert ran == ["plain", "bad"]
    report = (tmp_path / "gpu.txt").read_text()
    assert "plain: Does it work?\n  2026-01-12T10:00:00+00:00, 2 s, NVIDIA H200, torch 2.11.0+cu130" in report
    assert "  NOT DONE: ended with status 1\n  NOT DONE: RuntimeError: no device\n  found 2" in report

    assert gpu.main(["plain", *options]) == 0
    results = read(tmp_path / "gpu.json")
    assert {name: result["found"]["number"] for name, result in results.items()} == {"plain": 3, "bad": 2}


def test_a_dry_run_keeps_nothing_without_an_output_folder(
    ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "RESULTS", tmp_path)
    assert gpu.main(["--dry"]) == 1
    assert ran == ["plain", "bad"]
    assert list(tmp_path.iterdir()) == []
    assert gpu.main(["--dry", "plain", f"--out={tmp_path}"]) == 0
    assert "a dry run, which says nothing of GPUs" in (tmp_path / "gpu.txt").read_text()


def test_without_a_gpu_the_command_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "LOOK", "raise SystemExit('the driver is too old')")
    with pytest.raises(SystemExit, match="CUDA can use no GPU here: the driver is too old; --dry runs all"):
        gpu.main(["failures"])


def command(code: str, monkeypatch: pytest.MonkeyPatch, limit: float = 60.0) -> Piece:
    """A piece whose process runs this code, with the file of its notes as the argument."""
    monkeypatch.setattr(gpu, "command_of", lambda _piece, _place, notes: [sys.executable, "-c", code, str(notes)])
    monkeypatch.setattr(Piece, "limit", limit)
    return PIECE


def test_a_piece_that_fails_keeps_its_earlier_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys; open(sys.argv[1], 'w').write('{\"number\": 3}'); sys.exit('CUDA error: device busy')"
    result = gpu.result_of(command(code, monkeypatch), Place(tmp_path), ONE_GPU)
    assert result["failed"] == "ended with status 1\nCUDA error: device busy"
    assert result["found"] == {"number": 3}


@pytest.mark.parametrize(("own", "asked"), [(0.5, math.inf), (60.0, 0.5)], ids=["by its own", "as the user asks"])
def test_a_piece_is_ended_by_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: float, asked: float
) -> None:
    code = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]); signal.pause()"
    monkeypatch.setattr(gpu, "END_SECONDS", 0.1)
    result = gpu.result_of(command(code, monkeypatch, limit=own), Place(tmp_path), ONE_GPU, asked)
    assert result["failed"].startswith("not done after 0 s")
    assert result["found"] == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", [piece.name for piece in gpu.PIECES])
def test_all_pieces_run_dry(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--dry", f"--out={tmp_path}", name]) == 0, capsys.readouterr().out
    assert "not whole" not in (tmp_path / "gpu.txt").read_text()
