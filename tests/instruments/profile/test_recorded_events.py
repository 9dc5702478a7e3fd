"""Profiles that a GPU has recorded: the plugin has to understand them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddpperf.instruments.profile.events import ProfilerEvent, steps_of
from pytest_ddpperf.instruments.torch_internals import activity_of

FILE = Path(__file__).with_name("gpu_events.json.gz")  # one H100, torch 2.11
MADE_UP = Path(__file__).with_name("made_up_events.json")  # in the same form


def profiles() -> list[Any]:
    """Those of a GPU, and one that is made up."""
    found = [pytest.param(json.loads(MADE_UP.read_text())["profiles"][0], id="made up")]
    with gzip.open(FILE, "rt", encoding="utf-8") as file:
        recorded = json.load(file)["profiles"]
    return [*found, *(pytest.param(profile, id=profile["title"]) for profile in recorded)]


@pytest.mark.parametrize("profile", profiles())
def test_a_step_has_its_computation_and_its_collectives(profile: Mapping[str, Any]) -> None:
    events = [
        ProfilerEvent(
            name=event["name"], activity=event["activity"], start=1e-9 * event["start_ns"], end=1e-9 * event["end_ns"]
        )
        for event in profile["events"]
    ]
    (step,) = steps_of(events, device=profile["device"])
    assert 0 < step.computed <= step.seconds
    nccl = [event for event in profile["events"] if event["activity"] == "kernel" and "nccl" in event["name"].lower()]
    named = [event for event in profile["events"] if event["name"].startswith("gloo:")]
    gloo = [event for event in named if event["activity"] == "user_annotation"]
    assert len(step.collectives) == len(nccl) + len(gloo)
    assert {each.kind for each in step.collectives} <= {"all_reduce", "broadcast"}


@pytest.mark.parametrize("profile", profiles())
def test_the_kind_of_an_event_follows_from_its_device(profile: Mapping[str, Any]) -> None:
    """torch before 2.12 does not say; there the plugin concludes it."""
    for event in profile["events"]:
        silent = SimpleNamespace(
            name=partial(str, event["name"]),
            device_type=partial(SimpleNamespace, name=event["device_type"]),
            is_user_annotation=partial(bool, event["is_user_annotation"]),
        )
        assert activity_of(silent) == event.get("activity_type", event["activity"])
