"""How often a run of a script hangs: counted runs against HEAD, one after the other, beside two busy processes.

    python benchmarks/hangs.py --runs 1000 --folder hangs

A run hangs that takes a minute longer than the deadlines of its two launches. It is ended by SIGABRT, at which Python
writes the stacks of pytest's process. The folder keeps a line for each run in ``runs.jsonl``, of earlier calls too, and
what pytest printed in a run that hung or failed. The last lines that are printed have all of them, and the upper end of
the 95 % interval of the rate (Clopper and Pearson: 3.7 / n where none of n runs hung). The status is 1 if one hung.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks.common

from benchmarks.common.project import ROOT, busy, environ_of, repository
from pytest_ddpperf.stats.intervals import clopper_pearson

TIMEOUT = 60  # seconds; of a launch, of which each side has one
LIMIT = 2 * TIMEOUT + 60
ABORT_SECONDS = 10.0  # in which the stacks are written
SCRIPT = """\
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
while True:
    inputs, targets = torch.randn(16, 64), torch.randint(8, (16,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG if dist.get_backend() == "nccl" else dist.ReduceOp.SUM)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
"""
TEST = """\
from pytest_ddpperf import Script


def test_training(ddpperf):
    ddpperf.check(Script("train.py"))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100, help="more runs to make (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=Path("hangs"), help="what is kept (default: %(default)s)")
    parser.add_argument("--busy", type=int, default=2, help="processes that compute beside (default: %(default)s)")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    file = options.folder / "runs.jsonl"
    with tempfile.TemporaryDirectory() as name, busy(options.busy):
        project = Path(name)
        repository(project, {"train.py": SCRIPT, "test_train.py": TEST})
        for _ in range(options.runs):
            found = run(project, options.folder)
            with file.open("a", encoding="utf-8") as kept:
                kept.write(json.dumps(found) + "\n")
            if found["status"]:
                print(f"hung: {found['hung']}, status {found['status']}: {found['printed']}", flush=True)
    runs = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    hung, failed = (sum(map(bool, (one[name] for one in runs))) for name in ("hung", "status"))
    longest = max((one["seconds"] for one in runs if not one["hung"]), default=0.0)
    print(f"{len(runs)} runs, {hung} hung, {failed - hung} more failed; the longest other one took {longest:.0f} s")
    print(f"the rate of hangs is at most {clopper_pearson(hung, len(runs)).high:.2%} (95 % interval)")
    sys.exit(hung > 0)


def run(project: Path, folder: Path) -> dict[str, object]:
    """Makes one run; returns whether it hung, its status, its seconds, and the file of what it printed if it failed."""
    options = ("--ddpperf-against=HEAD", "--ddpperf-counts=only", "--ddpperf-device=cpu", "--ddpperf-world-size=2")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--ddpperf-timeout={TIMEOUT}", *options]
    begun, hung, environ = time.monotonic(), False, environ_of((ROOT,))
    printed = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    with (
        printed.open("wb") as output,
        subprocess.Popen(
            command,
            cwd=project,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            hung = True
            process.send_signal(signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(ABORT_SECONDS)
        finally:
            process.kill()
    if not process.returncode:
        printed.unlink()
    seconds, status = round(time.monotonic() - begun, 1), process.returncode
    return {"hung": hung, "status": status, "seconds": seconds, "printed": printed.name if status else ""}


if __name__ == "__main__":
    main()
