"""The two cases that this plugin began with: a small text classifier loses by more ranks, and a larger one gains.

    python benchmarks/origin_cases.py               # two ranks beside one
    python benchmarks/origin_cases.py --ranks 4     # on two cores this only shows that it runs

Each case is measured with one rank and with several that share its batch. The diagnosis tells the loss in milliseconds
by cause, and what would help. The first advice that can be followed here is followed, and the curve is measured with
and without it in turns. A curve measures its numbers of ranks side by side.

The sizes of the models are those of the origin: AG News with 128 wide and 2 layers, and the larger configuration with
256 wide and 4 layers, both with vocabularies of 30,000 words. A core computes more slowly than a GPU of the origin did,
so the texts of the small case are shorter.

Goals: the small case is negative scaling and the larger one gains; following the advice raises the small one's
efficiency in each turn.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from pytest_ddpperf import Ddpperf, Workload
from pytest_ddpperf.analysis.diagnosis import diagnosis_of
from pytest_ddpperf.analysis.losses import scaling_loss
from pytest_ddpperf.analysis.scaling import status
from pytest_ddpperf.records.diagnosis import Advice
from pytest_ddpperf.records.side_by_side import ScalingCurve
from pytest_ddpperf.reports.compared import LOST_TO
from pytest_ddpperf.reports.diagnosis import advice_text, diagnosis_text

VOCABULARY, CLASSES = 30_000, 4
ENOUGH = 600.0  # seconds: a curve whose time is spent is not taken apart
UNHEARD = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of the plugin, which this script has imported


@dataclass(frozen=True, kw_only=True)
class Case:
    """A text classifier and its batch, which is that of all ranks together."""

    name: str
    width: int
    heads: int
    layers: int
    feed_forward: int
    tokens: int  # of a text
    batch: int  # texts


CASES = (
    Case(name="small", width=128, heads=4, layers=2, feed_forward=256, tokens=8, batch=32),
    Case(name="larger", width=256, heads=8, layers=4, feed_forward=1024, tokens=128, batch=32),
)


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a case is trained."""

    batch: int
    strategy: str = "ddp"
    settings: Mapping[str, Any] = field(default_factory=dict)


FOLLOWED: Mapping[str, Callable[[Way, Advice], Way]] = {
    "accumulation": lambda way, advice: Way(
        batch=way.batch, settings={"accumulation_steps": advice.facts["steps"], "no_sync": True}
    ),
    "compression": lambda way, _: Way(batch=way.batch, strategy="ddp[comm_hook=bf16]"),
    "bucket_size": lambda way, _: Way(batch=way.batch, strategy="ddp[bucket_cap_mb=100]"),
    "larger_batch": lambda way, advice: Way(batch=advice.facts["times"] * way.batch),
}
"""The advice that can be followed here, by its code."""


def classifier(case: Case, batch: int) -> Workload:
    """The workload of a case with so many texts in its batch."""
    return Workload(
        model=partial(model, case),
        batch=partial(texts, case, batch),
        loss=loss,
        optimizer=adam,
        samples_per_step=batch,
        tokens_per_step=batch * case.tokens,
    )


def model(case: Case) -> Any:
    """Embeddings, a transformer's encoder, and a linear layer on the mean of its outputs."""
    from torch import nn

    class Mean(nn.Module):
        def forward(self, hidden: Any) -> Any:
            return hidden.mean(dim=1)

    layer = nn.TransformerEncoderLayer(case.width, case.heads, case.feed_forward, dropout=0.0, batch_first=True)
    return nn.Sequential(
        nn.Embedding(VOCABULARY, case.width),
        nn.TransformerEncoder(layer, case.layers, enable_nested_tensor=False),
        Mean(),
        nn.Linear(case.width, CLASSES),
    )


def texts(case: Case, batch: int) -> Any:
    """Random words, and a class for each text."""
    import torch

    return torch.randint(VOCABULARY, (batch, case.tokens)), torch.randint(CLASSES, (batch,))


def loss(outputs: Any, targets: Any) -> Any:
    """Cross entropy."""
    from torch.nn import functional

    return functional.cross_entropy(outputs, targets)


def adam(parameters: Any) -> Any:
    """Adam, as the origin trains."""
    import torch

    return torch.optim.Adam(parameters, lr=1e-3)


class Options:
    """A pytest plugin that hands the script's options to the test."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options

    @pytest.fixture
    def options(self) -> argparse.Namespace:
        """What the command line says."""
        return self._options


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_a_case(ddpperf: Ddpperf, case: Case, options: argparse.Namespace) -> None:
    plain, ranks = Way(batch=case.batch), options.ranks

    def curve(way: Way, name: str, **settings: Any) -> ScalingCurve:
        return ddpperf.scaling(
            classifier(case, way.batch),
            world_sizes=(1, ranks),
            mode="strong",
            strategy=way.strategy,
            name=name,
            launches=options.launches,
            max_time=ENOUGH,
            **way.settings,
            **settings,
        )

    print(f"\n\n{case.name}: {case}")
    first = curve(plain, "diagnosed")
    told(first, ranks)
    diagnosis = diagnosis_of(first.point(ranks))
    given = diagnosis.advice if diagnosis else ()
    advice = next((each for each in given if each.code in FOLLOWED), None)
    if advice is None:
        pytest.fail("none of the advice can be followed")
    print("  advice:", *map(advice_text, given), sep="\n    ")
    print(f"  followed: {advice_text(advice)}")
    changed = FOLLOWED[advice.code](plain, advice)
    times = {"verify": False, "counts": "off"}
    pairs = [
        (curve(plain, f"before {turn}", **times), curve(changed, f"after {turn}", **times))
        for turn in range(options.turns)
    ]
    for name, each in zip(("before", "after"), zip(*pairs, strict=True), strict=True):
        rates = [one.point(ranks)["throughput"].value for one in each]
        words = " ".join(f"{one.efficiency(ranks):.1%}" for one in each)
        print(f"  {name:<7} efficiency {words}; {statistics.median(rates):.0f} texts/s with {ranks} ranks", flush=True)
    gained = sum(after.efficiency(ranks) > before.efficiency(ranks) for before, after in pairs)
    print(f"  the advice raises the efficiency in {gained} of {len(pairs)} turns")
    if (first.speedup(ranks) < 1) != (case.name == "small"):
        pytest.fail(f"a speedup of {first.speedup(ranks):.2f} is not what this case is for")
    if case.name == "small" and gained < len(pairs):
        pytest.fail("the advice does not raise the efficiency in each turn")


def told(curve: ScalingCurve, ranks: int) -> None:
    """Prints how one curve scales, and what it loses to what."""
    base, point = curve.point(1), curve.point(ranks)
    speedup, efficiency = curve.speedup(ranks), curve.efficiency(ranks)
    for one in (base, point):
        print(f"  {one.world_size} rank(s): step {1e3 * one['step_time'].value:.2f} ms")
    print(f"  speedup {speedup:.2f}, efficiency {efficiency:.1%}: {status(efficiency, speedup)}")
    here, there = diagnosis_of(point), diagnosis_of(base)
    if here is None or there is None:
        print("  no step was taken apart")
        return
    lost = scaling_loss(there, here, efficiency)
    each = ", ".join(f"{LOST_TO[kind]} {1e3 * seconds:.2f} ms" for kind, seconds in lost.kinds.items() if seconds)
    print(f"  lost: {1e3 * lost.seconds:.2f} ms of {1e3 * lost.step:.2f} ms: {each}")
    print(f"  {ranks} ranks: {diagnosis_text(here)}", flush=True)


def main() -> int:
    """Runs both cases; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="beside one (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=5, help="with and without the advice (default: %(default)s)")
    parser.add_argument("--launches", type=int, default=4, help="of each number of ranks (default: %(default)s)")
    parser.add_argument("-k", default="", help="only cases of such names")
    options = parser.parse_args()
    pytest_options = ["-q", "-s", "-p", "no:cacheprovider", "-o", "python_files=origin_cases.py", "-k", options.k]
    return int(pytest.main([__file__, *pytest_options, *UNHEARD, "--tb=short"], plugins=[Options(options)]))


if __name__ == "__main__":
    raise SystemExit(main())
