"""What a call of a verb asks of each variant: pure, so without any ranks."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpperf import Workload
from pytest_ddpperf.baselines.fingerprint import training_differences
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.loader_settings import loader_settings
from pytest_ddpperf.records.results import Provenance, record_of
from pytest_ddpperf.reports.findings import finding_text
from pytest_ddpperf.run.call.requests import VerbCall, grows
from pytest_ddpperf.run.call.variants import counted_only, several
from pytest_ddpperf.settings import Settings, overlay_words
from tests.factories import make_environment


def nothing(*_: object) -> Any:
    return None


WORKLOAD = Workload(model=nothing, batch=nothing, loss=nothing, optimizer=nothing, samples_per_step=1)


CPU = make_environment(cpu_model="AMD EPYC", cores=2)


def nothing_of_a_rank(ctx: object) -> Any:
    """A function that gives a step."""


def test_a_custom_step_with_a_setting_of_workloads_has_a_finding() -> None:
    settings = Settings(precision="bf16")
    finding = Finding("settings_of_a_workload", {"settings": (("precision", "bf16"),)})
    assert finding in VerbCall(settings=settings, knobs={}).variant(nothing_of_a_rank, CPU).findings


@pytest.mark.parametrize(
    ("verify", "world_size", "reference", "remarked"),
    [(True, 2, None, True), (False, 2, None, False), (True, 1, None, False), (True, 2, nothing_of_a_rank, False)],
)
def test_a_step_that_is_not_checked_says_how_to_have_it_checked(
    verify: bool,  # noqa: FBT001 - a parameter
    world_size: int,
    reference: Any,
    remarked: bool,  # noqa: FBT001 - a parameter
) -> None:
    call = VerbCall(settings=Settings(verify=verify), knobs={})
    group = make_environment(world_size=world_size)
    told = tuple(map(finding_text, call.variant(nothing_of_a_rank, group, reference=reference).findings))
    remark = "the step is no Workload; give ddpperf.check(reference=...), or verify=False"
    assert told == (f"gradients were not compared with a single process: {remark}",) * remarked


def test_a_workload_of_one_batch_with_a_loader_setting_has_a_finding() -> None:
    settings = Settings(loader=loader_settings("workers=2"))
    asked = VerbCall(settings=settings, knobs={}).variant(WORKLOAD, CPU)
    assert asked.findings == (Finding("loader_without_effect", {"loader": settings.recipe["loader"]}),)
    assert "loader" not in asked.recipe


FOUR = {"accumulation_steps": 4, "no_sync": False}


def test_a_variant_overrides_settings_of_the_call_without_a_change_of_its_name() -> None:
    variants = several(WORKLOAD, None, None, variants={"one": {}, "four": FOUR})
    call = VerbCall(settings=Settings(precision="bf16"), knobs={})
    one, four = (
        call.for_variant(way, name).variant(WORKLOAD, CPU, name=name) for name, way in variants.by_name.items()
    )
    assert (one.name, four.name) == ("one precision=bf16", "four precision=bf16")
    assert (one.recipe, four.recipe["accumulation_steps"]) == ({"precision": "bf16"}, "4")
    over = four.effective_settings(Settings(warmup=7))
    assert (over.accumulation_steps, over.no_sync, over.warmup) == (4, False, 7)


def test_the_variables_of_a_variant_are_part_of_its_recipe() -> None:
    variants = several(
        nothing_of_a_rank, None, None, variants={"tree": {}, "ring": {"env": {"NCCL_ALGO": "Ring", "A": 2}}}
    )
    call = VerbCall(settings=Settings(), knobs={})
    tree, ring = (
        call.for_variant(way, name).variant(way.subject, CPU, name=name) for name, way in variants.by_name.items()
    )
    assert (tree.recipe, ring.recipe, ring.name) == ({}, {"env": "A=2 NCCL_ALGO=Ring"}, "ring")
    assert ring.variables == (("A", "2"), ("NCCL_ALGO", "Ring"))


def test_a_variant_adds_its_variables_to_the_variables_of_the_call() -> None:
    given: dict[str, dict[str, Any]] = {"same": {}, "more": {"env": {"B": 3, "C": 4}}, "none": {"env": None}}
    variants = several(nothing_of_a_rank, None, None, variants=given)
    call = VerbCall(settings=overlay_words(Settings(), {"env": {"A": 1, "B": 2}}, where="ddpperf.compare"), knobs={})
    found = {name: call.for_variant(way, name).settings.env for name, way in variants.by_name.items()}
    assert found == {"same": (("A", "1"), ("B", "2")), "more": (("A", "1"), ("B", "3"), ("C", "4")), "none": None}


def test_a_function_of_the_number_of_ranks_is_recognised_by_its_parameter() -> None:
    def build(ctx: Any) -> Any:
        raise AssertionError(ctx)  # nothing is called

    given: list[Any] = [lambda n: n, lambda world_size: world_size, lambda ranks=1: ranks, build, lambda: 0, WORKLOAD]
    assert [grows(each) for each in given] == [True, True, True, False, False, False]


def test_the_limit_of_memory_is_kept_and_is_no_part_of_a_name() -> None:
    """A baseline under another one is found, and told to differ."""
    limited, odd = (
        VerbCall(settings=Settings(memory_limit=limit, precision="bf16"), knobs={}).variant(WORKLOAD, CPU)
        for limit in (3 * 2**30, 5)
    )
    plain = VerbCall(settings=Settings(precision="bf16"), knobs={}).variant(WORKLOAD, CPU)
    assert limited.name == plain.name == limited.training
    assert limited.plain_name == plain.plain_name
    assert (limited.recipe["memory_limit"], odd.recipe["memory_limit"]) == ("3072MiB", "5B")
    record = record_of(counted_only(plain), Provenance(date="2026-01-01", commit=None))
    differs = training_differences(record, limited.strategy, limited.recipe)
    assert differs == ("memory_limit default -> 3072MiB",)
