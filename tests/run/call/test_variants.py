"""What a call of ``compare`` names: pure, so without any ranks."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpperf import Strategy, Workload
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.run.call.variants import NamedVariant, several


def nothing(*_: object) -> Any:
    return None


WORKLOAD = Workload(model=nothing, batch=nothing, loss=nothing, optimizer=nothing, samples_per_step=1)


def test_strategies_are_named_by_their_words_however_they_are_written() -> None:
    variants = several(WORKLOAD, ["naive", Strategy("ddp", bucket_cap_mb=5)], "ddp[bucket_cap_mb=5]")
    assert list(variants.by_name) == ["naive", "ddp[bucket_cap_mb=5]"]
    assert variants.over == "ddp[bucket_cap_mb=5]"
    assert (
        variants.canonical(Strategy("ddp", bucket_cap_mb=5))
        == variants.canonical("ddp[bucket_cap_mb=5]")
        == variants.over
    )


def test_strategies_may_have_names_of_their_own() -> None:
    variants = several(WORKLOAD, {"small": "ddp[bucket_cap_mb=1]", "large": "ddp"}, None)
    assert variants.by_name == {
        "small": NamedVariant(subject=WORKLOAD, strategy="ddp[bucket_cap_mb=1]"),
        "large": NamedVariant(subject=WORKLOAD, strategy="ddp"),
    }
    assert (variants.over, variants.canonical("large")) == ("small", "large")


def test_subjects_are_compared_by_name_with_the_first() -> None:
    variants = several({"old": nothing, "new": WORKLOAD}, None, None)
    assert variants.by_name == {"old": NamedVariant(subject=nothing), "new": NamedVariant(subject=WORKLOAD)}
    assert variants.over == "old"
    assert several({"old": nothing, "new": nothing}, None, "new").over == "new"


def test_workloads_by_name_may_share_a_strategy() -> None:
    variants = several({"mine": nothing, "small": WORKLOAD, "large": WORKLOAD}, None, None, "flat")
    assert variants.by_name == {
        "mine": NamedVariant(subject=nothing),
        "small": NamedVariant(subject=WORKLOAD, strategy="flat"),
        "large": NamedVariant(subject=WORKLOAD, strategy="flat"),
    }


@pytest.mark.parametrize(
    ("subject", "strategies", "over", "said"),
    [
        (WORKLOAD, {"a": "ddp"}, None, "two or more strategies"),
        ({"old": nothing, "new": nothing}, None, "newer", "over='newer'"),
        ({"old": nothing, "new": nothing}, ["ddp", "naive"], None, "expected a Workload and a list of strategies"),
        (WORKLOAD, None, None, "several subjects by name, .* or settings by name"),
        (WORKLOAD, "ddp", None, "expected a Workload and a list of strategies"),
        (WORKLOAD, 5, None, "expected a Workload and a list of strategies"),
    ],
)
def test_what_cannot_be_compared_is_refused(subject: Any, strategies: Any, over: Any, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        several(subject, strategies, over)


def test_variants_have_settings_a_strategy_and_variables() -> None:
    given: dict[str, Any] = {
        "fp32": {},
        "bf16": {"precision": "bf16"},
        "sharded": {"strategy": "fsdp2", "env": {"B": "x", "A": 1.5}},
    }
    variants = several(WORKLOAD, None, "bf16", "flat", variants=given)
    assert variants.by_name == {
        "fp32": NamedVariant(subject=WORKLOAD, strategy="flat"),
        "bf16": NamedVariant(subject=WORKLOAD, strategy="flat", settings={"precision": "bf16"}),
        "sharded": NamedVariant(subject=WORKLOAD, strategy="fsdp2", settings={"env": {"B": "x", "A": 1.5}}),
    }
    assert variants.over == "bf16"


def test_a_step_of_ones_own_has_variants_too() -> None:
    variants = several(nothing, None, None, variants={"one": {"env": {"OMP_NUM_THREADS": 1}}, "two": {}})
    assert [way.subject for way in variants.by_name.values()] == [nothing, nothing]


@pytest.mark.parametrize(
    ("subject", "strategies", "variants", "said"),
    [
        (WORKLOAD, None, {"a": {}}, r"compare\(variants=\['a'\]\): expected two or more variants"),
        (WORKLOAD, None, ["bf16"], r"compare\(variants=\['bf16'\]\): expected a dict of settings for each name"),
        (WORKLOAD, None, {"a": "bf16", "b": {}}, r"expected a dict of settings for each name"),
        (WORKLOAD, ["ddp", "flat"], {"a": {}, "b": {}}, "give only one of the two; variants may set a strategy"),
        ({"x": nothing, "y": nothing}, None, {"a": {}, "b": {}}, "is for one Workload, Script or step"),
    ],
)
def test_variants_that_say_nothing_sensible_are_refused(
    subject: Any, strategies: Any, variants: Any, said: str
) -> None:
    with pytest.raises(SettingError, match=said):
        several(subject, strategies, None, variants=variants)
