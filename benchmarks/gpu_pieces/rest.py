"""Batch size search, CUDA with gloo, and CUDA's other allocators."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from benchmarks.gpu_pieces.failures import reported
from benchmarks.gpu_pieces.piece import Notes, Piece, Place
from benchmarks.gpu_pieces.plugin import job_of, launcher, profiled, timed
from benchmarks.gpu_pieces.work import workloads
from benchmarks.quality.project import ROOT, RunError, pytest_results
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.stats.summaries import median_step
from pytest_ddpperf.units import format_value

ALLOCATORS = {
    "native": "",
    "expandable segments": "expandable_segments:True",
    "cudaMallocAsync": "backend:cudaMallocAsync",
}
VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"  # torch reads it when it is imported, so each has a launcher of its own
SEARCH = """\
from perf_tests.language_model import SMALL, language_model


def test_batch_size(ddpperf):
    found = ddpperf.find_batch_size(lambda size: language_model(SMALL, size), memory_limit={limit!r}, limit={most})
    print("largest", found.size, "peak", found.peak, "tried", len(found.tried))
    assert found.size >= 1
    ddpperf.check(language_model(SMALL, 2), steps=5)
"""


def run(place: Place, notes: Notes) -> None:
    notes(batch_size=_searched(place))
    work = workloads(place)["small"]
    with launcher() as started:
        job = job_of(work, steps=place.chosen(50, 5), diagnosed=True)

        def with_gloo() -> None:
            ranks, seconds = timed(started, place, job, 2, backend="gloo")
            profile = profiled(started, place, job, 2, backend="gloo")
            notes(
                gloo={
                    "step": max(median_step(rank.step_times) for rank in ranks),
                    "communication": ranks[0].communication is not None,
                    "seconds": seconds,
                    "collectives": sorted({each.kind for step in profile.steps for each in step.collectives}),
                }
            )

        notes(gloo_error=reported(with_gloo)["text"])
    for title, value in ALLOCATORS.items():
        with launcher({**os.environ, VARIABLE: value} if value else None) as started:
            found: dict[str, Any] = {}

            def launched(found: dict[str, Any] = found, started: Any = started) -> None:
                ranks, _ = timed(started, place, job_of(work, steps=place.chosen(50, 5)))
                found.update(step=median_step(ranks[0].step_times), memory=dict(ranks[0].memory))
                backend = started.run(allocator, world_size=1, device=place.device, backend=place.backend).rank(0)
                found.update(backend=backend)

            found["error"] = reported(launched)["text"]
            notes(allocators={**notes.found.get("allocators", {}), title: found})


def allocator(ctx: RankContext) -> str:
    """The name of CUDA's allocator in use."""
    import torch

    return str(torch.cuda.get_allocator_backend()) if ctx.device.type == "cuda" else "malloc"


def _searched(place: Place) -> dict[str, Any]:
    """A search for the largest batch by a test of its own."""
    folder = place.folder / "batch_size"
    folder.mkdir(parents=True, exist_ok=True)
    limit = place.chosen("2GiB", "400MB")
    text = SEARCH.format(limit=limit, most=place.chosen(None, 2))
    (folder / "test_batch_size.py").write_text(text, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    options = ("-s", "--ddpperf-max-time=2", "--ddpperf-verify=false", "--ddpperf-counts=off", "--ddpperf-launches=1")
    found: dict[str, Any] = {"limit": limit}

    def search() -> None:
        arguments = ("test_batch_size.py", *options)
        (result,) = pytest_results(
            "batch size", folder, arguments, (ROOT,), 1, device=place.device, backend=place.backend
        )
        found["verdict"] = result["verdict"]

    try:
        search()
    except RunError as error:
        found["error"] = str(error)[-2000:]
    return found


def lines(found: Mapping[str, Any]) -> list[str]:
    told = []
    if "batch_size" in found:
        error = found["batch_size"].get("error", "")
        told.append(f"search for the largest batch within {found['batch_size']['limit']}: {error or 'works'}")
    gloo = found.get("gloo")
    if gloo is not None:
        measured = "measured" if gloo["communication"] else "not measured"
        told.append(
            f"two ranks of gloo on one GPU: step {format_value(gloo['step'], 's')}, exposed communication {measured}, "
            f"collectives in the profile: {', '.join(gloo['collectives']) or 'none'}"
        )
    elif found.get("gloo_error"):
        told.append(f"two ranks of gloo on one GPU: {found['gloo_error']}")
    for title, of_one in found.get("allocators", {}).items():
        if of_one["error"]:
            told.append(f"{title}: {of_one['error']}")
        else:
            memory = ", ".join(f"{name} {size:.4g}" for name, size in of_one["memory"].items())
            told.append(f"{title} ({of_one['backend']}): step {format_value(of_one['step'], 's')}; {memory}")
    return told


PIECE = Piece(
    name="rest",
    question="Do batch size search, CUDA with gloo, expandable segments and cudaMallocAsync work?",
    seconds=150,
    run=run,
    lines=lines,
    dry="the same on the CPU, where the allocator stays malloc",
)
