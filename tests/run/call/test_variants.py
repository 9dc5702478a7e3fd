"""What a call of ``compare`` names: pure, so without any ranks."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpperf import Strategy, Workload
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


@pytest.mark.parametrize(
    ("subject", "strategies", "strategy", "expected"),
    [
        pytest.param(
            WORKLOAD,
            {"small": "ddp[bucket_cap_mb=1]", "large": "ddp"},
            None,
            {"small": (WORKLOAD, "ddp[bucket_cap_mb=1]"), "large": (WORKLOAD, "ddp")},
            id="strategies with names of their own",
        ),
        pytest.param(
            {"old": nothing, "new": WORKLOAD},
            None,
            None,
            {"old": (nothing, None), "new": (WORKLOAD, None)},
            id="subjects",
        ),
        pytest.param(
            {"mine": nothing, "small": WORKLOAD},
            None,
            "flat",
            {"mine": (nothing, None), "small": (WORKLOAD, "flat")},
            id="workloads that share a strategy",
        ),
    ],
)
def test_named_variants_are_compared_with_the_first(
    subject: Any, strategies: Any, strategy: Any, expected: dict[str, tuple[Any, Any]]
) -> None:
    variants = several(subject, strategies, None, strategy)
    assert variants.by_name == {
        name: NamedVariant(subject=of_name, strategy=given) for name, (of_name, given) in expected.items()
    }
    first, last = expected
    assert (variants.over, variants.canonical(last)) == (first, last)
    assert several(subject, strategies, last, strategy).over == last


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
    own = several(nothing, None, None, variants={"one": {"env": {"OMP_NUM_THREADS": 1}}, "two": {}})
    assert [way.subject for way in own.by_name.values()] == [nothing, nothing]
