"""What torch's profiler calls the events of a step, kept whole so that tests can read them; waits by warm-up."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from benchmarks.gpu_pieces.piece import Notes, Piece, Place
from benchmarks.gpu_pieces.plugin import counted, job_of, launcher, workloads
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.training.jobs import LaunchJob

FILE = "gpu_events.json.gz"
SCHEMA = "pytest-ddpperf/profiler-events/1"
STEP = "step"  # the name of the annotation around a step, as the plugin's own
WARMUPS = (3, 5, 6, 7, 12)
TOLD = ("sync", "nccl", "gloo")  # of names that are told apart


def run(place: Place, notes: Notes) -> None:
    work = workloads(place)["small"]
    cases = [("naive", place.backend, 1), ("ddp", place.backend, 1), ("ddp", "gloo", 2)]
    profiles: list[dict[str, Any]] = []
    with launcher() as started:
        for strategy, backend, ranks in cases:
            job = job_of(work, steps=1, warmup=12, strategy=strategy)
            result = started.run(
                recorded, job, world_size=ranks, device=place.device, backend=backend, timeout=place.chosen(120, 60)
            )
            events = result.rank(0)
            title = f"{strategy}, {backend} with {ranks} ranks"
            profiles.append({"title": title, "device": place.device, "ranks": ranks, "events": events})
            notes(profiles={**notes.found.get("profiles", {}), title: summary(events)})
            with gzip.open(notes.beside(FILE), "wt", encoding="utf-8") as file:
                json.dump({"schema": SCHEMA, "profiles": profiles}, file)
        for warmup in place.chosen(WARMUPS, WARMUPS[:1]):
            counts = counted(started, place, job_of(work, steps=1, warmup=warmup))
            waits = {
                "details": counts.details.get("device_synchronisations"),
                "unstable": counts.unstable.get("device_synchronisations"),
            }
            notes(waits={**notes.found.get("waits", {}), str(warmup): waits})


def recorded(ctx: RankContext, job: LaunchJob) -> list[dict[str, Any]]:
    """The events of one step on this rank, after a profile that is thrown away."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    from pytest_ddpperf.training.step import build_step

    cuda = ctx.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with closing(build_step(ctx, job)) as step:
        for _ in range(job.plan.warmup):
            step.run()
        for _ in range(2):
            profiler = profile(activities=activities, record_shapes=True, acc_events=True)
            with profiler, record_function(STEP):
                step.run()
                if cuda:
                    torch.cuda.synchronize(ctx.device)
    results: Any = profiler.profiler
    events = results.kineto_results.events()
    began = min(event.start_ns() for event in events)
    return [event_data(event, began) for event in events]


def event_data(event: Any, began: int) -> dict[str, Any]:
    """All that a raw event tells, in the names of its methods; times are nanoseconds since ``began``."""
    from pytest_ddpperf.instruments.torch_internals import activity_of

    more = {name: getattr(event, name)() for name in ("extra_meta", "activity_type") if hasattr(event, name)}
    return {
        "name": event.name(),
        "activity": activity_of(event),  # as the plugin takes it to be
        "device_type": event.device_type().name,
        "is_user_annotation": event.is_user_annotation(),
        "start_ns": event.start_ns() - began,
        "end_ns": event.end_ns() - began,
        "correlation_id": event.correlation_id(),
        "linked_correlation_id": event.linked_correlation_id(),
        "shapes": event.shapes(),
        "dtypes": event.dtypes(),
        **{name: value if isinstance(value, dict) else str(value) for name, value in more.items()},
    }


def summary(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How many events there are of each activity, and the names that say what waits and what communicates."""
    activities = Counter(event["activity"] for event in events)
    names = Counter(
        f"{event['activity']}: {event['name']}"
        for event in events
        if event["activity"].endswith("annotation") or any(word in event["name"].lower() for word in TOLD)
    )
    kernels = {event["name"] for event in events if event["activity"] == "kernel"}
    return {"activities": dict(activities), "names": dict(names), "kernels": len(kernels)}


def lines(found: Mapping[str, Any]) -> list[str]:
    told = []
    for title, profile in found.get("profiles", {}).items():
        activities = ", ".join(f"{times} {name}" for name, times in sorted(profile["activities"].items()))
        told += [f"{title}: {activities}; {profile['kernels']} kernels by name"]
        told += [f"  {times:4} x {name[:100]}" for name, times in sorted(profile["names"].items())]
    for warmup, waits in found.get("waits", {}).items():
        details = "not counted" if waits["details"] is None else json.dumps(waits["details"])
        unstable = f"; unstable: {waits['unstable']}" if waits["unstable"] else ""
        told.append(f"device_synchronisations of DDP after {warmup} steps of warm-up: {details}{unstable}")
    return told


PIECE = Piece(
    name="profiles",
    question="What does the profiler call kernels, copies, waits and collectives? Do waits depend on the warm-up?",
    seconds=120,
    run=run,
    lines=lines,
    files=(FILE,),
    dry="gloo's events on the CPU, where no wait is counted",
)
