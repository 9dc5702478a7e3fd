"""Commands of a page in a shell, a project that they run in, and the outputs that a page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Nothing is installed, and srun starts two tasks of this machine, as it does with --ntasks-per-node=1 on two nodes.
STAND_INS = """
ddpperf() { "$PYTHON" -c "import sys; from pytest_ddpperf.cli.command import main; sys.exit(main())" "$@"; }
pytest() { "$PYTHON" -m pytest "$@"; }
pip() { echo "pip $*"; }
python() { "$PYTHON" "$@"; }
srun() {
    [ "$1" = --kill-on-bad-exit=1 ] && shift
    export SLURM_JOB_ID=7 SLURM_STEP_ID=$$ SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0
    SLURM_PROCID=1 "$@" & local other=$! status=0
    SLURM_PROCID=0 "$@" || status=$?
    wait $other || [ $? = $status ]
    return $status
}
"""
CALL = "dist.all_reduce(torch.ones(4))"
FILES = {
    "work.py": f"""
def build(ctx):
    import torch
    import torch.distributed as dist

    def step():
        {CALL}
        return 1.0

    return step
""",
    "test_suite.py": """
import pytest
from work import build


@pytest.mark.ddpperf(counts='only')
def test_step(ddpperf):
    ddpperf.check(build)
""",
}


def run_shell(commands: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs commands as CI does: in a shell that ends at the first failure."""
    return subprocess.run(
        ["bash", "-e", "-c", STAND_INS + commands],
        cwd=folder,
        env={**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "GITHUB_STEP_SUMMARY": "", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def shown(page: str, words: str) -> str:
    """Returns the output in a page of docs/ that has these words."""
    blocks = re.findall(r"```text\n(.*?)```", (ROOT / "docs" / page).read_text("utf-8"), re.DOTALL)
    (block,) = (block for block in blocks if words in block)
    return str(block)


def write_suite(folder: Path) -> None:
    """Writes a suite of one test, whose steps call one collective."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (folder / name).write_text(text)


def make_worse(folder: Path) -> None:
    """Adds a second collective to each step of the suite."""
    work = folder / "work.py"
    work.write_text(work.read_text().replace(CALL, f"{CALL}; {CALL}"))
