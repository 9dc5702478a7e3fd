"""The measured network of an environment, stored next to the environment's baselines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_ddpperf.baselines.document import Date, Document, NotNegative, Positive, about, read_checked
from pytest_ddpperf.baselines.files import locked, saving, write_file
from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.baselines.jsonfile import FileKind, checked, read_text, render, rounded
from pytest_ddpperf.errors import BaselineError
from pytest_ddpperf.records.measurement import Environment
from pytest_ddpperf.records.network import CollectiveFit, Segment, Timing


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkFile:
    """The network of one environment: the fitted costs, and the timings that they were fitted to."""

    environment: str  # the environment's key
    date: str
    taken: float  # the share of computing that stands still during a collective
    usual: float  # how many times the fastest call's time a usual call takes
    fits: tuple[CollectiveFit, ...]
    timings: tuple[Timing, ...]

    def fit(self, collective: str) -> CollectiveFit:
        """Returns the fit of a collective; BaselineError if it was not measured."""
        for fit in self.fits:
            if fit.collective == collective:
                return fit
        known = ", ".join(fit.collective for fit in self.fits)
        raise BaselineError(f"the network of {self.environment} has no {collective}; it has {known}")


NETWORK = FileKind(subject="network", version=1, cure="delete it and run ddpperf network again")


class StoredOfNetwork(Document):
    """An object in a network file; its numbers have nine digits."""

    number = staticmethod(rounded)


class StoredFit(StoredOfNetwork, record=CollectiveFit):
    """The fitted cost of a collective."""

    world_size: Positive
    min_bytes: Positive
    segments: tuple[Segment, ...]
    error: NotNegative

    def checked(self) -> None:
        """Raises a ValueError unless each segment ends above the previous one."""
        ends = [self.min_bytes, *(segment.max_bytes for segment in self.segments)]
        if any(segment.latency < 0 or segment.seconds_per_byte < 0 for segment in self.segments):
            raise ValueError("segments: expected numbers of at least 0")
        if not self.segments or ends != sorted(set(ends)):
            raise ValueError("segments: expected segments that end one above the other")


class StoredNetwork(StoredOfNetwork, record=NetworkFile):
    """The file of a network."""

    schema: str = about(lambda _: NETWORK.schema)
    date: Date
    taken: NotNegative
    usual: NotNegative


def network_file(root: Path, environment: Environment) -> Path:
    """Returns the path of an environment's network file, which need not exist."""
    return root / environment_key(environment) / "network.json"


def read_network(file: Path) -> NetworkFile | None:
    """Returns a file's content, None if there is no file; BaselineError if it is broken or of another environment."""
    text = read_text(file, NETWORK)
    if text is None:
        return None
    content: NetworkFile = read_checked(StoredNetwork, checked(text, file, NETWORK), file, NETWORK)
    if content.environment != file.parent.name:
        raise NETWORK.error(file, f"field environment: the file is of {content.environment}: it was moved or copied")
    return content


def save_network(file: Path, content: NetworkFile) -> None:
    """Stores a network in place of the previous one."""
    with locked(file.parent), saving(file):
        write_file(file, render(StoredNetwork.filled_from(content)))
