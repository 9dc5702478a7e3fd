"""Runs pieces, each in a process of its own with a deadline, and keeps what they found in one file."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_pieces.piece import Piece, Place
from benchmarks.quality.project import ROOT, BrokenFile, environ_of
from pytest_ddpperf.against.git import GitError, git

SCHEMA = "pytest-ddpperf/gpu/1"
END_SECONDS = 20.0  # for a piece that is ended to end its ranks
SAID = 4000  # characters of what a piece printed before it failed
# Names come after CUDA has started, which counts the GPUs that it can use: NVML counts those of the machine.
LOOK = """
import json, torch
found = {"torch": str(torch.__version__), "gpus": [], "error": ""}
try:
    torch.cuda.init()
    found["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch._C._cuda_getDeviceCount())]
except Exception as error:
    found["error"] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Machine:
    """What pieces run on."""

    torch: str
    gpus: tuple[str, ...]
    error: str = ""  # why CUDA cannot use what there is

    def __str__(self) -> str:
        names = [f"{self.gpus.count(name)} x {name}" for name in dict.fromkeys(self.gpus)]
        return f"{', '.join(names) or 'no GPU'}, torch {self.torch}{f' ({self.error})' if self.error else ''}"


def machine_here() -> Machine:
    """Asks torch in a process of its own."""
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=120, check=False)
    try:
        found = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said = done.stderr.strip().splitlines()
        return Machine("unknown", (), said[-1] if said else f"python ended with status {done.returncode}")
    return Machine(found["torch"], tuple(found["gpus"]), found["error"])


def command_of(piece: Piece, place: Place, notes: Path) -> list[str]:
    """What runs a piece, here or by hand."""
    options = [f"--as-piece={piece.name}", f"--notes={notes}", f"--work={place.folder}", f"--gpus={place.gpus}"]
    return [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), *options, *(["--dry"] if place.dry else [])]


def result_of(
    piece: Piece, place: Place, machine: Machine, kept: Path | None, limit: float = math.inf
) -> dict[str, Any]:
    """Runs a piece: what it found, how long it took, and why it did not end if it did not.

    ``kept`` is the folder for the files of a piece that ended; None for nowhere.
    """
    began, start = dt.datetime.now(tz=dt.timezone.utc), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ddpperf-gpu-piece-") as name:
        notes = Path(name) / "notes.json"
        failed = _failure(command_of(piece, place, notes), Path(name) / "printed", min(limit, piece.limit))
        found = json.loads(notes.read_text(encoding="utf-8")) if notes.exists() else {}
        for file in piece.files:
            if kept is not None and (Path(name) / file).exists():
                shutil.copy(Path(name) / file, kept)
    return {
        "began": began.isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - start, 1),
        "machine": str(machine),
        "code": _code(),
        "dry": place.dry,
        "failed": failed,
        "found": found,
    }


def _failure(command: Sequence[str], printed: Path, limit: float) -> str:
    """Runs a command; why it failed and what it had printed by then, or nothing."""
    environ = {"NCCL_DEBUG": "WARN", "PYTHONUNBUFFERED": "1", **environ_of((ROOT,))}
    with printed.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environ, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = process.wait(limit)
            reason = "" if status == 0 else f"ended with status {status}"
        except subprocess.TimeoutExpired:
            reason = f"not done after {limit:.0f} s"
        finally:
            said = printed.read_text(encoding="utf-8", errors="replace")[-SAID:].strip().replace(f"{ROOT}/", "")
            _end(process)
    return f"{reason}\n{said}" if reason else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a piece: first as Ctrl-C does, so that a pytest below it ends as well."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _code() -> str:
    """The commit that ran, and whether files were changed since."""
    try:
        return git(ROOT, "rev-parse", "--short", "HEAD") + ("+" if git(ROOT, "status", "--porcelain") else "")
    except GitError:
        return "unknown"


def read(file: Path) -> dict[str, Any]:
    """The results in a file, by piece; none where there is no file yet."""
    if not file.exists():
        return {}
    data = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise BrokenFile(f"{file}: not a file of results of pieces; it does not say {SCHEMA}")
    pieces: dict[str, Any] = data["pieces"]
    return pieces


def write(file: Path, results: Mapping[str, Any]) -> None:
    """Write a file anew, whole or not at all."""
    partial = file.with_name(f".{file.name}.partial")
    partial.write_text(json.dumps({"schema": SCHEMA, "pieces": results}, indent=1) + "\n", encoding="utf-8")
    partial.replace(file)


def report(pieces: Sequence[Piece], results: Mapping[str, Any]) -> str:
    """What all pieces found, as text, in their order; of a piece that has not run, that it has not."""
    return "\n\n".join("\n".join(_paragraph(piece, results.get(piece.name))) for piece in pieces) + "\n"


def _paragraph(piece: Piece, result: Mapping[str, Any] | None) -> list[str]:
    title = f"{piece.name}: {piece.question}"
    if result is None:
        return [title, f"  not yet run; needs {piece.needs}, about {piece.seconds:.0f} s"]
    where = "a dry run, which says nothing of GPUs" if result["dry"] else result["machine"]
    ran = f"  {result['began']}, {result['seconds']:.0f} s, {where}, commit {result['code']}"
    failed = [f"  NOT DONE: {line}" for line in result["failed"].splitlines()]
    return [title, ran, *failed, *(f"  {line}" for line in told(piece.lines, result["found"]))]


def told(lines: Callable[[Mapping[str, Any]], list[str]], found: Mapping[str, Any]) -> list[str]:
    """What a piece found, as far as it came."""
    try:
        return lines(found)
    except (KeyError, IndexError, ZeroDivisionError, ValueError) as error:
        return [f"what it found is not whole: {type(error).__name__}: {error}"]
