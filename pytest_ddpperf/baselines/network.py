"""The measured network of an environment, stored next to the environment's baselines."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from pytest_ddpperf.baselines import files, fingerprint, jsonfile
from pytest_ddpperf.errors import BaselineError
from pytest_ddpperf.records.measurement import Environment
from pytest_ddpperf.records.network import CollectiveFit, Segment, Timing


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkFile:
    """The network of one environment: the fitted costs, and the timings that they were fitted to."""

    environment: str  # the environment's key
    date: str
    taken: float  # the share of computing that stops during a collective
    usual: float  # the time of a usual call divided by the time of the fastest call
    fits: tuple[CollectiveFit, ...]
    timings: tuple[Timing, ...]

    def fit(self, collective: str) -> CollectiveFit:
        """Returns the fit of a collective; raises BaselineError if it was not measured."""
        for fit in self.fits:
            if fit.collective == collective:
                return fit
        known = ", ".join(fit.collective for fit in self.fits)
        raise BaselineError(f"no {collective} was measured on {self.environment}, only {known}; run ddpperf network")


NETWORK = jsonfile.FileKind(subject="network", version=1, cure="delete the file and run ddpperf network again")


_Segment = jsonfile.object_of(Segment, latency=jsonfile.NotNegative, seconds_per_byte=jsonfile.NotNegative)
_Fit = jsonfile.object_of(
    CollectiveFit,
    world_size=jsonfile.Positive,
    min_bytes=jsonfile.Positive,
    error=jsonfile.NotNegative,
    segments=tuple[_Segment, ...],  # type: ignore[valid-type]  # made at run time
)
_File = jsonfile.object_of(
    NetworkFile,
    schema=str,
    date=jsonfile.Date,
    taken=jsonfile.NotNegative,
    usual=jsonfile.NotNegative,
    fits=tuple[_Fit, ...],  # type: ignore[valid-type]  # made at run time
)


def network_file(root: Path, environment: Environment) -> Path:
    """Returns the path of the file with an environment's network; the file may not exist."""
    return root / fingerprint.environment_key(environment) / "network.json"


def read_network(file: Path) -> NetworkFile | None:
    """Returns a file's content; None if there is no file. Raises BaselineError if the file is broken or misplaced."""
    text = jsonfile.read_text(file, NETWORK)
    if text is None:
        return None
    content: NetworkFile = msgspec.convert(
        jsonfile.read_as(_File, jsonfile.checked(text, file, NETWORK), file, NETWORK), NetworkFile, from_attributes=True
    )
    for i, fit in enumerate(content.fits):
        ends = [fit.min_bytes, *(segment.max_bytes for segment in fit.segments)]
        if not fit.segments or ends != sorted(set(ends)):
            raise NETWORK.error(file, f"field fits[{i}].segments: expected segments with ascending max_bytes")
    if content.environment != file.parent.name:
        raise NETWORK.error(file, f"field environment: is {content.environment}, so the file was moved or copied here")
    return content


def save_network(file: Path, content: NetworkFile) -> None:
    """Stores a network in place of the previous one; numbers have nine digits."""
    text = json.dumps({"schema": NETWORK.schema, **asdict(content)})
    document = json.loads(text, parse_float=lambda number: jsonfile.rounded(float(number)))
    with files.locked(file.parent), files.saving(file):
        files.write_file(file, jsonfile.render(document))
