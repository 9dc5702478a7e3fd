from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.cli import cluster
from pytest_ddpperf.errors import RanksTimedOut
from pytest_ddpperf.instruments.host import usable_cores
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.planner import network as running
from pytest_ddpperf.planner import slowness
from pytest_ddpperf.planner.network import sizes_between
from pytest_ddpperf.planner.slowness import interface_line
from pytest_ddpperf.planner.volumes import DEFAULT_CAP_MB, MB
from pytest_ddpperf.records.network import CollectiveFit, RankSweep, Segment, SweepPlan
from pytest_ddpperf.reports.progress import LiveLine
from pytest_ddpperf.reports.table import render
from tests.cli.running import Run
from tests.factories import make_environment

QUICK = ["network", "--device=cpu", "--rounds=1", "--max-size=8KiB", "--collectives=all_reduce,broadcast"]


def eth0(speeds: dict[str, float | None], backend: str) -> str:
    """What is said of a variable that names eth0; the ranks of the test do without it, for there is no such one."""
    return interface_line({"GLOO_SOCKET_IFNAME": "eth0"}, speeds, backend)


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: Launcher) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cluster, "Launcher", lambda **_: nullcontext(launcher))
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)


def test_the_default_sizes_cover_the_buckets_of_ddp() -> None:
    parser = argparse.ArgumentParser()
    cluster.add_network_arguments(parser)
    options = parser.parse_args([])
    sizes = sizes_between(options.min_size, options.max_size, 2)
    assert (sizes[0], sizes[-1]) == (2**10, 2**25)
    assert sizes[-1] > DEFAULT_CAP_MB * MB


def test_a_network_is_measured_stored_and_predicts(
    printed: Run, complaint: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(LiveLine, "show", lambda _, text: shown.append(text))
        patched.setattr(LiveLine, "clear", lambda _: shown.append("-"))
        out = printed(*QUICK)
    assert shown == ["measuring 2 ranks: 2 collectives of 4 sizes, 1 round", "-"]
    monkeypatch.setattr(running, "measure_network", lambda *_: pytest.fail("measured again"))
    assert "all_reduce" in out
    assert "broadcast" in out
    (file,) = Path("baselines").glob("*-w2-*/network.json")
    assert f"stored in {file}" in out
    assert [fit["collective"] for fit in json.loads(file.read_text())["fits"]] == ["all_reduce", "broadcast"]
    first, second = printed(*QUICK, "--predict=4KiB").splitlines()
    assert first.startswith("all_reduce of 4.00 KiB: ")
    assert second.startswith("broadcast of 4.00 KiB: ")
    larger = "from 1.00 KiB to 8.00 KiB; measure this size too: ddpperf network --world-size=2 --max-size=2MiB"
    assert larger in complaint(*QUICK, "--predict=1100KB")
    assert "ddpperf network --world-size=2 --min-size=512" in complaint(*QUICK, "--predict=1000")
    (line,) = printed(*QUICK, "--predict=4KiB", "--collectives=broadcast").splitlines()
    assert line.startswith("broadcast of ")
    unknown = complaint(*QUICK, "--predict=4KiB", "--collectives=all_to_all")
    assert ", only all_reduce, broadcast; run" in unknown


def test_the_table_has_bandwidths_range_and_error() -> None:
    """1 MB in 200 us: 5 GB/s, times 1.5 of 4 ranks."""
    line = Segment(max_bytes=1_000_000, latency=1e-4, seconds_per_byte=1e-10)
    fit = CollectiveFit(collective="all_reduce", world_size=4, min_bytes=1024, segments=(line,), error=0.031)
    lines = render(cluster.network_table(make_environment(world_size=4), [fit])).splitlines()
    assert lines[0].endswith("gloo, torch 2.13, 4 ranks")
    row = ["all_reduce", "1.00", "KiB", "to", "977", "KiB", "100", "us", "5.00", "7.50", "1", "3.1"]
    assert lines[4].split() == row


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_measured(
    complaint: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "measure_network", lambda *_: pytest.fail("measured what cannot be stored"))
    said = complaint(*QUICK, "--baselines=/proc/nope")
    assert "--baselines: /proc/nope/" in said
    assert " cannot be written: " in said


def test_a_timeout_that_is_short_is_named(complaint: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*given: object) -> None:
        assert given[-1] == 0.001
        raise RanksTimedOut("the stacks of all ranks")

    monkeypatch.setattr(running, "measure_network", late)
    said, *_, stacks = complaint(*QUICK, "--timeout=0.001s", "--no-save").splitlines()
    assert stacks == "the stacks of all ranks"
    assert said == (
        "ddpperf: error: 2 ranks were not measured within --timeout=0.001 s; raise it, or give fewer "
        "--rounds or --collectives, or a smaller --max-size"
    )


def test_check_names_each_mismatch_and_fails(printed: Run, complaint: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """8 KiB through gloo are far from NVLink."""
    monkeypatch.setattr(cluster, "interface_speeds", lambda: {"eth0": 1e9, "ib0": 100e9})
    monkeypatch.setattr(slowness, "interface_line", lambda _, speeds, backend: eth0(speeds, backend))
    out = " ".join(printed(*QUICK, "--check=nvlink4", "--no-save", status=1).split())
    assert "GLOO_SOCKET_IFNAME=eth0 is an interface of 1 Gbit/s, and ib0 has 100 Gbit/s; name that one" in out
    assert "of the 450 GB/s of nvlink4" in out
    assert not Path("baselines").exists()
    assert "measure this network with ddpperf network" in complaint(*QUICK, "--predict=4KiB")


def slowed(
    call: str, seconds: float, late: Callable[[int, object], bool]
) -> Callable[[RankContext, SweepPlan], RankSweep]:
    """A sweep in which calls begin so much later on a rank if ``late`` says so of it and the call's second argument."""

    def delayed(ctx: RankContext, plan: SweepPlan) -> RankSweep:
        import time

        import torch.distributed as dist

        from pytest_ddpperf.instruments.network import sweep

        original = getattr(dist, call)

        def begun_late(*args: Any, **kwargs: Any) -> Any:
            time.sleep(seconds * late(ctx.rank, args[1] if len(args) > 1 else None))
            return original(*args, **kwargs)

        setattr(dist, call, begun_late)  # of this process, which lives for one launch
        return sweep(ctx.rank, ctx.world_size, ctx.device, plan)

    return delayed


@pytest.mark.skipif(usable_cores() < 2, reason="ranks that share a core wait for each other, so none is named")
def test_check_names_a_rank_that_is_slow(printed: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(running, "_sweep", slowed("all_reduce", 0.015, lambda rank, _: rank == 1))
    out = printed(*QUICK, "--collectives=all_reduce", "--check", status=1)
    assert "rank 1 is slow: it comes last to " in out
    assert "--check stores nothing; without --check the fit is stored in baselines/" in out
    assert not [*Path().rglob("network.json")]


@pytest.mark.skipif(usable_cores() < 2, reason="two ranks that share a core are slow, whatever their link")
def test_check_names_a_link_that_is_slow(printed: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only two ranks talk at a time, so three may share two cores; of eight turns few are disturbed by other work."""
    monkeypatch.setattr(running, "_sweep", slowed("send", 0.01, lambda rank, other: {rank, other} == {1, 2}))
    sweep = ("--collectives=broadcast", "--rounds=8", "--world-size=3")
    out = printed(*QUICK, *sweep, "--check", "--no-save", status=1)
    assert "the link of ranks 1 and 2 is slow: a message takes " in out
    assert "rank 0" not in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--predict=4KiB", "--check"], "--check measures the network, and --predict uses a stored measurement"),
        (["--collectives=gossip"], "--collectives=gossip: expected some of all_reduce, reduce_scatter"),
        (["--min-size=1MiB", "--max-size=1MiB"], "--max-size=1048576 must be at least twice --min-size=1048576"),
        (["--min-size=16", "--max-size=32"], "from --min-size=16 to --max-size=32 only 3 sizes are multiples of 8 B"),
    ],
)
def test_a_network_that_cannot_be_measured_is_refused(complaint: Run, arguments: list[str], words: str) -> None:
    assert words in complaint(*QUICK, *arguments)
