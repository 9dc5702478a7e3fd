"""The search for a package: on made-up probes, on real small packages that are built here, and kept environments."""

from __future__ import annotations

import errno
import fcntl
import shutil
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

import pytest_ddpperf
from pytest_ddpperf.cli.bisect import command, package_search
from pytest_ddpperf.cli.bisect.package_search import Environments, PipRefused
from pytest_ddpperf.cli.bisect.ranges import PackageRange
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.run.session.leases import Locks
from pytest_ddpperf.run.session.probe import Outcome, Probe
from tests.cli.bisect.outcomes import counted, outcome
from tests.cli.running import Run

SUITE = """
import pytest

pytestmark = pytest.mark.ddpperf(world_size=2, backend="gloo", device="cpu", counts='only')


def build(ctx):
    import planted
    import torch

    tensor = torch.ones(4)

    def step():
        for _ in range(planted.CALLS):
            torch.distributed.all_reduce(tensor)
        return 1.0

    return step


def test_calls(ddpperf):
    ddpperf.check(build)
"""


def wheel(folder: Path, name: str, version: str, body: str = "", requires: Sequence[str] = ()) -> None:
    """Build a wheel of one module."""
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    files = {
        f"{name}.py": body,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in (*files, f"{info}/RECORD"))
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for file, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(file, text)


@pytest.mark.parametrize(
    ("culprits", "status", "told"),
    [
        ("a", 0, "a 1 -> 2 makes the difference\n  this change alone makes old.txt worse\n"),
        ("c", 0, "c 1 -> 2 makes the difference\n  this change alone makes old.txt worse: 2 -> 3 per step"),
        ("d", 0, "d 1 -> 2, e 1 -> 2 makes the difference\n  pip cannot change one of these packages alone: they need"),
        (
            "ac",
            1,
            "c 1 -> 2 makes the difference\n  this change matters only together with changes of a, b; alone: 2 -> 2",
        ),
    ],
)
def test_the_package_change_is_named_with_its_sufficiency(
    printed: Run, monkeypatch: pytest.MonkeyPatch, culprits: str, status: int, told: str
) -> None:
    """Of five changes these together make the difference; the last two go together."""
    old, new = ({name: f"{name}=={version}" for name in "abcde"} for version in (1, 2))
    packages = PackageRange(old, new, (("a",), ("b",), ("c",), ("d", "e")), ("old.txt", "new.txt"))

    def calls(state: str) -> float:
        changed = {name for name, line in packages.pins(state).items() if line == new[name]}
        return 2.0 + (set(culprits) <= changed)

    def run(probe: Probe, against: str) -> Outcome:
        return outcome(counted(calls(against), calls(probe.measured)))

    monkeypatch.setattr(command, "prepared", lambda *_, **__: (packages, run))
    out = printed("bisect", "t.py", "--packages", "old.txt", "new.txt", status=status)
    assert out.startswith("environments are kept in ")
    assert f"\n{told}" in out
    assert "\ngood old.txt\nbad  new.txt\n" in out
    assert "\n4 changes to search\n" in out


def test_an_error_of_venv_is_not_reported_as_a_refusal_of_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho ensurepip is not available\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    said = rf"^--packages: {python} -m venv {tmp_path}/cache/\w+ fails: ensurepip is not available$"
    with pytest.raises(SettingError, match=said):
        Environments(folder=tmp_path / "cache").python({})


@pytest.mark.slow
def test_an_environment_is_made_once_and_a_refusal_of_pip_is_reported(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheel(wheels, "planted", "1.0")
    wheel(wheels, "needy", "1.0", requires=["planted==2.0"])
    environments = Environments(folder=tmp_path / "cache", pip=("--no-index", "--find-links", str(wheels)), base=True)
    pins = {"planted": "planted==1.0"}
    python = environments.python(pins)
    assert (python.packages["planted"], python.prefixes[0] == sys.prefix) == ("1.0", False)
    with pytest.raises(PipRefused, match=r"^Cannot install .* and planted==1.0 .* conflicting dep"):
        environments.python({**pins, "needy": "needy==1.0"})
    shutil.rmtree(wheels)
    assert environments.python(pins) == python  # pip is not asked again
    bare = replace(environments, base=False)
    with pytest.raises(SettingError, match=r" lacks modules that ranks need: run .* or give --base-packages$"):
        bare.python({})


@pytest.mark.slow
def test_a_planted_package_is_named(pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five packages change, two of them together; one makes a rank send twice as often."""
    wheels = tmp_path / "wheels"
    for version in (1, 2):
        wheel(wheels, "planted", f"{version}.0", f"CALLS = {version}\n")
        wheel(wheels, "needy", f"{version}.0", requires=[f"needed=={version}.0"])
        for name in ("alpha", "needed", "psi"):
            wheel(wheels, name, f"{version}.0")
    names = ("alpha", "needed", "needy", "planted", "psi")
    for version in (1, 2):
        (pytester.path / f"v{version}.txt").write_text("".join(f"{name}=={version}.0\n" for name in names))
    pytester.makepyfile(test_it=SUITE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(Path(pytest_ddpperf.__file__).parents[1]))
    pip = f"--pip-args=--no-index --find-links {wheels}"
    run = pytester.run(
        *(sys.executable, "-c", "import sys; from pytest_ddpperf.cli.command import main; sys.exit(main())"),
        *("bisect", "-q", "test_it.py"),
        *("--packages", "v1.txt", "v2.txt", "--base-packages", pip),
    )
    run.stdout.fnmatch_lines(
        [
            "good v1.txt",
            "4 changes to search",
            "planted 1.0 -> 2.0 makes the difference",
            "  this change alone makes v1.txt worse: 1 -> 2 per step",
            "  sure: counts have no noise",
        ]
    )
    assert run.ret == 0


def test_a_file_system_without_locks_keeps_environments_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> NoReturn:
        raise OSError(errno.ENOLCK, "No locks available")

    made: list[Path] = []
    monkeypatch.setattr(fcntl, "flock", no_locks)
    monkeypatch.setattr(Environments, "_make", lambda _, place, __: made.append(place))
    monkeypatch.setattr(package_search, "other_interpreter", lambda python, _: python)
    python = Environments(folder=tmp_path).python({"torch": "torch==2.8"})
    assert [str(place / "bin" / "python") for place in made] == [str(python)]


def test_an_environment_that_another_process_makes_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins, environment, others = {"torch": "torch==2.8"}, Environments(folder=tmp_path), Locks(tmp_path)
    name = environment._key(pins)
    monkeypatch.setattr(package_search, "_LOCK_SECONDS", 0.0)
    assert others.take([name]) is None
    told = rf"^--packages: .*process.* has been creating the environment {tmp_path / name} for 0 s: end that "
    with pytest.raises(SettingError, match=told):
        environment.python(pins)
    others.close()


def test_a_pip_that_waits_for_ever_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_search, "_PIP_SECONDS", 0.05)
    told = r"^--packages: .*'sleep', '600'.* timed out after 0.05 seconds: run the command by hand to see why it hangs$"
    with pytest.raises(SettingError, match=told):
        package_search._run(["sleep", "600"])
