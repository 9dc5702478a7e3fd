"""Trains a workload on one rank by several strategies, which begin with the same weights and have the same batches."""

from __future__ import annotations

import gc
import math
from collections.abc import Mapping
from contextlib import closing
from itertools import chain
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from pytest_ddpperf.errors import DdpperfError, WorkloadError, extended
from pytest_ddpperf.instruments.counting.loaders import checksum
from pytest_ddpperf.records.verbs import LOSS
from pytest_ddpperf.strategies.strategy import RankView, Strategy
from pytest_ddpperf.training.correctness import tolerances
from pytest_ddpperf.training.correctness.reference import move
from pytest_ddpperf.training.data import batches
from pytest_ddpperf.training.jobs import ConvergeJob, RankTraining
from pytest_ddpperf.training.model import DATA_SEED, MODEL_SEED, build_model, seed
from pytest_ddpperf.training.step import of_all_ranks
from pytest_ddpperf.training.subject import Workload, located, require_same_names
from pytest_ddpperf.training.timing import loss_value
from pytest_ddpperf.training.trainer import Trainer, choose_kernels

_APART = 10**6  # between the seeds of two launches
_STEPS_SEED = 500_000  # weights, data and steps must not use the same random numbers


def converge_launch(ctx: RankView, job: ConvergeJob) -> tuple[RankTraining, ...]:
    """Trains by each strategy; then by the first one again, with initial weights changed by about a rounding error."""
    ways = [(strategy, False) for strategy in job.strategies]
    found = []
    for strategy, moved in (*ways, (job.strategies[0], True)):
        try:
            found.append(_train(ctx, job, strategy, moved=moved))
        except DdpperfError as error:
            raise extended(error, before=f"strategy {strategy}: ") from error.__cause__
        gc.collect()  # a model and its wrapper hold each other
    return tuple(found)


def _train(ctx: RankView, job: ConvergeJob, strategy: Strategy, *, moved: bool) -> RankTraining:
    workload, settings, base = job.subject, job.settings, _APART * job.launch
    module = build_model(workload, MODEL_SEED + base)
    weights = _checksum([*module.parameters(), *module.buffers()])
    if moved:
        for parameter in module.parameters():
            if parameter.is_floating_point() or parameter.is_complex():
                unit = max(tolerances.unit(settings.precision), torch.finfo(parameter.dtype).eps)
                move([parameter], unit, draw=job.launch)
    trainer = Trainer(ctx, workload, strategy, settings, warmup=settings.warmup, module=module)
    seed(DATA_SEED + base + ctx.rank)
    loader = settings.loader if workload.batch is None else None
    with closing(batches(ctx, workload, loader, first_epoch=_APART * job.launch)) as data:
        choose_kernels(settings, ctx.device)
        first = [data() for _ in range(settings.accumulation_steps)]
        _require_different_batches(ctx, workload, first)
        steps, losses, points, sums = [], list[float](), list[dict[str, float]](), list[int]()
        held, lost = strategy is not job.strategies[0], ""
        for step in range(1, job.steps + 1):
            seed(_STEPS_SEED + base + step * ctx.world_size + ctx.rank)  # for all strategies the same dropout
            # All are drawn before the model runs, which may take other random numbers by another strategy.
            micro = first if step == 1 else [data() for _ in range(settings.accumulation_steps)]
            sums.append(_checksum(micro))
            loss = trainer.backward(iter(micro).__next__)
            trainer.update()
            when = f"at step {step} of {job.steps} on rank {ctx.rank}"
            lost = "" if math.isfinite(loss) else f"loss is {float(loss)} {when}"
            if held and any(chain(*of_all_ranks((bool(lost),), ctx))):
                break
            losses.append(loss_value(loss, when) or 0.0)
            if step % job.every == 0 or step == job.steps:
                evaluated = _evaluate(ctx, workload, trainer.parallel.module, job.metric or "metric", may_diverge=held)
                points.append({LOSS: math.fsum(losses) / len(losses), **evaluated})
                steps.append(step)
                losses.clear()
                odd = next((name for name, value in evaluated.items() if not math.isfinite(value)), None)
                lost = "" if odd is None else f"{odd} is {evaluated[odd]} {when}"
                if held and any(chain(*of_all_ranks((bool(lost),), ctx))):
                    break
    parallel = trainer.parallel
    buffers = _checksum([buffer for buffer in parallel.module.buffers() if buffer.is_floating_point()])
    exact = not parallel.lossy and tolerances.tolerance(parallel.precision) <= tolerances.tolerance(settings.precision)
    for point in points:
        require_same_names(workload, point, points[0], "at a later point")
    return RankTraining(
        steps=tuple(steps),
        values={name: tuple(point[name] for point in points) for name in next(iter(points), ())},
        exact=exact,
        batches=tuple(sums),
        buffers=buffers,
        weights=weights,
        lost=lost,
    )


def _require_different_batches(ctx: RankView, workload: Workload, first: Any) -> None:
    """Raises an error if two ranks have the same first batch: averaging their gradients would change nothing."""
    sums = [number for (number,) in of_all_ranks((_checksum(first),), ctx)]
    if len(set(sums)) == len(sums):
        return
    same = [rank for rank, found in enumerate(sums) if sums.count(found) > 1]
    given = workload.batch if workload.loader is None else workload.loader
    assert given is not None  # noqa: S101  a Workload has one of the two
    raise WorkloadError(
        f"{located(given)} gave ranks {same[0]} and {same[1]} the same first batch, so even a strategy that averages "
        "no gradients would train as well: give each rank its own share of the data, for example by a "
        "loader(rank, world_size) with a DistributedSampler(data, world_size, rank)"
    )


def _checksum(batches: Any) -> int:
    return checksum(leaf for leaf in tree_leaves(batches) if isinstance(leaf, torch.Tensor))


def _evaluate(
    ctx: RankView, workload: Workload, module: torch.nn.Module, default_name: str, *, may_diverge: bool
) -> dict[str, float]:
    if workload.evaluate is None:
        return {}
    modes = [(each, each.training) for each in module.modules()]
    module.eval()
    with torch.no_grad():
        given: Any = workload.evaluate(module, ctx.device)
    for each, training in modes:
        each.training = training
    named = given if isinstance(given, Mapping) else {default_name: given}
    found = {}
    for name, value in named.items():
        number = value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
        if not isinstance(number, (int, float)) or not (may_diverge or math.isfinite(number)) or name == LOSS:
            what = "a metric named loss, the name of the training loss" if name == LOSS else f"{name}={number!r:.60}"
            raise WorkloadError(
                f"{located(workload.evaluate)} returned {what}: evaluate(model, device) must return a finite number, "
                "or a dict of numbers, such as {'accuracy': 0.9}"
            )
        found[str(name)] = float(number)
    return found
