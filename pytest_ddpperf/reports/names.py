"""Short names of benchmarks, which tell them apart."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

from pytest_ddpperf.judge.calibration import Calibrated
from pytest_ddpperf.records.results import Result

Listed: TypeAlias = "Result | Calibrated"
"""What has a row of its own: a benchmark of a test."""

_LONGEST = 120  # characters of a benchmark's name in the name of a file: file systems take 255
_RANKS = re.compile(r" w\d+( over w\d+)?(?= |$)")  # as ddpperf.scaling names points
_SAFE = re.compile(r"[A-Za-z0-9_.,=+-]+")


def curve_of(name: str) -> str:
    """The name of a scaling curve, by that of one of its points: without the number of ranks."""
    return _RANKS.sub("", name)


def file_stem(name: str) -> str:
    """Returns what the name of a benchmark's file begins with: the letters, digits and ``_.,=+-`` of a name.

    A name that is cut, or that has other characters than those of a node id, ends with a checksum, so that no two
    benchmarks share a file.
    """
    plain = name.replace(".py::", ".").replace("::", ".").replace("/", ".").replace("[", "-").replace("]", "")
    plain = plain.replace(" ", "-").lstrip(".")
    safe = "_".join(_SAFE.findall(plain))[:_LONGEST]
    return plain if safe == plain else f"{safe}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def names_of(results: Sequence[Listed]) -> tuple[str, ...]:
    """A short name for each benchmark: its test without the module, unless that is needed to tell tests apart.

    Its variant follows, unless the test's parameters have it, and the ranks where nothing else tells two apart.
    """
    modules = {result.test.partition("::")[0] for result in results}
    tests = {result.test: result.test.partition("::")[2] for result in results}
    if len(modules) > 1 and len(set(tests.values())) < len(tests):
        modules_of = {test: test.partition("::")[0].rpartition("/")[2].removesuffix(".py") for test in tests}
        tests = {test: f"{modules_of[test]}::{name}" for test, name in tests.items()}
    several = Counter(result.test for result in results)

    def name(result: Listed) -> str:
        test, variant, strategy = tests[result.test], result.measurement.name, result.measurement.strategy
        variant = variant if strategy in variant else f"{variant} {strategy}"
        parameters = test.partition("[")[2].removesuffix("]")
        said = several[result.test] == 1 and variant in {parameters, *parameters.split("-")}
        return test if said else f"{test} {variant}"

    told = [(name(result), result.measurement.world_size) for result in results]
    sizes = Counter(named for named, _ in {*told})
    return tuple(f"{named} w{size}" if sizes[named] > 1 else named for named, size in told)
