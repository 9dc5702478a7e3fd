"""The words of each finding, and that no finding is without words."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from string import Formatter
from typing import Any, NamedTuple

import pytest

import pytest_ddpperf
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import LongSteps, SlowImport
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.sites import CallSite
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.findings import WORDS, broken_reason, finding_text, sentence
from tests.factories import make_series

MIB, GIB = 2**20, 2**30
STEPS = tuple(
    Counts(
        totals={"optimizer_steps": number}, details={"optimizer_steps": {"Adam": number}}, unstable={}, varying=varying
    )
    for number, varying in ((1 / 3, {"optimizer_steps": dict.fromkeys(("", "Adam"), ((1.0, 0.0, 0.0),))}), (1.0, {}))
)
SWEPT = {"most": 16 * MIB, "ranks": 4, "profiled": False}
UNSWEPT = {"most": None, "ranks": 4, "profiled": False}
SEEN = {"seen": 2, "launches": 3}
LONG = LongSteps(number=18, steps=180, factor=67.0, share=0.84, period=10)
NEVER = {"stored": False, "seen": (12, 500.0, 700.0)}
SITE = CallSite(part="no_sync", file="train.py", line=41, function="step", source="", backward=False, value=1.0)
GROWTH = {"device": "cpu", "least": MIB, "most": 2 * MIB, "ranks": (1,), "world_size": 4, "steps": 10, "launches": 3}


def counts(**operators: float) -> Counts:
    """Counts of operators alone."""
    return Counts(totals={"operators": sum(operators.values())}, details={"operators": operators}, unstable={})


class Case(NamedTuple):
    """A finding, and what is said of it."""

    code: str
    facts: dict[str, Any]
    words: str


MEANT = Comparison(
    series=make_series("step_time", 0.046), tolerance=0.03, verdict=Verdict.REGRESSED, gated=False, baseline=0.04
)
CASES = [
    Case(
        "acceptance",
        {"worse": MEANT, "reason": "see #7", "needed": True, "covered": True},
        "accepted: step_time 40.0 ms -> 46.0 ms (see #7)",
    ),
    Case(
        "acceptance",
        {"worse": MEANT, "reason": "see #7", "needed": True, "covered": False},
        "worse than what is accepted: step_time 40.0 ms -> 46.0 ms (see #7)",
    ),
    Case(
        "acceptance",
        {"worse": MEANT, "reason": "see #7", "needed": False, "covered": True},
        "not needed here, remove it if no other benchmark needs it: step_time 40.0 ms -> 46.0 ms (see #7)",
    ),
    Case(
        "measured_beside",
        {"pid": 7, "folder": "/home/me"},
        "another run of pytest measured on this machine (process 7 in /home/me): the times of both runs are longer",
    ),
    Case(
        "without_gpu",
        {
            "sites": (
                replace(SITE, part="to(0)", line=9),
                replace(SITE, part="cuda", line=7),
                replace(SITE, part="to(0)"),
            )
        },
        "ranks have no GPU, so the script's calls for one were ignored or done on the CPU: cuda at train.py:7, to(0) "
        "at train.py:9 and train.py:41",
    ),
    Case(
        "no_device_counts",
        {"counts": ("kernel_launches", "device_copies")},
        "not counted: kernel_launches and device_copies: torch's profiler saw no work of the GPU. If steps run "
        "kernels, CUPTI is not available (a virtual GPU, another profiler, a restricted container): end other "
        "profilers, or allow profiling on this machine",
    ),
    Case(
        "on_network",
        {"predicted": 0.011, "error": 0.06, "measured": None, "how": "", "exposed": 0.002},
        "on the stored network, the collectives of a step would take 11.0 ms (median error 6 %); computing "
        "hides all but 2.00 ms of them",
    ),
    Case(
        "only_on_network",
        {"predicted": 0.011, "error": 0.06, "profiled": False},
        "on the stored network, the collectives of a step would take 11.0 ms (median error 6 %); their time "
        "was not measured: --ddpperf-profile measures it",
    ),
    Case(
        "only_on_network",
        {"predicted": 0.011, "error": 0.06, "profiled": True},
        "on the stored network, the collectives of a step would take 11.0 ms (median error 6 %); their time "
        "was not measured: ranks ran different collectives, or not all ranks joined each one",
    ),
    Case(
        "not_on_network",
        {"reason": "too_large", "collective": "all_reduce", "nbytes": 25.0 * MIB, **SWEPT},
        "the stored network cannot predict the time of a step's collectives: the mean all_reduce has "
        "25.0 MiB, but only sizes up to 16.0 MiB were measured; ddpperf network --world-size=4 "
        "--max-size=32MiB measures it",
    ),
    Case(
        "not_on_network",
        {"reason": "not_swept", "collective": "all_gather", "nbytes": 64.0, **UNSWEPT},
        "the stored network cannot predict the time of a step's collectives: all_gather was not measured; "
        "ddpperf network --world-size=4 measures it",
    ),
    Case(
        "not_on_network",
        {"reason": "never_swept", "collective": "send", "nbytes": 64.0, **UNSWEPT},
        "the stored network cannot predict the time of a step's collectives: ddpperf network measures no "
        "send; --ddpperf-profile shows how long they are under way",
    ),
    Case(
        "not_on_network",
        {"reason": "smaller_groups", "collective": "", "nbytes": 0.0, **UNSWEPT},
        "the stored network cannot predict the time of a step's collectives: it was measured between all "
        "4 ranks, but some collectives have fewer; --ddpperf-profile shows how long they are under way",
    ),
    Case(
        "not_on_network",
        {"reason": "smaller_groups", "collective": "", "nbytes": 0.0, **UNSWEPT, "profiled": True},
        "the stored network cannot predict the time of a step's collectives: it was measured between all "
        "4 ranks, but some collectives have fewer",
    ),
    Case(
        "empty_profile",
        {},
        "communication was not profiled: torch's profiler saw no work of the GPU. If steps run kernels, CUPTI is "
        "not available (a virtual GPU, another profiler, a restricted container): end other profilers, or allow "
        "profiling on this machine",
    ),
    Case(
        "launches_needed",
        {"launches": 30, "max_time": 60, "known": 5},
        "about 30 launches (--ddpperf-max-time=60) would decide it, as far as 5 can tell",
    ),
    Case("launches_needed", {"launches": 30, "max_time": None, "known": None}, "about 30 launches would decide it"),
    Case(
        "no_launches_decide",
        {"any_number": False, "paired": True},
        "no practicable number of launches would decide it; a wider tolerance or a quieter machine might",
    ),
    Case(
        "no_launches_decide",
        {"any_number": True, "paired": False},
        "more launches would not decide it; a wider tolerance, a quieter machine or --ddpperf-against might",
    ),
    Case("busy", {"now": 0.41, "then": None}, "stored times decide nothing: others took 41 % of the cores"),
    Case(
        "busy",
        {"now": None, "then": 0.3},
        "stored times decide nothing: others took 30 % of the cores when the baseline was saved",
    ),
    Case(
        "busy",
        {"now": 0.41, "then": 0.3},
        "stored times decide nothing: others took 41 % of the cores and 30 % when the baseline was saved",
    ),
    Case(
        "busy",
        {"now": 0.0, "then": 0.3},
        "stored times decide nothing: the machine may have been busy and others took 30 % of the cores when the "
        "baseline was saved",
    ),
    Case(
        "slower_than_stored",
        {"change": 0.12, "differ": ("torch 2.13.0 -> 2.13.1", "NCCL 2.27.5 -> 2.28.9")},
        "this run and the commit of the baseline both take +12.0 % compared with the stored times: packages, data or "
        "the machine have changed: torch 2.13.0 -> 2.13.1, NCCL 2.27.5 -> 2.28.9",
    ),
    Case(
        "slower_than_stored",
        {"change": 0.12, "differ": ()},
        "this run and the commit of the baseline both take +12.0 % compared with the stored times: packages, data or "
        "the machine have changed",
    ),
    Case(
        "long_steps",
        {"now": LONG, "before": replace(LONG, number=0, factor=0.0, share=0.0, period=None)},
        "18 of 180 steps are on average 67 times as long as the median step and take 84 % of the time (reference: "
        "0 %); every 10th step",
    ),
    Case(
        "long_steps",
        {"now": replace(LONG, number=1, period=None), "before": replace(LONG, share=0.101)},
        "1 of 180 steps is on average 67 times as long as the median step and takes 84 % of the time (reference: "
        "10.1 %)",
    ),
    *(
        Case(
            "long_steps",
            {"now": replace(LONG, phase=phase), "before": None},
            "18 of 180 steps are on average 67 times as long as the median step and take 84 % of the time; every 10th "
            f"step; {words}",
        )
        for phase, words in (
            ("data_wait", "they wait for data"),
            ("optimizer", "the time is in optimizer"),
            ("other", "the time is outside of forward, backward and optimizer"),
        )
    ),
    Case(
        "timed_otherwise",
        {"then_in_turns": False},
        "the baseline's steps were timed alone, this run's in turns with other launches: save "
        "the baseline again or see --ddpperf-interleave",
    ),
    Case(
        "timed_otherwise",
        {"then_in_turns": True},
        "the baseline's steps were timed in turns with other launches, this run's alone: save "
        "the baseline again or see --ddpperf-interleave",
    ),
    Case(
        "partners_do_not_fit",
        {"names": ("a", "b")},
        "the baseline's steps were timed in turns with other launches, this run's alone, because a "
        "and b do not fit into memory: time each alone with --ddpperf-interleave=false, or save the baseline again",
    ),
    Case(
        "mesh_without_data",
        {"mesh": "mesh=tp=2", "names": ("dp", "data", "shard")},
        "mesh=tp=2: the plugin assumes that all ranks work on the same samples, because no dimension has a name that "
        "begins with dp, data or shard",
    ),
    Case("does_not_fit", {"reason": "no", "fitted": True}, "it does not fit into memory: no; the reference fitted"),
    Case("does_not_fit", {"reason": "no", "fitted": False}, "it does not fit into memory: no"),
    Case(
        "lost_metric",
        {"metric": "throughput", "paired": False},
        "the baseline has throughput, but this run does not: it can no longer fail the test; "
        "--ddpperf-save accepts that",
    ),
    Case(
        "lost_metric",
        {"metric": "throughput", "paired": True},
        "the other revision has throughput, but this run does not: it can no longer fail the test",
    ),
    Case(
        "alike_baselines",
        {"names": ("ddp", "ddp w2")},
        "there are baselines for `ddp`, `ddp w2`: options are part of a benchmark's identity",
    ),
    Case(
        "count_changed",
        {"metric": "optimizer_steps", "then": STEPS[0], "now": STEPS[1]},
        "Adam 0 -> 1 per step (+1), before 1 in 1 of 3 steps",
    ),
    Case(
        "unsure_counts",
        {"steps": {"optimizer_steps": 48}, "then": STEPS[1], "now": STEPS[0]},
        "may have changed: optimizer_steps 1 -> 0 per step (-1), 1 in 1 of 3 steps; at least 48 steps would decide",
    ),
    Case(
        "unsteady_count",
        {"reason": "aten.mm from 1 to 9", "doubled": True},
        "its mean has doubled, and steps differ without a rule (aten.mm from 1 to 9), so only times can decide",
    ),
    Case(
        "unsteady_count",
        {"reason": "1, 2", "doubled": False},
        "not the same in every step, so not compared exactly: 1, 2",
    ),
    Case(
        "fewer_counted",
        {"metric": "operators", "then": counts(add=5.0, mul=4.0), "now": counts(add=5.0), "paired": False},
        "operators is 5 per step, 9 in the baseline: mul 4 -> 0 per step (-4)",
    ),
    Case(
        "fewer_counted",
        {"metric": "operators", "then": counts(mul=4.0), "now": counts(add=4.0), "paired": False},
        "operators: add 0 -> 4 per step (+4); mul 4 -> 0 per step (-4)",
    ),
    Case(
        "ungated_counts",
        {
            "counts": (("operators", "5 or 6", True, (5.0, 6.0)), ("flops", "1 or 2", False, ())),
            "paired": False,
            "renew": True,
        },
        "not gated, because not all steps do the same: operators (5 or 6; at most 6, 5 in the baseline), flops (in the "
        "baseline 1 or 2); --ddpperf-save renews the baseline",
    ),
    Case(
        "cannot_run",
        {"revision": "revision v1", "reason": "it raised", "submodules": False},
        "revision v1 cannot run it: it raised",
    ),
    Case(
        "cannot_run",
        {"revision": "revision v1", "reason": "it raised", "submodules": True},  # which no submodule has to do with
        "revision v1 cannot run it: it raised",
    ),
    Case(
        "cannot_run",
        {"revision": "revision v1", "reason": "ModuleNotFoundError: No module named kit", "submodules": True},
        "revision v1 cannot run it: ModuleNotFoundError: No module named kit; its submodules are not checked out, "
        "which --ddpperf-against-setup='git submodule update --init' does",
    ),
    Case(
        "other_environment",
        {
            "python": "new/bin/python",
            "differ": ("torch 2.11 -> 2.13",),
            "packages": {"torch": ("2.11.0", "2.13.0"), "old-lib": ("1", None)},
        },
        "new/bin/python -> this environment: torch 2.11 -> 2.13; packages: torch 2.11.0 -> 2.13.0, old-lib 1 -> none",
    ),
    Case(
        "other_environment",
        {
            "python": "new/bin/python",
            "differ": (),
            "packages": {"q": ("1", None), **{f"p{i}": ("1", "2") for i in range(9)}, "r": (None, "1")},
        },
        "new/bin/python -> this environment: no fact of the environment differs; packages: "
        + "".join(f"p{i} 1 -> 2, " for i in range(8))
        + "3 more",
    ),
    Case(
        "told_counts",
        {
            "differs": ("torch 2.11 -> 2.13",),
            "changed": (("operators", 120.0, 118.0), ("flops", 1e6, 2e6)),
            "number": 9,
        },
        "counts cannot fail a test, because another torch may work differently (torch 2.11 -> 2.13): operators 120 -> "
        "118, flops 1 MFLOP -> 2 MFLOP",
    ),
    Case(
        "told_counts",
        {"differs": ("torch 2.11 -> 2.13",), "changed": (), "number": 9},
        "counts cannot fail a test, because another torch may work differently (torch 2.11 -> 2.13): all 9 are the "
        "same",
    ),
    Case(
        "settings_of_a_workload",
        {"settings": (("precision", "bf16"), ("loader", "workers=2"))},
        "precision=bf16, loader=workers=2 is for a Workload: this step has to do that itself",
    ),
    Case(
        "other_batch_size",
        {"size": 32, "samples": 16.0, "passes": 1},
        (
            "samples_per_step=16, but the tensors of a batch begin with a dimension of 32: rates would be wrong; "
            "give samples_per_step=32 if that is their number"
        ),
    ),
    Case(
        "never_met",
        {"series": make_series("throughput", 600.0, unit="samples/s"), "value": 900.0, **NEVER},
        (
            "the target of throughput, 900 samples/s, was never met: 12 runs in the history have 500 samples/s to "
            "700 samples/s"
        ),
    ),
    Case(
        "other_batch_size",
        {"size": 4, "samples": 4.0, "passes": 2},
        (
            "samples_per_step=4, but a step has 2 backward passes and the tensors of a batch begin with a dimension of "
            "4: rates would be wrong; give samples_per_step=8 if that is their number"
        ),
    ),
    Case(
        "left_by_steps",
        {"processes": 2, "threads": 9},
        (
            "steps leave threads behind, 9 after the few steps of one launch: start them once in build(ctx) and end "
            "them in close(), or join them in the step"
        ),
    ),
    Case(
        "other_work",
        {"metric": "backward_passes", "before": 1.0, "now": 4.0, "paired": False},
        "a step has 4 backward passes, 1 in the baseline: it trains other batches, so nothing else is compared",
    ),
    Case(
        "other_work",
        {"metric": "batch_rows", "before": 8.0, "now": 16.0, "paired": True},
        "a step has batches of 16 rows, 8 in the other revision: it trains other batches, so nothing else is compared",
    ),
    Case(
        "same_data",
        {"ranks": (0, 1), "drawn": True, "paired": None, "alone": False, "sites": ()},
        (
            "ranks 0 and 1 draw the same samples from the dataset: let their sampler (DistributedSampler) or their "
            "dataset know the rank"
        ),
    ),
    Case(
        "same_data",
        {"ranks": (0, 1, 3), "drawn": False, "paired": False, "alone": False, "sites": ()},
        (
            "ranks 0, 1 and 3 train on the same batches, but the ranks of the baseline do not: let their "
            "sampler (DistributedSampler) or their dataset know the rank"
        ),
    ),
    Case(
        "same_data",
        {"ranks": (0, 1), "drawn": True, "paired": None, "alone": True, "sites": ()},
        (
            "ranks 0 and 1 draw the same samples from the dataset and send each other nothing: let them join a process "
            "group and wrap the model (DistributedDataParallel, FSDP), or give world_size=1"
        ),
    ),
    Case(
        "parameters_apart",
        {"ranks": (0, 1), "parameter": "net.0.weight", "sites": (SITE,)},
        (
            "parameters of ranks 0 and 1 differ after a few steps, first net.0.weight: the last micro-batch of a step "
            "defers its gradients, by no_sync at train.py:41 in step"
        ),
    ),
    Case(
        "same_data",
        {
            "ranks": (0, 1),
            "drawn": True,
            "paired": None,
            "alone": False,
            "sites": (replace(SITE, part="DistributedSampler"),),
        },
        (
            "ranks 0 and 1 draw the same samples from the dataset: let the DistributedSampler at train.py:41 in step "
            "or their dataset know the rank"
        ),
    ),
    Case(
        "parameters_apart",
        {"ranks": (0, 1), "parameter": "net.0.weight", "sites": ()},
        (
            "parameters of ranks 0 and 1 differ after a few steps, first net.0.weight: not all gradients are averaged "
            "before each optimizer step; does a step's last micro-batch synchronise?"
        ),
    ),
    Case(
        "lenient_verification",
        {"precision": "bf16", "exact_steps": 0},
        "against a single process: tolerance of bf16: gradients are sent or computed in bf16",
    ),
    Case(
        "lenient_verification",
        {"precision": None, "exact_steps": 0},
        "against a single process: only convergence is checked",
    ),
    Case(
        "lenient_verification",
        {"precision": None, "exact_steps": 2},
        "against a single process: only convergence is checked, except for the first steps",
    ),
    Case(
        "oversubscribed",
        {"ranks": 6, "threads": 1, "shared": 4, "resource": "core"},
        "oversubscribed: 6 ranks share 4 cores; step times say little about real hardware",
    ),
    Case(
        "oversubscribed",
        {"ranks": 2, "threads": 1, "shared": 1, "resource": "GPU"},
        "oversubscribed: 2 ranks share 1 GPU; step times say little about real hardware",
    ),
    Case(
        "oversubscribed",
        {"ranks": 2, "threads": 4, "shared": 4, "resource": "core"},
        "oversubscribed: 2 ranks with 4 threads each are on 4 cores; step times say little about real hardware",
    ),
    Case(
        "no_time_to_diagnose", {"setting": "budget"}, "not diagnosed, because no time was left: raise --ddpperf-budget"
    ),
    Case("no_time_to_diagnose", {"setting": "max_time"}, "not diagnosed, because no time was left: raise max_time"),
    Case(
        "slow_starts",
        {"starting": 12.0, "working": 3.5, "launches": 3, "slowest": None, "setting": "max_time"},
        "3 launches spent 12.0 s on starting and 3.50 s on steps: raise max_time",
    ),
    Case(
        "slow_starts",
        {
            "starting": 12.0,
            "working": 3.5,
            "launches": 3,
            "slowest": SlowImport(module="lightning", seconds=3.1, reason=None),
            "setting": "steps",
        },
        "3 launches spent 12.0 s on starting and 3.50 s on steps, each 3.10 s on the import of lightning: "
        "set preload=auto or raise steps",
    ),
    Case(
        "slow_starts",
        {
            "starting": 12.0,
            "working": 3.5,
            "launches": 3,
            "slowest": SlowImport(module="vendor", seconds=3.1, reason="starts a thread"),
            "setting": "max_time",
        },
        "3 launches spent 12.0 s on starting and 3.50 s on steps, each 3.10 s on the import of vendor, which is not "
        "preloaded because it starts a thread: raise max_time",
    ),
    Case(
        "outlying_launches",
        {"outlying": ((4, 0.198),), "launches": 5},
        "launch 4 (+19.8 %) of 5 is far from the median step time",
    ),
    Case(
        "outlying_launches",
        {"outlying": ((1, -0.1), (4, 0.2)), "launches": 9},
        "launches 1 (-10.0 %), 4 (+20.0 %) of 9 are far from the median step time",
    ),
    Case(
        "memory_growth",
        GROWTH,
        "memory grows by 1.00 MiB to 2.00 MiB a step on rank 1, seen in 10 steps of each of 3 launches: "
        "something is kept from step to step",
    ),
    Case(
        "memory_growth",
        {**GROWTH, "device": "cuda", "least": 2 * MIB, "ranks": (0, 1, 2, 3)},
        "CUDA memory grows by 2.00 MiB a step on every rank, seen in 10 steps of each of 3 launches: "
        "something is kept from step to step",
    ),
    Case(
        "memory_growth",
        {**GROWTH, "ranks": (0, 1, 3), "launches": 1},
        "memory grows by 1.00 MiB to 2.00 MiB a step on ranks 0, 1 and 3, seen in 10 steps of each of 1 launch: "
        "something is kept from step to step",
    ),
    Case(
        "cores_used_by_others",
        {"least": 0.12, "most": 0.38, **SEEN},
        "other processes used 12 % to 38 % of the cores in 2 of 3 launches",
    ),
    Case(
        "cores_stolen",
        {"least": 0.04, "most": 0.04, **SEEN},
        "the hypervisor gave 4 % of the cores away in 2 of 3 launches",
    ),
    Case(
        "cpu_quota",
        {"least": 0.25, "most": 0.5, **SEEN},
        "a CPU quota held processes back for 25 % to 50 % of the time in 2 of 3 launches",
    ),
    Case(
        "hot_cores",
        {"least": 1, "most": 4, **SEEN},
        "cores were too hot and slowed down 1 time to 4 times in 2 of 3 launches",
    ),
    Case(
        "cores_stolen",
        {"least": 0.04, "most": 0.04, **SEEN, "node": "node 1 (b)"},
        "the hypervisor gave 4 % of the cores away in 2 of 3 launches on node 1 (b)",
    ),
    Case("swapping", {"least": 3 * MIB, "most": 3 * MIB, **SEEN}, "the machine swapped 3.00 MiB in 2 of 3 launches"),
    Case(
        "gpu_used_by_others",
        {"pid": 7, "nbytes": 3 * GIB, **SEEN},
        "process 7 used 3.00 GiB of a GPU of the ranks in 2 of 3 launches: outside_allocator is left out",
    ),
    Case(
        "gpu_used_by_others",
        {"pid": 8, "nbytes": None, **SEEN},
        "process 8 used a GPU of the ranks in 2 of 3 launches: outside_allocator is left out",
    ),
    Case(
        "unread_gpus",
        {"reasons": ("0000:1b:00.0: Insufficient Permissions", "0000:5d:00.0: GPU is lost"), **SEEN},
        "clocks and other processes of GPUs are not known in 2 of 3 launches: 0000:1b:00.0: Insufficient Permissions; "
        "0000:5d:00.0: GPU is lost",
    ),
    Case(
        "busy_baseline",
        {"lost": None},
        "the machine was busy while the baseline was saved: its times alone decide nothing; its commit is the "
        "reference",
    ),
    Case(
        "busy_baseline",
        {"lost": 0.5},
        "the machine was busy while the baseline was saved (others took 50 % of the cores): its times alone decide "
        "nothing; its commit is the reference",
    ),
]


@pytest.mark.parametrize(("code", "facts", "words"), CASES, ids=[case.code for case in CASES])
def test_the_words_of_a_finding(code: str, facts: dict[str, Any], words: str) -> None:
    assert finding_text(Finding(code, facts)) == words


def test_every_code_whose_words_depend_on_its_facts_has_a_case() -> None:
    assert {case.code for case in CASES} == {code for code, words in WORDS.items() if not isinstance(words, str)}


def facts_of(template: str) -> dict[str, object]:
    """A fact for each field of a template: a list for a list, a word if it is put in as it is, and else a number."""
    specs = {name: spec for _, name, spec, _ in Formatter().parse(template) if name}
    several = {"and": ("x", "y"), "list": ("x", "y"), "": "x"}
    return {name: several.get(spec or "", 2) for name, spec in specs.items()}


@pytest.mark.parametrize("code", [code for code, words in WORDS.items() if isinstance(words, str)])
def test_a_template_takes_its_facts(code: str) -> None:
    words = finding_text(Finding(code, facts_of(str(WORDS[code]))))
    assert not set("{}") & set(words)
    assert all(text in words for text, _, _, _ in Formatter().parse(str(WORDS[code])))


@pytest.mark.parametrize(
    ("template", "facts", "words"),
    [
        (
            "{size:B} and {share:%}, {change:+%}",
            {"size": 3 * MIB, "share": 0.4, "change": 0.2},
            "3.00 MiB and 40 %, +20.0 %",
        ),
        ("{names:and}; {names:list}", {"names": ("a", "b", "c")}, "a, b and c; a, b, c"),
        (
            "{clock:MHz}, {rate:G}FLOP/s, {time:s}",
            {"clock": 1.7e9, "rate": 2e9, "time": 0.5},
            "1700 MHz, 2 GFLOP/s, 500 ms",
        ),
        (
            "{paired:reference}: {paired:turns}",
            {"paired": True},
            "the other revision: only the two sides of one benchmark take turns",
        ),
        ("{one:launch}, {two:timed step}, {size:g}", {"one": 1, "two": 2, "size": 96.0}, "1 launch, 2 timed steps, 96"),
    ],
)
def test_facts_of_a_template_are_quantities(template: str, facts: dict[str, object], words: str) -> None:
    assert sentence(template, facts) == words


def test_a_finding_of_a_plugin_is_told_by_its_code_and_facts() -> None:
    assert finding_text(Finding("cold_cache", {"misses": 3, "level": "L2"})) == "cold_cache: misses=3, level=L2"
    assert finding_text(Finding("cold_cache")) == "cold_cache"


def test_the_reason_of_a_broken_result_is_found_by_its_code(make_result: Callable[..., Result]) -> None:
    findings = (Finding("few_launches", {"made": 1}), Finding("broken", {"reason": "rank 1 was killed"}))
    assert broken_reason(make_result(findings=findings)) == "rank 1 was killed"
    assert broken_reason(make_result(findings=findings[:1])) == "it could not be measured"


def produced() -> Iterator[tuple[str, ast.Call]]:
    """Each ``Finding(...)`` in the package, with where it is."""
    for file in sorted(Path(pytest_ddpperf.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
                yield f"{file.name}:{node.lineno}", node


def literal(call: ast.Call) -> str:
    """The code of a finding: the syntax tree has to tell it."""
    code = call.args[0]
    assert isinstance(code, ast.Constant), ast.unparse(call)
    assert isinstance(code.value, str)
    return code.value


def test_every_finding_of_the_package_has_words_and_every_row_of_the_table_a_finding() -> None:
    assert {literal(call) for _, call in produced()} == set(WORDS)


def test_findings_have_the_facts_that_their_words_take() -> None:
    """They are written out where the finding is made, but for the spans of a machine that others use."""
    for place, call in produced():
        facts = call.args[1] if len(call.args) > 1 else ast.Dict(keys=[], values=[])
        if isinstance(facts, ast.Dict):
            names = {name.value for name in facts.keys if isinstance(name, ast.Constant)}
        else:
            assert (ast.unparse(facts), place[:11]) == ("span", "findings.py"), f"{place}: write the facts out"
            names = {"least", "most", "seen", "launches", "node"}
        words = WORDS[literal(call)]
        if isinstance(words, str):
            taken = {name for _, name, _, _ in Formatter().parse(words) if name}
        else:
            taken = set(inspect.signature(words).parameters)
        assert names == taken, place
