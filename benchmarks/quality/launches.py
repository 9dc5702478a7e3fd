"""The file of recorded launches: compressed JSON lines, the first one says where they come from."""

from __future__ import annotations

import dataclasses
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

from benchmarks.quality.conditions import Calibration
from pytest_ddpperf.baselines.codec import environment_data
from pytest_ddpperf.records.measurement import Environment

SCHEMA = "pytest-ddpperf/launches/1"
WARMUP = 5


@dataclass(frozen=True)
class Cell:
    """What is only ever compared with its like."""

    length: str
    ranks: int

    def __str__(self) -> str:
        return f"{self.length} w{self.ranks}"


@dataclass(frozen=True)
class Recorded:
    """One launch.

    Attributes:
        round: of its cell; launches of one round were measured in turn, in random order.
        started: seconds since the campaign began.
        seconds: that it took in all.
        step_times: of each timed step of the group, in seconds.
        typical: each rank's own typical step, in seconds.
        resident: each rank's peak resident memory, in bytes.
        loss: each rank's last one.
        cpu: seconds for which each rank had a core in an average step; None where nobody knows.
        pair: of one that took turns with another: the condition that both are about, the unchanged one first.
    """

    cell: Cell
    round: int
    condition: str
    started: float
    seconds: float
    step_times: tuple[float, ...]
    typical: tuple[float, ...]
    resident: tuple[float, ...]
    loss: tuple[float | None, ...]
    cpu: tuple[float | None, ...]
    pair: str | None = None

    @cached_property
    def mean(self) -> float:
        """Seconds of the mean step."""
        return sum(self.step_times) / len(self.step_times)


@dataclass(frozen=True)
class Campaign:
    """What a file holds: where its launches come from, and the launches in the order measured.

    Attributes:
        began: UTC, ISO 8601.
        environments: by number of ranks.
        calibrations: what the injections were made from, by cell.
    """

    began: str
    environments: Mapping[int, Environment]
    calibrations: Mapping[Cell, Calibration]
    launches: tuple[Recorded, ...] = ()


class BrokenFile(ValueError):
    """A file that holds no campaign; the message names it and what is wrong."""


def header_line(campaign: Campaign) -> str:
    """The first line of a file."""
    header = {
        "schema": SCHEMA,
        "began": campaign.began,
        "environments": [environment_data(one) for one in campaign.environments.values()],
        "calibrations": [
            {**dataclasses.asdict(cell), **dataclasses.asdict(one)} for cell, one in campaign.calibrations.items()
        ],
    }
    return json.dumps(header)


def launch_line(one: Recorded) -> str:
    """A launch as a line; step times in tenths of a microsecond."""
    return json.dumps(
        {
            **dataclasses.asdict(one.cell),
            "round": one.round,
            "condition": one.condition,
            "started": round(one.started, 3),
            "seconds": round(one.seconds, 4),
            "steps": [round(1e7 * seconds) for seconds in one.step_times],
            "typical": [round(1e7 * seconds) for seconds in one.typical],
            "resident": one.resident,
            "loss": one.loss,
            "cpu": [None if seconds is None else round(1e7 * seconds) for seconds in one.cpu],
            **({} if one.pair is None else {"pair": one.pair}),
        },
        separators=(",", ":"),
    )


def read(file: Path) -> Campaign:
    """The campaign in a file; of one that was cut off, what was written in full.

    Raises:
        BrokenFile: it is none of ours.
    """
    lines = _whole_lines(file)
    try:
        header = json.loads(next(lines, "null"))
        if not isinstance(header, dict) or header.get("schema") != SCHEMA:
            raise BrokenFile(f"{file}: not a file of launches; its first line does not say {SCHEMA}")
        return Campaign(
            began=header["began"],
            environments={one["world_size"]: Environment(**one) for one in header["environments"]},
            calibrations={_cell(one): calibration_from(one) for one in header["calibrations"]},
            launches=tuple(_recorded(json.loads(line)) for line in lines),
        )
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise BrokenFile(f"{file}: not a file of launches: {type(error).__name__}: {error}") from None


def write(campaign: Campaign, file: Path) -> None:
    """Write a file anew, whole or not at all."""
    partial = file.with_name(f".{file.name}.partial")
    with gzip.open(partial, "wt", encoding="utf-8") as out:
        for line in (header_line(campaign), *map(launch_line, campaign.launches)):
            out.write(f"{line}\n")
    partial.replace(file)


def append(one: Recorded, out: TextIO) -> None:
    """Add a launch, so that it is there even if nothing follows."""
    out.write(f"{launch_line(one)}\n")
    out.flush()


def _whole_lines(file: Path) -> Iterator[str]:
    """The lines up to where a file was cut off."""
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                if line.endswith("\n"):
                    yield line
    except EOFError:
        return
    except (gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise BrokenFile(f"{file}: not a compressed file of launches: {error}") from None


def _cell(data: Mapping[str, Any]) -> Cell:
    return Cell(data["length"], data["ranks"])


def calibration_from(data: Mapping[str, Any]) -> Calibration:
    """A calibration as it was written, other fields apart."""
    reduces = {int(elements): seconds for elements, seconds in data["reduces"].items()}
    return Calibration(data["step"], data["product"], reduces)


def _recorded(data: Mapping[str, Any]) -> Recorded:
    return Recorded(
        cell=_cell(data),
        round=data["round"],
        condition=data["condition"],
        started=data["started"],
        seconds=data["seconds"],
        step_times=tuple(1e-7 * ticks for ticks in data["steps"]),
        typical=tuple(1e-7 * ticks for ticks in data["typical"]),
        resident=tuple(data["resident"]),
        loss=tuple(data["loss"]),
        # Of launches before CPU time was measured it is not known.
        cpu=tuple(None if ticks is None else 1e-7 * ticks for ticks in data.get("cpu", [None] * len(data["loss"]))),
        pair=data.get("pair"),
    )
