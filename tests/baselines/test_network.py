from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.baselines.network import NETWORK, NetworkFile, network_file, read_network, save_network
from pytest_ddpperf.errors import BaselineError
from pytest_ddpperf.records.network import CollectiveFit, Segment, Timing
from tests.factories import make_environment

LINES = (
    Segment(max_bytes=4096, latency=1e-4, seconds_per_byte=0.0),
    Segment(max_bytes=65_536, latency=0.0, seconds_per_byte=1e-9),
)
FIT = CollectiveFit(collective="all_reduce", world_size=2, min_bytes=1024, segments=LINES, error=0.03125)
TIMING = Timing(collective="all_reduce", nbytes=1024, seconds=1.25e-4)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A stored network."""
    path = network_file(tmp_path, make_environment())
    content = NetworkFile(
        environment=path.parent.name, date="2026-11-26", taken=0.5, usual=1.2, fits=(FIT,), timings=(TIMING,)
    )
    save_network(path, content)
    return path


def test_a_network_fit_that_was_stored_in_the_folder_of_its_environment_is_read_back(file: Path) -> None:
    assert (file.parent.name, file.name) == ("cpu-chip-8c-t1-gloo-w2-torch2.13", "network.json")
    found = read_network(file)
    assert found is not None
    assert found.fit("all_reduce") == FIT
    assert found.timings == (TIMING,)
    with pytest.raises(BaselineError, match=r"^no broadcast was measured on .*, only all_reduce; run ddpperf network"):
        found.fit("broadcast")
    assert read_network(file.with_name("gone.json")) is None
    assert json.loads(file.read_text())["schema"] == NETWORK.schema == "pytest-ddpperf/network/1"


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("date",), "yesterday", r"field date: expected `str` matching regex"),
        (("fits", 0, "world_size"), 0, r"field fits\[0\].world_size: expected `int` >= 1"),
        (("fits", 0, "segments", 0, "latency"), -1.0, r"field fits\[0\].segments\[0\].latency: expected `float` >="),
        (("fits", 0, "segments", 0, "max_bytes"), 99_999, r"field fits\[0\].segments: expected segments with asc"),
        (("fits", 0, "segments"), [], r"field fits\[0\].segments: expected segments with ascending max_bytes"),
        (("environment",), "cpu-other", "field environment: is cpu-other, so the file was moved or copied here"),
        (("more",), 1, "field more: is unknown to this version"),
    ],
)
def test_a_broken_file_is_named_with_its_field(file: Path, path: tuple[Any, ...], value: Any, words: str) -> None:
    data = json.loads(file.read_text())
    part = data
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    file.write_text(json.dumps(data))
    with pytest.raises(BaselineError, match=words) as raised:
        read_network(file)
    assert str(raised.value).endswith("delete the file and run ddpperf network again")
