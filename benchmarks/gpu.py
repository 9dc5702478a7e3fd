"""What the plugin does on a machine with a GPU: one command, in pieces of less than ten minutes each.

    python benchmarks/gpu.py > gpu.txt             all pieces, about 9 minutes
    python benchmarks/gpu.py failures              this one alone
    python benchmarks/gpu.py --dry                 all pieces on the CPU, tiny

Each piece is a process of its own, which prints what it finds at once. If one fails or is not done in time, that is
printed, and the others go on. Let nothing else use the GPU meanwhile.
"""

from __future__ import annotations

import argparse
import datetime as dt
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks and perf_tests; ranks get this path as well

from benchmarks.common.project import ROOT, environ_of
from benchmarks.gpu_pieces import failures, suite
from benchmarks.gpu_pieces.piece import Piece, Place
from pytest_ddpperf.against.git import git
from pytest_ddpperf.launch.processes import finished

PIECES: Sequence[Piece] = (suite.PIECE, failures.PIECE)
BY_NAME = {piece.name: piece for piece in PIECES}
END_SECONDS = 20.0  # for a piece that is ended to end its ranks
LOOK = """
import torch
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
        for line in BY_NAME[options.as_piece].lines(Place(dry=options.dry)):
            print(f"  {line}", flush=True)
        return 0
    machine = "a dry run on the CPU, which says nothing of GPUs" if options.dry else machine_here()
    commit = git(ROOT, "rev-parse", "--short", "HEAD") + ("+" if git(ROOT, "status", "--porcelain") else "")
    print(f"{machine}, commit {commit}, {dt.datetime.now(tz=dt.timezone.utc).isoformat(timespec='seconds')}")
    failed = False
    for piece in [BY_NAME[name] for name in options.pieces] or PIECES:
        print(f"\n{piece.name}, about {piece.seconds:.0f} s: {piece.question}", flush=True)
        command = [sys.executable, __file__, f"--as-piece={piece.name}", *(["--dry"] if options.dry else [])]
        failed |= not is_done(command, piece.limit)
    return int(failed)


def machine_here() -> str:
    """Asks torch for the GPU, in a process of its own; ends this one if CUDA can use none."""
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:]
        sys.exit(f"CUDA can use no GPU here: {' '.join(said)}; --dry runs all pieces on the CPU")
    return done.stdout.strip()


def is_done(command: Sequence[str], limit: float) -> bool:
    """Runs a piece, which prints what it finds; prints why if it does not end well within ``limit`` seconds."""
    environ = {"NCCL_DEBUG": "WARN", **environ_of((ROOT,))}
    try:
        status = finished(command, limit, patience=END_SECONDS, cwd=ROOT, env=environ).returncode
        reason = f"ended with status {status}" if status else ""
    except subprocess.TimeoutExpired:
        reason = f"not done after {limit:.0f} s"
    if reason:
        print(f"  NOT DONE: {reason}", flush=True)
    return not reason


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pieces", nargs="*", choices=[*BY_NAME, []], metavar="PIECE", help="default: all")
    parser.add_argument("--dry", action="store_true", help="run on the CPU with gloo, tiny sizes and times")
    parser.add_argument("--as-piece", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
