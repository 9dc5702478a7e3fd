"""Recorded launches, and their file: compressed JSON lines."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

from benchmarks.quality.steps import FIRST, UNCHANGED, Calibration
from benchmarks.quality.verdicts import Environment
from pytest_ddpperf.baselines.codec import data_of

SCHEMA = "pytest-ddpperf/launches/1"


@dataclass(frozen=True)
class Cell:
    """What is only ever compared with its like: a length of steps and a number of ranks."""

    length: str
    ranks: int

    def __str__(self) -> str:
        return f"{self.length} w{self.ranks}"


@dataclass(frozen=True)
class Recorded:
    """One launch; times in seconds, memory in bytes, and where there are several figures one of each rank."""

    cell: Cell
    round: int  # launches of one round of a cell were measured one after the other, in random order
    condition: str
    started: float  # since the campaign began
    seconds: float  # in all
    step_times: tuple[float, ...]  # of the group
    resident: tuple[float, ...]
    loss: tuple[float | None, ...]
    cpu: tuple[float | None, ...]  # that an average step had a core for; None where nobody knows
    pair: str | None = None  # of one that took turns with another: the condition of the second

    @cached_property
    def mean(self) -> float:
        """Seconds of the mean step."""
        return sum(self.step_times) / len(self.step_times)


@dataclass(frozen=True)
class Campaign:
    """What a file holds: launches in the order measured, and where they come from."""

    began: str  # UTC, ISO 8601
    environments: Mapping[int, Environment]  # by number of ranks
    calibrations: Mapping[Cell, Calibration]
    launches: tuple[Recorded, ...] = ()


class BrokenFile(ValueError):
    """A file does not hold what it should; the message names it and what is wrong."""


@contextmanager
def reading(file: Path, what: str) -> Iterator[None]:
    """Names the file in errors that its content causes."""
    try:
        yield
    except BrokenFile:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BrokenFile(f"{file}: not a file of {what}: {type(error).__name__}: {error}") from None


def require_schema(file: Path, what: str, data: object, schema: str) -> None:
    """Refuse a file of something else."""
    if not isinstance(data, dict) or data.get("schema") != schema:
        raise BrokenFile(f"{file}: not a file of {what}; it does not say {schema}")


def read(file: Path) -> Campaign:
    """The campaign in a file; of one that was cut off, what was written in full."""
    with reading(file, "launches"):
        lines = _whole_lines(file)
        header = json.loads(next(lines, "null"))
        require_schema(file, "launches", header, SCHEMA)
        return Campaign(
            header["began"],
            {facts["world_size"]: Environment(**facts) for facts in header["environments"]},
            {Cell(found["length"], found["ranks"]): calibration_from(found) for found in header["calibrations"]},
            tuple(_launch_from(json.loads(line)) for line in lines),
        )


def write(campaign: Campaign, file: Path) -> None:
    """Write a file anew, whole or not at all."""
    calibrations = [{**asdict(cell), **asdict(found)} for cell, found in campaign.calibrations.items()]
    environments = [data_of(env) for env in campaign.environments.values()]
    header = {"schema": SCHEMA, "began": campaign.began, "environments": environments, "calibrations": calibrations}
    partial = file.with_name(f".{file.name}.partial")
    with gzip.open(partial, "wt", encoding="utf-8") as out:
        out.write(f"{json.dumps(header)}\n")
        for launch in campaign.launches:
            append(launch, out)
    partial.replace(file)


def append(launch: Recorded, out: TextIO) -> None:
    """Add a launch, times in tenths of a microsecond, so that it is there even if nothing follows."""
    data = {
        **asdict(launch.cell),
        "round": launch.round,
        "condition": launch.condition,
        "started": round(launch.started, 3),
        "seconds": round(launch.seconds, 4),
        "steps": [round(1e7 * seconds) for seconds in launch.step_times],
        "resident": launch.resident,
        "loss": launch.loss,
        "cpu": [None if seconds is None else round(1e7 * seconds) for seconds in launch.cpu],
        **({} if launch.pair is None else {"pair": launch.pair}),
    }
    out.write(json.dumps(data, separators=(",", ":")) + "\n")
    out.flush()


def _whole_lines(file: Path) -> Iterator[str]:
    """The lines up to where a file was cut off."""
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            yield from (line for line in lines if line.endswith("\n"))
    except EOFError:
        return


def calibration_from(data: Mapping[str, Any]) -> Calibration:
    """A calibration as it was written, other fields apart."""
    reduces = {int(elements): seconds for elements, seconds in data["reduces"].items()}
    return Calibration(data["step"], data["product"], reduces)


def _launch_from(data: Mapping[str, Any]) -> Recorded:
    unknown = [None] * len(data["loss"])  # in older files, the CPU time
    return Recorded(
        Cell(data["length"], data["ranks"]),
        data["round"],
        data["condition"],
        data["started"],
        data["seconds"],
        step_times=tuple(1e-7 * ticks for ticks in data["steps"]),
        resident=tuple(data["resident"]),
        loss=tuple(data["loss"]),
        cpu=tuple(None if ticks is None else 1e-7 * ticks for ticks in data.get("cpu", unknown)),
        pair=data.get("pair"),
    )


@dataclass(frozen=True)
class Sides:
    """The launches that one comparison may use, in order, those of the pilots first."""

    base: tuple[Recorded, ...]
    new: tuple[Recorded, ...]


def of_cell(launches: Sequence[Recorded], cell: Cell, condition: str) -> list[Recorded]:
    """The launches of a cell in one condition that ran alone, in the order recorded."""
    return [
        launch for launch in launches if launch.cell == cell and launch.condition == condition and launch.pair is None
    ]


def partners(launches: Sequence[Recorded], cell: Cell, condition: str) -> list[tuple[Recorded, Recorded]]:
    """The launches that took turns: an unchanged one, and one in ``condition``. Of a slow first launch, as of none."""
    about = UNCHANGED if condition == FIRST else condition
    rounds: dict[int, list[Recorded]] = {}
    for launch in launches:
        if launch.cell == cell and launch.pair == about:
            rounds.setdefault(launch.round, []).append(launch)
    return [(both[0], both[1]) for both in rounds.values() if len(both) == 2]
