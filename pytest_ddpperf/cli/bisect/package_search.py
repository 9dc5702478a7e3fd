"""The search for a package: probes of two environments, and the conclusion."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_ddpperf.cli.bisect.bisector import Bisector, RunProbe
from pytest_ddpperf.cli.bisect.environments import Environments, PipRefused, cache_folder
from pytest_ddpperf.cli.bisect.packages import ALONE, PackageRange, packages_between, read_pins
from pytest_ddpperf.cli.bisect.processes import run_probe
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.reports.phrases import first_of
from pytest_ddpperf.run.session.probe import Outcome, Probe


def prepared(
    files: tuple[str, str], pip_arguments: str, arguments: Sequence[str], *, base: bool
) -> tuple[PackageRange, RunProbe]:
    """Returns the changes of packages between two files, and a function that runs probes with pytest's ``arguments``.

    SettingError if a file cannot be read, or pip cannot install its packages.
    """
    environments = Environments(folder=cache_folder(), pip=tuple(shlex.split(pip_arguments)), base=base)
    old, new = (read_pins(Path(given), given) for given in files)
    if old == new:
        raise SettingError(f"--packages {' '.join(files)}: both files list the same packages; name files that differ")
    sides = []
    for given, pins in zip(files, (old, new), strict=True):
        try:
            sides.append(environments.python(pins).path)
        except PipRefused as error:  # noqa: PERF203 - two files
            raise SettingError(f"--packages {given}: pip cannot install it: {error}; options: --pip-args") from None
    packages = packages_between(old, new, files, sides)

    def run(probe: Probe, against: str) -> Outcome:
        try:
            python = environments.python(packages.pins(probe.measured))
        except PipRefused as error:
            return Outcome((), {"pip": f"pip refuses: {error}"}, Path.cwd())
        reference = environments.python(packages.pins(against))
        return run_probe(replace(probe, python=python), reference.python, arguments)

    return packages, run


def conclusion(bisector: Bisector, packages: PackageRange) -> tuple[list[str], bool]:
    """Returns lines that name the responsible change or all candidates, and whether one change alone is responsible.

    If other changes came before the responsible one, it is measured once more alone.
    """
    *others, found = packages.suspects
    if others:
        changes = [packages.changes(state) for state in (*others, found)]
        return ["one of these changes makes the difference:", *(f"  {line}" for line in first_of(changes))], False
    step, text = packages.steps[int(found) - 1], packages.changes(found)
    lines = [f"{text} makes the difference"]
    if len(step) > 1:
        lines.append("  pip cannot change one of these alone: they need each other's versions")
    earlier = [name for before in packages.steps[: int(found) - 1] for name in before]
    if not earlier:
        return [*lines, f"  it alone suffices with all else as in {packages.names[0]}"], True
    alone = bisector.classified(ALONE + found)
    if alone.answer == "bad":
        return [*lines, f"  it alone suffices with all else as in {packages.names[0]}: {alone.text}".rstrip(", ")], True
    changed = ", ".join(first_of(earlier))
    if alone.answer == "good":
        told = f"  only together with changes of {changed}, not alone: {alone.text}".rstrip(", ")
    else:
        told = f"  after changes of {changed}; whether it alone makes the difference is not known: {alone.text}"
    return [*lines, told], False
