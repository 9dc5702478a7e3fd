"""What a call of ``compare`` names: pure, so without any ranks."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpperf import Strategy, Workload
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.loader_settings import loader_settings
from pytest_ddpperf.reports.findings import finding_text
from pytest_ddpperf.run.requests import Contender, VerbCall, several
from pytest_ddpperf.settings import Settings
from tests.factories import make_environment


def nothing(*_: object) -> Any:
    return None


WORKLOAD = Workload(model=nothing, batch=nothing, loss=nothing, optimizer=nothing, samples_per_step=1)


def test_strategies_are_named_by_their_words_however_they_are_written() -> None:
    ways = several(WORKLOAD, ["naive", Strategy("ddp", bucket_cap_mb=5)], "ddp[bucket_cap_mb=5]")
    assert list(ways.by_name) == ["naive", "ddp[bucket_cap_mb=5]"]
    assert ways.over == "ddp[bucket_cap_mb=5]"
    assert ways.canonical(Strategy("ddp", bucket_cap_mb=5)) == ways.canonical("ddp[bucket_cap_mb=5]") == ways.over


def test_strategies_may_have_names_of_their_own() -> None:
    ways = several(WORKLOAD, {"small": "ddp[bucket_cap_mb=1]", "large": "ddp"}, None)
    assert ways.by_name == {
        "small": Contender(subject=WORKLOAD, strategy="ddp[bucket_cap_mb=1]"),
        "large": Contender(subject=WORKLOAD, strategy="ddp"),
    }
    assert (ways.over, ways.canonical("large")) == ("small", "large")


def test_subjects_are_compared_by_name_with_the_first() -> None:
    ways = several({"old": nothing, "new": WORKLOAD}, None, None)
    assert ways.by_name == {"old": Contender(subject=nothing), "new": Contender(subject=WORKLOAD)}
    assert ways.over == "old"
    assert several({"old": nothing, "new": nothing}, None, "new").over == "new"


def test_workloads_by_name_may_share_a_strategy() -> None:
    ways = several({"mine": nothing, "small": WORKLOAD, "large": WORKLOAD}, None, None, "flat")
    assert ways.by_name == {
        "mine": Contender(subject=nothing),
        "small": Contender(subject=WORKLOAD, strategy="flat"),
        "large": Contender(subject=WORKLOAD, strategy="flat"),
    }


@pytest.mark.parametrize("subject", [WORKLOAD, {"old": nothing, "new": nothing}])
def test_a_strategy_for_no_workload_by_name_is_refused(subject: Any) -> None:
    with pytest.raises(SettingError, match=r"compare\(strategy='flat'\): is for Workloads that are compared by name"):
        several(subject, ["naive", "ddp"] if subject is WORKLOAD else None, None, "flat")


@pytest.mark.parametrize(
    ("subject", "strategies", "over", "said"),
    [
        (WORKLOAD, ["ddp"], None, r"strategies=\['ddp'\]\): expected two or more strategies"),
        (WORKLOAD, ["ddp", "naive", "ddp"], None, "ddp is given twice"),
        (WORKLOAD, ["ddp", "naive"], "flat", "over='flat': expected one of ddp, naive"),
        (WORKLOAD, [], None, "two or more strategies"),
        (WORKLOAD, {"a": "ddp"}, None, "two or more strategies"),
        ({"old": nothing}, None, None, r"compare\(\['old'\]\): expected two or more subjects"),
        ({"old": nothing, "new": nothing}, None, "newer", "over='newer'"),
        ({"old": nothing, "new": nothing}, ["ddp", "naive"], None, "expected a Workload and a list of strategies"),
        (WORKLOAD, None, None, "or what is to be compared by name"),
        (WORKLOAD, "ddp", None, "expected a Workload and a list of strategies"),
        (nothing, ["ddp", "naive"], None, "expected a Workload and a list of strategies"),
    ],
)
def test_what_cannot_be_compared_is_refused(subject: Any, strategies: Any, over: Any, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        several(subject, strategies, over)


CPU = make_environment(cpu_model="AMD EPYC", cores=2)


def of_the_module_alone(module: object) -> None:
    """A strategy that takes too little."""


def nothing_of_a_rank(ctx: object) -> Any:
    """A function that gives a step."""


def without_a_rank() -> None:
    """A function that gives a step, and takes too little."""


@pytest.mark.parametrize(
    ("subject", "strategy", "name", "said"),
    [
        (
            WORKLOAD,
            of_the_module_alone,
            None,
            (
                r"^strategy of_the_module_alone \(.*test_requests.py:\d+\) takes \(module\) and is "
                r"called as of_the_module_alone\(module, ctx\): too many positional arguments$"
            ),
        ),
        (without_a_rank, None, None, r"^without_a_rank .* is called as without_a_rank\(ctx\): too many"),
        (
            Workload,
            None,
            None,
            r"^the class Workload cannot be measured: give an object of it, Workload\(model=..., ...\)$",
        ),
        (WORKLOAD, "ddp", 5, "^name=5: expected a text, such as name='5'$"),
    ],
)
def test_what_cannot_be_called_as_it_will_be_is_refused_before_ranks_start(
    subject: Any, strategy: Any, name: Any, said: str
) -> None:
    with pytest.raises(SettingError, match=said):
        VerbCall(settings=Settings(), knobs={}).variant(subject, CPU, strategy=strategy, name=name)


def test_a_setting_of_a_workload_is_remarked_on_for_a_step_that_brings_its_own() -> None:
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
    remark = (
        "not held against a single process: the step is no Workload; reference=... of ddpperf.check names what to "
        "compare it with, and verify=False ends this remark"
    )
    assert told == (remark,) * remarked


def test_a_loader_setting_is_remarked_on_where_there_is_one_batch() -> None:
    settings = Settings(loader=loader_settings("workers=2"))
    asked = VerbCall(settings=settings, knobs={}).variant(WORKLOAD, CPU)
    assert asked.findings == (Finding("loader_without_effect", {"loader": settings.recipe["loader"]}),)
    assert "loader" not in asked.recipe
