"""Chrome traces made by hand; times are in microseconds."""

from __future__ import annotations

from typing import Any

from pytest_ddpperf.analysis.traces.reading import RankTrace, read_trace


def event(name: str, start: float, end: float, cat: str = "cpu_op", *, tid: int = 1, **args: Any) -> dict[str, Any]:
    """Something that lasts from one time to another."""
    return {"ph": "X", "name": name, "cat": cat, "ts": start, "dur": end - start, "pid": 7, "tid": tid, "args": args}


def step(start: float, end: float, name: str = "step") -> dict[str, Any]:
    """The range of a step."""
    return event(name, start, end, "user_annotation")


def collective(start: float, end: float, floats: int = 10, kind: str = "all_reduce", tid: int = 2) -> dict[str, Any]:
    """A collective of gloo."""
    inputs: dict[str, Any] = {"Input type": ["float"], "Input Dims": [[floats]]}
    return event(f"gloo:{kind}", start, end, tid=tid, **inputs)


def document(rank: int, world_size: int, *events: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A trace as torch exports it."""
    told = {"rank": rank, "world_size": world_size, **more}
    return {"distributedInfo": told, "baseTimeNanoseconds": 5, "traceEvents": list(events)}


def trace(rank: int, world_size: int, *events: dict[str, Any], **more: Any) -> RankTrace:
    """What is read from it."""
    return read_trace(document(rank, world_size, *events, **more), f"rank {rank}")


def later(events: list[dict[str, Any]], by: float) -> list[dict[str, Any]]:
    """The same events by a clock that is so much ahead."""
    return [{**each, "ts": each["ts"] + by} for each in events]
