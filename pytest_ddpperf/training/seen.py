"""Observes Python objects that steps do not free, and DataLoaders, because operators show neither. Needs torch."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import torch

from pytest_ddpperf.errors import TrainingEnded
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.instruments.counting.copies import CopyWatch
from pytest_ddpperf.instruments.counting.counting import SEEN_STEPS, Countable, count_warm_step
from pytest_ddpperf.instruments.counting.loaders import Loaders
from pytest_ddpperf.instruments.counting.objects import ObjectCensus, lines_of_left
from pytest_ddpperf.instruments.counting.sites import SiteCounts, call_sites
from pytest_ddpperf.instruments.counting.steps import Details
from pytest_ddpperf.records.counts import COUNTS, Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.strategies.strategy import OF_DATA, RankView
from pytest_ddpperf.training.jobs import MIN_WARMUP, LaunchJob, settled_steps
from pytest_ddpperf.training.step import Step, other_batch_size
from pytest_ddpperf.training.timing import on_any_rank

_MOST_SECONDS = 10.0  # for the steps between which objects are counted, in a launch that times steps
_SHARES = 4  # of the launch's time, of which further counted steps take two at most
_UNSEEN = ("torchcomms", "horovod")  # libraries whose collectives are not counted


class Seen:
    """Observes, before the counted step, DataLoaders and Python objects that steps do not free."""

    def __init__(self, plan: Plan, *, timed: bool) -> None:
        self.loaders, self.objects, self._timed = Loaders(), ObjectCensus(), timed
        self._steps = settled_steps(plan)
        self._stretch = (self._steps - MIN_WARMUP) // 2

    def look(self, ran: int) -> None:
        """Counts Python objects, if this is due after ``ran`` steps: thrice, with as many steps between each two."""
        if self._steps - ran in {0, self._stretch, 2 * self._stretch}:
            self.objects.take(ran)

    def _run_on(self, run: Callable[[], object]) -> None:
        """Counts Python objects between further steps, because garbage must not be collected between timed steps."""
        with suppress(TrainingEnded, StopIteration):
            self.objects.take(0)
            for ran in range(1, 2 * self._stretch + 2):
                run()
                if ran in {self._stretch, 2 * self._stretch}:
                    self.objects.take(ran)

    def counted(self, ctx: RankView, job: LaunchJob, step: Step, compiled: Details, remarks: list[Finding]) -> Counts:
        """Returns the counts of a step after the warm-up, with ``compiled`` counts; adds findings to ``remarks``."""
        watch, paused = CopyWatch(), not gc.isenabled()
        subject = replace(countable(ctx, step, job), called=watch.called)
        plain = {**compiled, "collector_paused": {"gc.disable()": float(paused)}}
        any_rank = partial(on_any_rank, ctx, step)
        ran = 0

        def run() -> None:
            nonlocal ran
            step.run()
            self.loaders.look()
            ran += 1

        begun = time.monotonic()
        with watch.watching():
            steps, seconds = max(SEEN_STEPS, job.settings.steps or 0), job.settings.timeout / _SHARES
            counts = count_warm_step(run, subject, plain, steps=steps, seconds=seconds, on_any_rank=any_rank)
        if self._timed and not any_rank((time.monotonic() - begun) / max(1, ran) * 2 * self._stretch > _MOST_SECONDS):
            self._run_on(run)
        gc.collect()
        left, unknown = self.objects.left_behind()
        made = self.loaders.of_epochs(self._steps + ran)
        sites = {metric: Counter(("DataLoaders", place) for place in places) for metric, places in made.items()}
        totals = {metric: float(len(places)) for metric, places in made.items()}
        details = {metric: {"DataLoaders": number} for metric, number in totals.items()} | left
        totals |= {metric: sum(by_type.values()) for metric, by_type in left.items()}
        placed: SiteCounts = {**sites, **watch.buckets(counts.details["peak_tensor_bytes"].get("buckets", 0.0))}
        if any_rank(many := any(sum(by_type.values()) > COUNTS[metric].floor for metric, by_type in left.items())):
            for metric, at in lines_of_left(step.run, traces=many, graphs=bool(left.get("graphs_kept"))).items():
                placed = {**placed, metric: {("memory", place): number for place, number in at.items()}}
        found = call_sites([placed], subject.roots, subject.strategy)
        at_peak = (*counts.sites.get("peak_tensor_bytes", ()), *found.get("peak_tensor_bytes", ()))
        found |= {"peak_tensor_bytes": at_peak} if at_peak else {}
        counts = replace(
            counts,
            totals={**counts.totals, **totals},
            details={**counts.details, **details},
            sites={**counts.sites, **found},
            unstable={**unknown, **counts.unstable},
        )
        unseen = [name for name in _UNSEEN if name in sys.modules]
        if unseen and not counts.totals.get("collective_calls"):
            names, reason = ("calls", "bytes", "send_bytes"), f"calls of {unseen[0]} are not counted"
            unknown = {f"collective_{name}": reason for name in names}
            counts = replace(counts, unstable={**counts.unstable, **unknown})
        remarks += [*not_counted(counts, ctx.device), *other_batch_size(counts, step, job.settings, ctx.mode)]
        remarks += [Finding("calls_unseen", {"library": name}) for name in unseen]
        return replace(counts, copy=watch.copy(self.loaders, self._steps + ran, OF_DATA, subject.roots))


def not_counted(counts: Counts, device: torch.device) -> list[Finding]:
    """Returns a finding if the profiler could not count the device's work."""
    missing = tuple(metric for metric, row in COUNTS.items() if row.profiled and metric not in counts.totals)
    return [Finding("no_device_counts", {"counts": missing})] if missing and device.type == "cuda" else []


def countable(ctx: RankView, step: Step, job: LaunchJob) -> Countable:
    """Returns the facts of a step that the counters need."""
    return Countable(
        device=ctx.device,
        modules=step.modules,
        size=step.size,
        period=step.work_period,
        roots=job.roots,
        strategy="" if job.strategy is None else job.strategy.name,
    )
