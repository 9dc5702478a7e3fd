"""What was learned of a machine's noise, beside its baselines: ``<root>/<environment key>/noise.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.baselines.folder import locked, write
from pytest_ddpperf.baselines.jsonfile import render, rounded
from pytest_ddpperf.baselines.reading import FileKind, parse, read_text
from pytest_ddpperf.baselines.typed import Day, NotNegative, Positive, Several, Shape
from pytest_ddpperf.records.measurement import Environment, Spread
from pytest_ddpperf.records.results import Calibration

_TRAINING = ("strategy", "recipe")  # not in files of version 1
Calibrations = Mapping[str, Mapping[str, Calibration]]  # by test, then by the variant's name


@dataclass(frozen=True, kw_only=True)
class _NoiseFile:
    environment: str  # its key
    tests: Calibrations


_SHAPES = {
    _NoiseFile: Shape(types={"schema": str}, make=lambda schema, **found: _NoiseFile(**found)),  # noqa: ARG005
    Calibration: Shape(
        types={
            "date": Day,
            "runs": Several,
            **dict.fromkeys(("launches", "steps"), Positive),
            **dict.fromkeys(("seconds", "floor"), NotNegative),
        },
        optional=_TRAINING,
        absent=("name",),
        make=partial(Calibration, name=""),
    ),
    Spread: Shape(types={"sd": NotNegative, "df": int}),
}
NOISE = FileKind(
    name="noise file",
    cure="restore it from version control, or delete it and run ddpperf calibrate again",
    family="pytest-ddpperf/noise/",
    version=2,
    content=_NoiseFile,
    shapes=_SHAPES,
)


def noise_file(root: Path, environment: Environment) -> Path:
    """Where the noise of an environment lies, or would lie. Named sets of baselines share it: it is the machine's."""
    return root / environment_key(environment) / "noise.json"


def read(file: Path) -> Calibrations:
    """All that a file holds; nothing if there is no file, BaselineError if it is broken or of another folder."""
    text = read_text(file, NOISE)
    if text is None:
        return {}
    content, _ = parse(text, file, NOISE)
    if content.environment != file.parent.name:
        raise NOISE.error(file, f"field environment: the file is of {content.environment}: it was moved or copied")
    return {
        test: {name: replace(calibration, name=name) for name, calibration in variants.items()}
        for test, variants in content.tests.items()
    }


def find(root: Path, test: str, name: str, environment: Environment) -> Calibration | None:
    """The calibration of a variant of a test in an environment; None if there is none."""
    return read(noise_file(root, environment)).get(test, {}).get(name)


def save(root: Path, test: str, found: Sequence[tuple[Environment, Calibration]]) -> tuple[Path, ...]:
    """Stores calibrations of a test beside those of others, and returns the files; a broken file is left as it is."""
    groups: dict[Path, list[Calibration]] = {}
    for environment, calibration in found:
        groups.setdefault(noise_file(root, environment), []).append(calibration)
    for file, calibrations in groups.items():
        with locked(file.parent):
            tests = {other: dict(variants) for other, variants in read(file).items()}
            tests.setdefault(test, {}).update({calibration.name: calibration for calibration in calibrations})
            data = {test: {name: _data(found) for name, found in variants.items()} for test, variants in tests.items()}
            write(file, render({"schema": NOISE.schema, "environment": file.parent.name, "tests": data}))
    return tuple(groups)


def _data(calibration: Calibration) -> dict[str, Any]:
    data = {name: value for name, value in asdict(calibration).items() if calibration.strategy or name not in _TRAINING}
    del data["name"]
    for spread in ("within", "between_launches", "between_runs"):
        data[spread]["sd"] = rounded(data[spread]["sd"])
    return {**data, "seconds": rounded(calibration.seconds), "floor": rounded(calibration.floor)}
