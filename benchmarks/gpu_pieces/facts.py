"""What this machine is, and whether the riskiest path works at all."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from benchmarks.gpu_pieces.piece import Notes, Piece, Place
from benchmarks.gpu_pieces.pytest_runs import outcome_lines, outcomes

ASKED = {
    "clocks, power, ECC, compute mode": ("-q", "-d", "CLOCK,POWER,ECC,COMPUTE"),
    "topology": ("topo", "-m"),
    "GPUs and driver": (
        "--query-gpu=name,memory.total,driver_version,vbios_version,persistence_mode,mig.mode.current,pcie.link.gen.max",
        "--format=csv",
    ),
}
RISKIEST = ("tests/training/test_on_gpu.py", "tests/instruments/test_clock.py", "tests/training/test_memory_limit.py")
VARIABLES = re.compile(r"(CUDA|NCCL|NVIDIA(?!_REQUIRE)|TORCH|PYTORCH|HIP|ROCR|OMP)_")
COLOURS = re.compile("\x1b\\[[0-9;]*m")  # nvidia-smi topo underlines its head
SMALL_SHM = 2**30  # bytes; NCCL needs shared memory for each pair of ranks


def run(place: Place, notes: Notes) -> None:
    notes(smi={title: _smi(arguments) for title, arguments in ASKED.items()})
    shm = shutil.disk_usage("/dev/shm") if os.path.isdir("/dev/shm") else None  # noqa: PTH112, S108  nothing is written
    notes(
        shm=None if shm is None else {"total": shm.total, "free": shm.free},
        files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        cores=len(os.sched_getaffinity(0)),
        versions=_versions(),
        variables={name: value for name, value in sorted(os.environ.items()) if VARIABLES.match(name)},
    )
    notes(tests=outcomes(["-x", "-m", "gpu", *place.chosen(RISKIEST, RISKIEST[:1])]))


def _smi(arguments: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi {' '.join(arguments)}: {error}"
    return plain(done.stdout or done.stderr)


def plain(text: str) -> str:
    """A text without the codes of a terminal."""
    return COLOURS.sub("", text).strip()


def _versions() -> dict[str, str | None]:
    """Of all that takes part, as torch tells without a CUDA context."""
    import torch

    nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else None  # type: ignore[no-untyped-call]
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return {
        "Python": platform.python_version(),
        "torch": str(torch.__version__),
        "CUDA": torch.version.cuda,
        "HIP": torch.version.hip,
        "NCCL": None if nccl is None else ".".join(map(str, nccl)),
        "cuDNN": None if cudnn is None else str(cudnn),
    }


def lines(found: Mapping[str, Any]) -> list[str]:
    told = []
    if "versions" in found:
        known = [f"{name} {version}" for name, version in found["versions"].items() if version is not None]
        told.append(f"{', '.join(known)}; {found['cores']} cores, {found['files']} open files at most")
        shm = found["shm"]
        size = "no shared memory" if shm is None else f"shared memory of {shm['total'] / 2**20:.0f} MiB"
        small = shm is not None and shm["total"] < SMALL_SHM
        told.append(f"{size}{': too small for NCCL between several ranks (docker run --shm-size=1g)' if small else ''}")
        told += [f"  {name}={value}" for name, value in found["variables"].items()]
    for title, text in found.get("smi", {}).items():
        told += [f"{title}:", *(f"  {line}" for line in text.splitlines() if line.strip())]
    return [*told, *(outcome_lines(found["tests"]) if "tests" in found else [])]


PIECE = Piece(
    name="facts",
    question="What is this machine, and do fork, CUDA, NCCL, events and CUPTI work at all?",
    seconds=120,
    run=run,
    lines=lines,
    dry="the same facts; the GPU tests skip themselves",
)
