"""What the plugin does on a machine with one or more GPUs: one command, in pieces of less than ten minutes each.

    python benchmarks/gpu.py                       all pieces that this machine can run, about 50 minutes
    python benchmarks/gpu.py facts launch_costs    these alone
    python benchmarks/gpu.py --limit 60            none longer than a minute: what it has found by then is kept
    python benchmarks/gpu.py --list                the pieces, what they need and how long they take
    python benchmarks/gpu.py --dry                 all pieces on the CPU, tiny; nothing is kept without --out

Results add up in gpu.json of the folder ``--out``, beside which gpu.txt is the report: a piece that runs again replaces
its part. A piece that fails or is not done in time is recorded with its reason and with what it had found, and the
others go on. Each piece is a process of its own. Let nothing else use the GPUs meanwhile.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks and perf_tests; ranks get this path as well

from benchmarks.gpu_pieces import clocks, facts, failures, launches, profiles, rest, several, suite, turns, verdicts
from benchmarks.gpu_pieces.piece import Notes, Piece, Place
from benchmarks.gpu_pieces.runner import Machine, machine_here, read, report, result_of, told, write
from benchmarks.quality.project import BrokenFile

PIECES: Sequence[Piece] = (
    facts.PIECE,
    suite.PIECE,
    profiles.PIECE,
    launches.PIECE,
    *verdicts.PIECES,
    failures.PIECE,
    clocks.PIECE,
    rest.PIECE,
    *turns.PIECES,
    *several.PIECES,
)
BY_NAME = {piece.name: piece for piece in PIECES}
RESULTS = Path(__file__).parent / "results"
WORK = Path(tempfile.gettempdir()) / "ddpperf-gpu"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments ask for; 1 if a piece failed."""
    options = _parser().parse_args(arguments)
    if options.as_piece:
        place = Place(gpus=options.gpus, folder=options.work, dry=options.dry)
        BY_NAME[options.as_piece].run(place, Notes(options.notes))
        return 0
    if options.list:
        print("\n".join(map(listed, PIECES)))
        return 0
    machine = Machine("of any kind", (), "a dry run on the CPU") if options.dry else machine_here()
    if not options.dry and not machine.gpus:
        sys.exit(f"CUDA can use no GPU here: {machine}; --dry runs all pieces on the CPU")
    out = options.out or (None if options.dry else RESULTS)
    if out is not None and not out.is_dir():
        sys.exit(f"--out {out}: there is no such folder")
    chosen = [BY_NAME[name] for name in options.pieces] or list(PIECES)
    with tempfile.TemporaryDirectory(prefix="ddpperf-gpu-dry-") as aside:
        folder = Path(aside) if options.dry else options.work
        folder.mkdir(exist_ok=True)
        try:
            place = Place(len(machine.gpus) or 1, folder.resolve(), dry=options.dry)
            return run(chosen, place, machine, out, options.limit)
        except BrokenFile as error:
            sys.exit(str(error))


def run(chosen: Sequence[Piece], place: Place, machine: Machine, out: Path | None, limit: float = math.inf) -> int:
    """Run pieces one after the other, each for ``limit`` seconds at most, and keep its results when it ends."""
    failed = 0
    minutes = sum(min(limit, piece.seconds) for piece in chosen if place.dry or not piece.lacks(place)) / 60
    takes = f"tiny; on GPUs they take about {minutes:.0f} minutes" if place.dry else f"about {minutes:.0f} minutes"
    print(f"{machine}: {len(chosen)} pieces, {takes}")
    for piece in chosen:
        print(listed(piece), flush=True)
        lacks = piece.lacks(place)
        if lacks:
            print(f"  left out: {lacks}", flush=True)
            continue
        result = result_of(piece, place, machine, out, limit)
        failed += bool(result["failed"])
        if out is not None:
            results = {**read(out / "gpu.json"), piece.name: result}
            write(out / "gpu.json", results)
            (out / "gpu.txt").write_text(report(PIECES, results), encoding="utf-8")
        ended = f"NOT DONE: {result['failed']}" if result["failed"] else f"done in {result['seconds']:.0f} s"
        print("\n".join(f"  {line}" for line in (*told(piece.lines, result["found"]), ended)), flush=True)
    return int(failed > 0)


def listed(piece: Piece) -> str:
    """A piece in a few lines."""
    return (
        f"{piece.name}: {piece.question}\n"
        f"  needs {piece.needs}, takes about {piece.seconds:.0f} s, is ended after {piece.limit:.0f} s\n"
        f"  with --dry: {piece.dry}"
    )


def _parser() -> argparse.ArgumentParser:
    pieces = "\n".join(
        f"  {each.name:<13} {each.seconds:4.0f} s  {each.question}{' (2 GPUs)' * (each.gpus > 1)}" for each in PIECES
    )
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=f"pieces, and the seconds that each takes:\n{pieces}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pieces", nargs="*", choices=[*BY_NAME, []], metavar="PIECE", help="default: all")
    parser.add_argument("--list", action="store_true", help="print the pieces, and run none")
    parser.add_argument(
        "--limit", type=_seconds, default=math.inf, metavar="SECONDS", help="end each piece after so long"
    )
    parser.add_argument("--dry", action="store_true", help="run on the CPU with gloo, tiny sizes and times")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="for the results (default: benchmarks/results)")
    parser.add_argument(
        "--work", type=Path, default=WORK, metavar="FOLDER", help="for what later pieces use (default: %(default)s)"
    )
    for hidden, kind in {"--as-piece": str, "--notes": Path, "--gpus": int}.items():
        parser.add_argument(hidden, type=kind, help=argparse.SUPPRESS)
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"{text}: takes seconds, above 0")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
