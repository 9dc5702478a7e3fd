from __future__ import annotations

import subprocess
import sys

ASKED = """
import sys

import pytest


class FirstFinder:
    asked = []

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        cls.asked.append(name)


sys.meta_path.insert(0, FirstFinder)
finders = [*sys.meta_path]
import pytest_ddpperf.plugin

assert sys.meta_path == finders
print(*sorted(name for name in FirstFinder.asked if name.startswith("pytest_ddpperf")))
"""


def test_pytest_rewrites_no_module_that_a_run_without_a_benchmark_imports_but_those_that_come_before() -> None:
    run = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True)
    package, *more = ("pytest_ddpperf", "plugin", "run", "run.session")
    assert run.stdout.split() == [package, *(f"{package}.{name}" for name in more)]
