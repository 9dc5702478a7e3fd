"""What was learned of a machine's noise, beside its baselines: ``<root>/<environment key>/noise.json``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_ddpperf.baselines.fields import Field, Kind, parse, require_schema
from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.baselines.folder import locked, write
from pytest_ddpperf.baselines.jsonfile import render, rounded
from pytest_ddpperf.errors import BaselineError
from pytest_ddpperf.records.measurement import Environment, Spread
from pytest_ddpperf.records.results import Calibration

_FAMILY = "pytest-ddpperf/noise/"
_VERSION = 2
SCHEMA = f"{_FAMILY}{_VERSION}"
KIND = Kind("noise file", "restore it from version control, or delete it and run ddpperf calibrate again")
_SPREADS = ("within", "between_launches", "between_runs")
_TRAINING = ("strategy", "recipe")  # not in files of version 1

Calibrations = Mapping[str, Mapping[str, Calibration]]  # by test, then by the variant's name


def noise_file(root: Path, environment: Environment) -> Path:
    """Where the noise of an environment lies, or would lie. Named sets of baselines share it: it is the machine's."""
    return root / environment_key(environment) / "noise.json"


def read(file: Path) -> Calibrations:
    """All that a file holds; nothing if there is no such file.

    Raises:
        BaselineError: it cannot be read, is broken, or belongs to another folder; the message names file and field.
    """
    top = Field(file, "", None, KIND)
    try:
        text = file.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except UnicodeDecodeError:
        raise top.error("is not text in UTF-8") from None
    except OSError as error:
        raise BaselineError(f"{KIND.name} {file}: cannot be read: {error.strerror}") from None
    top = parse(text, file, KIND)
    require_schema(top, _FAMILY, _VERSION)
    fields = top.fields("schema", "environment", "tests")
    if fields["environment"].text() != file.parent.name:
        raise fields["environment"].error(f"the file is of {fields['environment'].text()}: it was moved or copied")
    return {
        test: {name: _calibration(name, field) for name, field in variants.mapping().items()}
        for test, variants in fields["tests"].mapping().items()
    }


def find(root: Path, test: str, name: str, environment: Environment) -> Calibration | None:
    """The calibration of a variant of a test in an environment; None if there is none.

    Raises:
        BaselineError: as of ``read``.
    """
    return read(noise_file(root, environment)).get(test, {}).get(name)


def save(root: Path, test: str, found: Sequence[tuple[Environment, Calibration]]) -> tuple[Path, ...]:
    """Stores calibrations of a test beside those of others; one of the same variant and environment is replaced.

    Returns:
        The files that were written.

    Raises:
        BaselineError: a file cannot be written, or what is there is broken: it is left as it is.
    """
    groups: dict[Path, list[Calibration]] = {}
    for environment, calibration in found:
        groups.setdefault(noise_file(root, environment), []).append(calibration)
    for file, calibrations in groups.items():
        with locked(file.parent):
            tests = {other: dict(variants) for other, variants in read(file).items()}
            tests.setdefault(test, {}).update({one.name: one for one in calibrations})
            write(file, render(_document(file, tests)))
    return tuple(groups)


def _document(file: Path, tests: Calibrations) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "environment": file.parent.name,
        "tests": {test: {name: _data(one) for name, one in variants.items()} for test, variants in tests.items()},
    }


def _data(calibration: Calibration) -> dict[str, Any]:
    fields = {field.name: getattr(calibration, field.name) for field in dataclasses.fields(calibration)}
    spreads = {name: {"sd": rounded(fields[name].sd), "df": fields[name].df} for name in _SPREADS}
    for name in ("name", *(() if calibration.strategy else _TRAINING)):
        del fields[name]
    return {**fields, **spreads, "seconds": rounded(calibration.seconds), "floor": rounded(calibration.floor)}


def _calibration(name: str, field: Field) -> Calibration:
    names = [one.name for one in dataclasses.fields(Calibration) if one.name != "name"]
    fields = field.fields(*names, optional=_TRAINING)
    return Calibration(
        name=name,
        date=fields["date"].day(),
        commit=None if fields["commit"].value is None else fields["commit"].text(),
        runs=fields["runs"].whole(least=2),
        launches=fields["launches"].whole(least=1),
        steps=fields["steps"].whole(least=1),
        seconds=_not_negative(fields["seconds"]),
        floor=_not_negative(fields["floor"]),
        within=_spread(fields["within"]),
        between_launches=_spread(fields["between_launches"]),
        between_runs=_spread(fields["between_runs"]),
        strategy=fields["strategy"].text() if "strategy" in fields else "",
        recipe={word: value.text() for word, value in fields["recipe"].mapping().items()} if "recipe" in fields else {},
    )


def _spread(field: Field) -> Spread:
    fields = field.fields("sd", "df")
    return Spread(sd=_not_negative(fields["sd"]), df=fields["df"].whole())


def _not_negative(field: Field) -> float:
    if field.number() < 0:
        raise field.error(f"expected a number of at least 0, found {field.value}")
    return field.number()
