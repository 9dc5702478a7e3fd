"""The house keeps its floors: imports run downward, and what costs nothing when unused costs nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def modules_after(statement: str) -> set[str]:
    """Top-level names of the modules that a fresh interpreter holds after ``statement``."""
    code = f"{statement}; import sys; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_loading_the_plugin_imports_neither_torch_nor_numpy() -> None:
    assert not {"torch", "numpy", "scipy", "tabulate", "cloudpickle"} & modules_after("import pytest_ddpperf.plugin")


def test_the_controller_never_imports_torch() -> None:
    statement = (
        "import pytest_ddpperf.plugin, pytest_ddpperf.fixture, pytest_ddpperf.cli.command; from pytest_ddpperf import *"
    )
    assert not {"torch", "numpy"} & modules_after(statement)


def test_the_ranks_never_import_pytest() -> None:
    ranks = "import pytest_ddpperf.launch.zygote, pytest_ddpperf.launch.rank, pytest_ddpperf.training.step"
    assert "torch" in modules_after(ranks)
    assert not {"pytest", "_pytest"} & modules_after(ranks)


def test_imports_run_downward() -> None:
    """The contracts are in pyproject.toml, under tool.importlinter."""
    lint = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as lint; lint()"]
    done = subprocess.run([*lint, "--no-cache"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
