"""``ddpperf.predict``, ``what_if`` and ``advise``: what a test gets, what is told, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_ddpperf.cli.command import main

SUITE = """
import pytest
import torch
from torch import nn
from pytest_ddpperf import Workload
from pytest_ddpperf.errors import SettingError

WIDE = 64
QUICK = dict(world_size=16, network="pcie-ethernet10", device="cpu")


def of_size(size):
    return Workload(
        model=lambda: nn.Sequential(*[nn.Linear(WIDE, WIDE) for _ in range(4)]),
        batch=lambda: (torch.randn(size, WIDE), torch.randn(size, WIDE)),
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        samples_per_step=size,
    )


workload = of_size(8)


def sends(ctx):
    return lambda: torch.distributed.send(torch.ones(4), 1 - ctx.rank)
"""


def run(pytester: pytest.Pytester, test: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(test_it=f"{SUITE}\n\n{test}")
    return pytester.runpytest("--ddpperf-report=json:run.json", *options)


def document(pytester: pytest.Pytester) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((pytester.path / "run.json").read_text())
    return found


def test_a_step_of_any_number_of_ranks_is_predicted_on_a_named_network(inner: pytest.Pytester) -> None:
    test = """
def test_predicted(ddpperf):
    found = ddpperf.predict(workload, strategy="flat", **QUICK)
    assert found.world_size == 16 and found.samples == 128 and found.accelerator == ""
    assert found.low < found.seconds < found.high
    assert abs(found.seconds - found.computing - found.exposed) < 1e-12
    # Nothing but a few lines of Python lies between the call and the wait.
    assert 0 < found.exposed <= found.communication
    assert found.efficiency_low < found.efficiency < found.efficiency_high
"""
    result = run(inner, test)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "*ddpperf predictions*",
            "steps that were predicted, not measured: pcie-ethernet10, computing of this machine",
            "*test_predicted flat*16*",
        ]
    )
    (row,) = document(inner)["predictions"]
    assert (row["name"], row["world_size"], row["network"], row["gain"]) == ("flat", 16, "pcie-ethernet10", None)
    assert row["low"] < row["seconds"] < row["high"]


MODELLED = """
def test_ways(ddpperf):
    found = ddpperf.what_if(
        workload,
        strategy="flat",
        variants={"now": {}, "accumulated": {"accumulation_steps": 8}, "faster": {"network": "nvlink-infiniband400"}},
        accelerator="a100",  # whose clock nothing disturbs
        **QUICK,
    )
    assert found.over == "now" and found.gain("now").value == 0
    assert found.gain("accumulated").verdict == "faster"  # messages are sent once for eight micro-batches
    assert found.gain("faster").value > 0
    assert found["faster"].computing == found["now"].computing  # which is timed once
    assert found["faster"].exposed < found["now"].exposed


def test_models_of_several_sizes_may_be_asked_about(ddpperf):
    # Of gradients of 67 kB most of the time is latency: a hundred times as many take about ten times as long.
    large = Workload(
        model=lambda: nn.Linear(1290, 1290), batch=lambda: (torch.randn(8, 1290), torch.randn(8, 1290)),
        loss=nn.functional.mse_loss, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        samples_per_step=8,
    )
    found = ddpperf.what_if({"small": workload, "large": large}, strategy="flat", accelerator="a100", **QUICK)
    assert found["large"].communication > 5 * found["small"].communication
    assert found.gain("large").value < 0 and found.gain("large").verdict == "slower"


def test_each_precision_is_a_candidate_whatever_the_test_trains_in(ddpperf):
    words = dict(strategies=["flat"], precision="bf16", accelerator="h100", **QUICK)
    advice = ddpperf.advise(workload, precisions=["fp32", "tf32", "bf16"], **words)
    found = {each.name: each for each in advice.candidates}
    assert {name: each.settings for name, each in found.items()} == {
        "flat": {}, "flat precision=fp32": {"precision": "fp32"}, "flat precision=tf32": {"precision": "tf32"}
    }
    names = {each.prediction.name for each in found.values()}
    assert names == {"flat precision=bf16", "flat"}


def test_ddp_takes_the_memory_of_ddp(ddpperf):
    adam = Workload(
        model=workload.model, batch=workload.batch, loss=workload.loss, optimizer=torch.optim.Adam, samples_per_step=8
    )
    words = dict(precisions=["fp32"], accelerator="h100", **QUICK)
    real = "ddp[gradient_as_bucket_view=false]"  # which is simulated as it is
    found = ddpperf.advise(adam, strategies=["ddp", real, "bucketed"], **words)
    memory = {each.strategy: each.memory for each in found.candidates}
    assert memory["ddp"] == pytest.approx(memory[real], rel=0.01)
    assert memory["ddp"] == pytest.approx(memory["bucketed"] + 4 * 4 * (64 * 64 + 64), rel=0.01)


def test_what_times_nothing_here_needs_no_quiet_machine(ddpperf, monkeypatch):
    from pytest_ddpperf.run.session.leases import Leases

    def measures(_):
        raise RuntimeError("it measures")

    monkeypatch.setattr(Leases, "on_cpu", measures)
    ddpperf.predict(workload, strategy="flat", accelerator="h100", **QUICK)
    ddpperf.advise(workload, strategies=["flat"], precisions=["fp32"], accelerator="h100", **QUICK)
    with pytest.raises(RuntimeError, match="it measures"):
        ddpperf.predict(workload, strategy="flat", **QUICK)
"""


def test_an_accelerator_that_is_not_here_is_modelled(inner: pytest.Pytester) -> None:
    run(inner, MODELLED).assert_outcomes(passed=5)
    rows = [row for row in document(inner)["predictions"] if row["test"].endswith("test_ways")]
    assert [row["name"] for row in rows] == ["now", "accumulated", "faster"]
    assert rows[1]["gain"]["low"] < rows[1]["gain"]["value"] < rows[1]["gain"]["high"]


def test_candidates_have_to_fit_into_the_given_memory(inner: pytest.Pytester) -> None:
    test = """
def test_advised(ddpperf):
    found = ddpperf.advise(
        of_size, batch_sizes=[8, 4096], strategies=["flat", "fsdp2"], precisions=["fp32"], memory="2MiB",
        accelerator="a100", **QUICK
    )
    fitting = [(each.strategy, each.batch_size) for each in found.candidates if each.fits]
    assert sorted(fitting) == [("flat", 8), ("fsdp2", 8)], found
    assert found.best.strategy == "fsdp2" and found.best.batch_size == 8
    (flat,) = (each for each in found.candidates if (each.strategy, each.batch_size) == ("flat", 8))
    assert flat.memory > 3 * 4 * 16640  # parameters, gradients and the flat buffer
    large = found.candidates[-1]
    assert large.prediction is None and large.reason.endswith("of 2.00 MiB"), large.reason
"""
    result = run(inner, test)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*ddpperf advice*", "test_advised: variants on 16 ranks*", "*fsdp2*best*"])
    (advice,) = document(inner)["advice"]
    assert [each["fits"] for each in advice["candidates"]] == [True, True, False, False]
    assert advice["memory"] == 2 * 2**20


@pytest.mark.slow
def test_predictions_use_the_network_that_was_measured_on_this_machine(inner: pytest.Pytester) -> None:
    assert main(["network", "--world-size=2", "--device=cpu", "--rounds=1"]) == 0
    test = """
def test_measured(ddpperf):
    found = ddpperf.predict(workload, strategy="bucketed", world_size=2, device="cpu")
    assert "-w2-" in found.network and found.communication > 0
    modelled = ddpperf.predict(workload, world_size=2, device="cpu", accelerator="h100")
    assert modelled.network == found.network and modelled.communication > 0
    with pytest.raises(SettingError, match="was not measured for send of 2 ranks, only for all_reduce"):
        ddpperf.predict(sends, world_size=2, device="cpu")


def test_one_rank_needs_no_network(ddpperf):
    for strategy in ("single", "ddp"):
        found = ddpperf.predict(workload, strategy=strategy, world_size=1, device="cpu")
        assert found.communication == 0 and "-w1-" in found.network


def test_named(ddpperf):
    found = ddpperf.predict(workload, strategy="single", **{**QUICK, "world_size": 1})
    assert found.network == "pcie-ethernet10"
"""
    run(inner, test).assert_outcomes(passed=3)


REFUSED = (
    ("predict(workload, network='fast')", "network='fast'): expected one of nvlink-infiniband400"),
    ("predict(workload, world_size=20, network='pcie-ethernet10')", "world_size=20 is no multiple of ranks_per_node"),
    (
        "what_if(workload, variants={'now': {}, 'b': {'ranks_per_node': 0}}, network='pcie-ethernet10')",
        "ranks_per_node=0",
    ),
    ("advise(workload, measure=True, accelerator='h100', **{**QUICK, 'world_size': 4096})", "leave measure out"),
    (
        "predict(workload, accelerator='h100', **QUICK); ddpperf.predict(workload, accelerator='h100', **QUICK)",
        "predicts 'ddp' twice on pcie-ethernet10; give each another name=",
    ),
    ("predict(3)", "a int cannot be predicted: give a Workload"),
    (
        "what_if(workload, variants={'a': {}, 'b': {'env': {'X': 1}}}, accelerator='h100', network='pcie-ethernet10')",
        "env sets X without effect, because accelerator=h100",
    ),
    ("what_if(workload, variants={'now': {}, 'b': {'tolerance': 1}})", "ddpperf.what_if(variants={'b': ...})"),
    ("predict(workload, accelerator='z80')", "accelerator='z80'): expected one of h200"),
    ("predict(workload, network='pcie-ethernet10', ranks_per_node=0)", "ranks_per_node"),
    ("predict(workload, world_size=2)", "ddpperf network --world-size=2"),
    ("predict(workload, world_size=4096)", "4096 ranks would share cores or GPUs here: give one of nvlink"),
    ("predict(Script(print))", "is a Script"),
    ("what_if(workload, variants={'now': {}})", "expected two or more variants"),
    ("what_if(workload)", "ddpperf.what_if: nothing to compare; give variants={'now': {}, 'bf16'"),
    ("advise(workload, batch_sizes=[1])", "a Workload has only one batch size"),
    ("advise(of_size)", "not a function without batch_sizes"),
    ("advise(Script(print), batch_sizes=[1])", "not a Script"),
    ("advise(workload, strategies='ddp')", "expected a list of one or more"),
    ("advise(of_size, batch_sizes=3)", "batch_sizes=3): expected a list of one or more"),
    ("advise(workload, precisions=['fp7'])", "fp7"),
    ("advise(workload, memory='much')", "memory='much'"),
)


def test_an_impossible_prediction_is_refused_with_the_cure(inner: pytest.Pytester) -> None:
    tests = [f"def test_{number}(ddpperf):\n    ddpperf.{call}\n" for number, (call, _) in enumerate(REFUSED)]
    inner.makepyfile("\n\n".join([f"{SUITE}\nfrom pytest_ddpperf import Script", *tests]))
    record = inner.inline_run("--ddpperf-device=cpu")
    reports = [report for report in record.getreports("pytest_runtest_logreport") if report.when == "call"]
    found = [" ".join(report.longreprtext.split()) for report in reports]
    assert [text for text, (_, said) in zip(found, REFUSED, strict=True) if said not in text] == []
    assert not any("Traceback" in text for text in found)


def test_a_rank_that_is_too_large_for_this_machine_may_have_tensors_without_values(inner: pytest.Pytester) -> None:
    test = """
@pytest.mark.parametrize("strategy", ["flat", "ddp"])
def test_predicted(ddpperf, strategy):
    huge = Workload(
        model=lambda: nn.Linear(2**31, 2**20), batch=lambda: (torch.ones(1), torch.ones(1)),
        loss=nn.functional.mse_loss, optimizer=torch.optim.SGD, samples_per_step=1,
    )
    ddpperf.predict(huge, strategy=strategy, **QUICK)
"""
    result = run(inner, test)
    result.assert_outcomes(failed=2)
    text = " ".join(result.stdout.str().split())
    assert "ran out of memory" in text
    assert "The tensors of the simulated rank have values, which take this machine's memory. With accelerator=" in text
    assert "because the C++ code of ddp reads the values of tensors. To simulate without values" in text


def test_simulated_benchmarks_are_put_on_a_named_network(inner: pytest.Pytester) -> None:
    test = """
def test_simulated(ddpperf):
    ddpperf.check(workload, strategy="fsdp2")
"""
    network = ("-oddpperf_simulate=8,64", "-oddpperf_network=pcie-ethernet10", "-oddpperf_accelerator=a100")
    result = run(inner, test, *network)
    result.assert_outcomes(passed=1)
    rows = document(inner)["predictions"]
    assert [(row["name"], row["world_size"], row["accelerator"]) for row in rows] == [
        ("fsdp2", 8, "a100"),
        ("fsdp2", 64, "a100"),
    ]
    assert rows[1]["efficiency"] < rows[0]["efficiency"]  # the larger group spans nodes
