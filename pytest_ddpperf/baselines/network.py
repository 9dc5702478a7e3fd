"""The measured network of an environment, beside its baselines."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pytest_ddpperf.baselines.files import locked, saving, write_file
from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.baselines.jsonfile import FileKind, parse, read_text, render, rounded
from pytest_ddpperf.baselines.typed import Day, Misfit, NotNegative, Positive, Shape, written
from pytest_ddpperf.errors import BaselineError
from pytest_ddpperf.records.measurement import Environment
from pytest_ddpperf.records.network import CollectiveFit, Segment, Timing


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkFile:
    """The network of one environment: what was fitted, and what it was fitted to."""

    environment: str  # its key
    date: str
    taken: float  # the share of computing that stands still while a collective is under way
    usual: float  # how many times the fastest call a usual one takes
    fits: tuple[CollectiveFit, ...]
    timings: tuple[Timing, ...]

    def fit(self, collective: str) -> CollectiveFit:
        """The fit of a collective; BaselineError if it was not measured."""
        for fit in self.fits:
            if fit.collective == collective:
                return fit
        known = ", ".join(fit.collective for fit in self.fits)
        raise BaselineError(f"the network of {self.environment} has no {collective}; it has {known}")


def _fit(*, segments: tuple[Segment, ...], min_bytes: int, **fields: object) -> CollectiveFit:
    ends = [min_bytes, *(segment.max_bytes for segment in segments)]
    if not segments or ends != sorted(set(ends)):
        raise Misfit("expected segments that end one above the other", ".segments")
    return CollectiveFit(segments=segments, min_bytes=min_bytes, **fields)  # type: ignore[arg-type]  # read by their types


def _file(schema: str, **fields: object) -> NetworkFile:  # noqa: ARG001
    return NetworkFile(**fields)  # type: ignore[arg-type]  # as above


NETWORK = FileKind(
    subject="network",
    version=1,
    cure="delete it and run ddpperf network again",
    content=NetworkFile,
    shapes={
        NetworkFile: Shape(types={"schema": str, "date": Day, "taken": NotNegative, "usual": NotNegative}, make=_file),
        CollectiveFit: Shape(types={"world_size": Positive, "min_bytes": Positive, "error": NotNegative}, make=_fit),
        Segment: Shape(types={"max_bytes": Positive, "latency": NotNegative, "seconds_per_byte": NotNegative}),
        Timing: Shape(types={"nbytes": Positive, "seconds": NotNegative}),
    },
)


def network_file(root: Path, environment: Environment) -> Path:
    """Returns where the network of an environment lies, or would lie."""
    return root / environment_key(environment) / "network.json"


def read_network(file: Path) -> NetworkFile | None:
    """The content of a file, None if there is none; BaselineError if it is broken or of another environment."""
    text = read_text(file, NETWORK)
    if text is None:
        return None
    content = cast("NetworkFile", parse(text, file, NETWORK)[0])
    if content.environment != file.parent.name:
        raise NETWORK.error(file, f"field environment: the file is of {content.environment}: it was moved or copied")
    return content


def save_network(file: Path, content: NetworkFile) -> None:
    """Stores a network in place of the one before."""
    data = json.dumps({"schema": NETWORK.schema, **written(content, NETWORK.shapes)})
    with locked(file.parent), saving(file):
        write_file(file, render(json.loads(data, parse_float=lambda digits: rounded(float(digits)))))
