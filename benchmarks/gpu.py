"""What the plugin does on a machine with a GPU: one command, in pieces of less than ten minutes each.

    python benchmarks/gpu.py                       all pieces, about 9 minutes
    python benchmarks/gpu.py failures              this one alone
    python benchmarks/gpu.py --list                the pieces and how long they take
    python benchmarks/gpu.py --dry                 all pieces on the CPU, tiny; nothing is kept without --out

Results add up in gpu.json of the folder ``--out``, beside which gpu.txt is the report: a piece that runs again replaces
its part. A piece that fails or is not done in time is recorded with its reason and with what it had found, and the
others go on. Each piece is a process of its own. Let nothing else use the GPU meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks and perf_tests; ranks get this path as well

from benchmarks.common.project import RESULTS, ROOT, BrokenFile, environ_of
from benchmarks.gpu_pieces import failures, suite
from benchmarks.gpu_pieces.piece import Notes, Piece, Place
from pytest_ddpperf.against.git import GitError, git

PIECES: Sequence[Piece] = (suite.PIECE, failures.PIECE)
BY_NAME = {piece.name: piece for piece in PIECES}
SCHEMA = "pytest-ddpperf/gpu/1"
END_SECONDS = 20.0  # for a piece that is ended to end its ranks
SAID = 4000  # characters of what a piece printed before it failed
LOOK = """
import json, torch
try:
    torch.cuda.init()
    print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}, NCCL {torch.cuda.nccl.version()}")
except Exception as error:
    raise SystemExit(f"torch {torch.__version__} ({type(error).__name__}: {error})")
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the arguments ask for; returns 1 if a piece failed."""
    options = _parser().parse_args(arguments)
    if options.as_piece:
        BY_NAME[options.as_piece].run(Place(folder=options.work, dry=options.dry), Notes(options.notes))
        return 0
    if options.list:
        print("\n".join(map(listed, PIECES)))
        return 0
    machine = "a dry run on the CPU" if options.dry else machine_here()
    out = options.out or (None if options.dry else RESULTS)
    if out is not None and not out.is_dir():
        sys.exit(f"--out {out}: there is no such folder")
    chosen = [BY_NAME[name] for name in options.pieces] or list(PIECES)
    with tempfile.TemporaryDirectory(prefix="ddpperf-gpu-") as folder:
        try:
            return run(chosen, Place(folder=Path(folder), dry=options.dry), machine, out)
        except BrokenFile as error:
            sys.exit(str(error))


def machine_here() -> str:
    """Asks torch for the GPU, in a process of its own; ends this one if CUDA can use none."""
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:]
        sys.exit(f"CUDA can use no GPU here: {' '.join(said)}; --dry runs all pieces on the CPU")
    return done.stdout.strip()


def run(chosen: Sequence[Piece], place: Place, machine: str, out: Path | None) -> int:
    """Runs pieces one after the other, and keeps the results of each when it ends."""
    failed = 0
    minutes = sum(piece.seconds for piece in chosen) / 60
    print(f"{machine}: {len(chosen)} pieces, {'tiny; on a GPU ' * place.dry}about {minutes:.0f} minutes")
    for piece in chosen:
        print(listed(piece), flush=True)
        result = result_of(piece, place, machine)
        failed += bool(result["failed"])
        if out is not None:
            results = {**read(out / "gpu.json"), piece.name: result}
            partial = out / ".gpu.json.partial"
            partial.write_text(json.dumps({"schema": SCHEMA, "pieces": results}, indent=1) + "\n", encoding="utf-8")
            partial.replace(out / "gpu.json")
            (out / "gpu.txt").write_text(report(PIECES, results), encoding="utf-8")
        print("\n".join(_paragraph(piece, result)[1:]), flush=True)
    return int(failed > 0)


def listed(piece: Piece) -> str:
    """Returns a piece in a few lines."""
    times = f"takes about {piece.seconds:.0f} s, is ended after {piece.limit:.0f} s"
    return f"{piece.name}: {piece.question}\n  {times}\n  with --dry: {piece.dry}"


def result_of(piece: Piece, place: Place, machine: str) -> dict[str, Any]:
    """Runs a piece; returns what it found, how long it took, and why it did not end if it did not."""
    began, start = dt.datetime.now(tz=dt.timezone.utc), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ddpperf-gpu-piece-") as name:
        notes = Path(name) / "notes.json"
        failed = _failure(command_of(piece, place, notes), Path(name) / "printed", piece.limit)
        found = json.loads(notes.read_text(encoding="utf-8")) if notes.exists() else {}
    times = {"began": began.isoformat(timespec="seconds"), "seconds": round(time.monotonic() - start, 1)}
    return {**times, "machine": machine, "code": _code(), "dry": place.dry, "failed": failed, "found": found}


def command_of(piece: Piece, place: Place, notes: Path) -> list[str]:
    """Returns what runs a piece, here or by hand."""
    options = [f"--as-piece={piece.name}", f"--notes={notes}", f"--work={place.folder}"]
    return [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), *options, *(["--dry"] if place.dry else [])]


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
            if process.poll() is None:  # first as Ctrl-C does, so that a pytest below it ends as well
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(END_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return f"{reason}\n{said}" if reason else ""


def _code() -> str:
    """The commit that ran, and whether files were changed since."""
    try:
        return git(ROOT, "rev-parse", "--short", "HEAD") + ("+" if git(ROOT, "status", "--porcelain") else "")
    except GitError:
        return "unknown"


def read(file: Path) -> dict[str, Any]:
    """Returns the results in a file, by piece; none if there is no file yet."""
    if not file.exists():
        return {}
    data = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise BrokenFile(f"{file}: not a file of results of pieces; it does not say {SCHEMA}")
    pieces: dict[str, Any] = data["pieces"]
    return pieces


def report(pieces: Sequence[Piece], results: Mapping[str, Any]) -> str:
    """Returns what all pieces found, as text, in their order; of a piece that has not run, that it has not."""
    return "\n\n".join("\n".join(_paragraph(piece, results.get(piece.name))) for piece in pieces) + "\n"


def _paragraph(piece: Piece, result: Mapping[str, Any] | None) -> list[str]:
    title = f"{piece.name}: {piece.question}"
    if result is None:
        return [title, f"  not yet run, about {piece.seconds:.0f} s"]
    where = "a dry run, which says nothing of GPUs" if result["dry"] else result["machine"]
    ran = f"  {result['began']}, {result['seconds']:.0f} s, {where}, commit {result['code']}"
    failed = [f"  NOT DONE: {line}" for line in result["failed"].splitlines()]
    return [title, ran, *failed, *(f"  {line}" for line in piece.lines(result["found"]))]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pieces", nargs="*", choices=[*BY_NAME, []], metavar="PIECE", help="default: all")
    parser.add_argument("--list", action="store_true", help="print the pieces, and run none")
    parser.add_argument("--dry", action="store_true", help="run on the CPU with gloo, tiny sizes and times")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="for the results (default: benchmarks/results)")
    for hidden, kind in {"--as-piece": str, "--notes": Path, "--work": Path}.items():
        parser.add_argument(hidden, type=kind, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
