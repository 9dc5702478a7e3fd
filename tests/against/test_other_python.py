"""Runs against another environment as a user meets them: torch is that of this one, and a package is another one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import pytest_ddpperf
from tests.factories import commit_all, git, virtual_environment

CALLS = """
import pytest

pytestmark = pytest.mark.ddpperf(world_size=2, backend="gloo", device="cpu", counts='only')


def build(ctx):
    import torch

    try:
        from planted import VERSION
    except ImportError:
        VERSION = "3.0"
    tensor = torch.ones(4)

    def step():
        for _ in range(int(VERSION[0])):
            torch.distributed.all_reduce(tensor)
        return 1.0

    return step


def test_calls(ddpperf):
    ddpperf.check(build)
"""


@pytest.fixture(autouse=True)
def _lines_are_long(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths of temporary folders are."""
    monkeypatch.setenv("COLUMNS", "600")


@pytest.fixture
def site() -> str:
    """The packages of this environment."""
    return next(entry for entry in reversed(sys.path) if Path(entry).name == "site-packages")


@pytest.mark.slow
def test_a_package_of_another_version_is_named_and_its_extra_operators_fail_the_test(
    pytester: pytest.Pytester, tmp_path: Path, site: str
) -> None:
    python = virtual_environment(tmp_path / "old", {"planted": "2.0"}, (site,))
    pytester.makepyfile(test_it=CALLS)
    run = pytester.runpytest_subprocess(
        "-v", f"--ddpperf-against-python={python}", "--ddpperf-report=json:results.json"
    )
    run.assert_outcomes(failed=1)
    run.stdout.fnmatch_lines_random(
        [
            "Cause      all_reduce 2 -> 3 calls per step*",
            f"custom: REGRESSED compared with this checkout under {python}*",
            f"*{python} -> this environment: no fact of the environment differs; packages: planted 2.0 -> none",
            f"*ddpperf: FAILED: 1 regressed | against this checkout under {python}*",
        ]
    )
    assert "ran the same code" not in run.stdout.str()
    document = json.loads((pytester.path / "results.json").read_text())
    (result,) = document["results"]
    against = result["against"]
    assert (against["revision"], against["python"]) == ("this checkout", str(python))
    assert against["packages"]["planted"] == {"there": "2.0", "here": None}
    assert against["environment"]["torch"] == document["environment"]["torch"]


@pytest.mark.slow
def test_a_revision_runs_in_another_environment(pytester: pytest.Pytester, tmp_path: Path, site: str) -> None:
    python = virtual_environment(tmp_path / "old", {"planted": "2.0"}, (site,))
    pytester.makepyfile(library="def calls(version):\n    return int(version[0])\n")
    pytester.makepyfile(
        test_it=CALLS.replace("import pytest\n", "import library\nimport pytest\n", 1).replace(
            "int(VERSION[0])", "library.calls(VERSION)"
        )
    )
    git(pytester.path, "init", "-q")
    commit_all(pytester.path)
    pytester.makepyfile(library="def calls(version):\n    return int(version[0]) + 2\n")
    options = ("--ddpperf-against=HEAD", f"--ddpperf-against-python={python}", "--ddpperf-report=json:results.json")
    run = pytester.runpytest_subprocess("-q", *options)
    run.stdout.fnmatch_lines(
        ["Cause      all_reduce 2 -> 5 calls per step*", "*ddpperf: FAILED: 1 regressed | against *"]
    )
    run.stdout.fnmatch_lines([f"custom: REGRESSED compared with revision * (HEAD) under {python}, 2 ranks, gloo"])
    against = json.loads((pytester.path / "results.json").read_text())["results"][0]["against"]
    files = against["modules"]["library"]
    assert files["here"] == str(pytester.path / "library.py")
    assert files["there"] != files["here"]
    assert len(git(pytester.path, "worktree", "list").splitlines()) == 1


@pytest.mark.slow
def test_a_package_that_the_other_environment_lacks_is_named(
    pytester: pytest.Pytester, tmp_path: Path, site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(pytest_ddpperf.__file__).parents[1]))
    here = virtual_environment(tmp_path / "here", {"planted": "3.0"}, (site,))
    there = virtual_environment(tmp_path / "there", {}, (site,))
    pytester.makepyfile(test_it=CALLS.replace("except ImportError", "except KeyError"))
    run = pytester.run(here, "-m", "pytest", f"--ddpperf-against-python={there}")
    run.assert_outcomes(passed=1)
    run.stdout.fnmatch_lines_random(
        [
            f"*this checkout under {there} cannot run this benchmark: *No module named 'planted'*",
            f"*{there} -> this environment: *; packages: planted none -> 3.0",
        ]
    )
