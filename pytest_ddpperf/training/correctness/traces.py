"""Compares the traced first steps of the ranks with the steps of a single process, the reference. Pure functions.

Sketches (sums with random signs) represent tensors. The distance of two sketches estimates the distance of the tensors,
to about a fifth, and a sketch is small enough to be sent anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_ddpperf.training.correctness import tolerances
from pytest_ddpperf.training.jobs import TRACED_STEPS
from pytest_ddpperf.training.verification import Discrepancy, StepsTrace, TracedStep, TracedTensor, Verification

_ROUNDING = 1e-4  # of the norm of all gradients: a parameter whose gradient is smaller may be nothing but rounding
_MOVED = 0.1  # of how far a step moves a parameter: Adam makes whole steps of elements that are mostly rounding
_ALIKE = 1e-3  # the same, between ranks


def compared(ranks: Sequence[StepsTrace], reference: StepsTrace) -> Verification:
    """Compares losses, gradients and parameters of each step on the ranks with a single process, ``reference``."""
    discrepancy = next(_differences(ranks, reference), None)
    if discrepancy is not None or len(reference.steps) >= TRACED_STEPS:
        return Verification(discrepancy=discrepancy)
    calls, made = len(ranks[0].losses), len(reference.steps) or "no"  # equal losses alone do not prove equal training
    return Verification(
        unverified=f"{calls} calls of the step made {made} optimizer step{'s' * (len(reference.steps) > 1)} of "
        f"torch.optim, and {TRACED_STEPS} are compared"
    )


def _differences(ranks: Sequence[StepsTrace], reference: StepsTrace) -> Iterator[Discrepancy]:
    """Yields the differences between the ranks and the single process; one that may cause another comes before it."""
    tolerance = tolerances.tolerance(reference.precision, *(rank.precision for rank in ranks))
    made = [len(trace.steps) for trace in (*ranks, reference)]
    if len(set(made)) > 1:
        fault = f"is {', '.join(map(str, made[:-1]))} on the ranks and {made[-1]} in the reference"
        yield from _beyond("optimizer steps", "their number", math.inf, 0.0, fault=fault)
        return
    for number, expected in enumerate(reference.steps):
        steps = [rank.steps[number] for rank in ranks]
        models = list(_different_models(steps, expected))
        yield from models
        if models:
            return
        if not number:
            yield from _different_starts(steps, expected)
        yield from _different_losses(ranks, reference, number, tolerance)
        yield from _different_gradients(steps, expected, number, tolerance)
        yield from _different_parameters(steps, expected, number)
    if not reference.steps:
        for number in range(len(reference.losses)):
            yield from _different_losses(ranks, reference, number, tolerance)


def _different_models(ranks: Sequence[TracedStep], reference: TracedStep) -> Iterator[Discrepancy]:
    for rank, step in enumerate(ranks):
        if len(step.before) != len(reference.before):
            fault = f"is {len(step.before)} instead of {len(reference.before)}"
            yield from _beyond(
                "reference start", "the number of optimized parameters", math.inf, 0.0, rank=rank, fault=fault
            )
        for ours, theirs in zip(step.before, reference.before, strict=False):
            if ours.shape != theirs.shape:
                fault = f"has shape {ours.shape} instead of {theirs.shape}"
                yield from _beyond("reference start", ours.name, math.inf, 0.0, rank=rank, fault=fault)


def _different_starts(ranks: Sequence[TracedStep], reference: TracedStep) -> Iterator[Discrepancy]:
    for quantity, others in (("start parameters", ranks[0]), ("reference start", reference)):
        for rank, step in enumerate(ranks):
            for ours, theirs in zip(step.before, others.before, strict=True):
                error = _relative(_apart(ours, theirs), max(_norm(ours), _norm(theirs)))
                yield from _beyond(quantity, ours.name, error, _ALIKE, rank=rank)


def _different_losses(
    ranks: Sequence[StepsTrace], reference: StepsTrace, number: int, tolerance: float
) -> Iterator[Discrepancy]:
    *ours, theirs = (_losses(trace, number) for trace in (*ranks, reference))
    if any(len(losses) != len(theirs) for losses in ours):
        return  # the reference accumulates over another number of calls
    for expected, *found in zip(theirs, *ours, strict=True):
        told = [loss for loss in found if loss is not None]
        if expected is None or len(told) < len(found):
            continue
        mean = math.fsum(told) / len(told)
        error = _relative(abs(mean - expected), max(abs(expected), abs(mean)))
        fault = f"is {mean:.6g} instead of {expected:.6g}, relative error {error:.3g}, tolerance {tolerance:g}"
        yield from _beyond("losses", "the mean loss", error, tolerance, step=number + 1, fault=fault)


def _losses(trace: StepsTrace, number: int) -> Sequence[float | None]:
    """Returns the losses of optimizer step ``number``, or of call ``number`` of a step that has no optimizer."""
    if not trace.steps:
        return trace.losses[number : number + 1]
    first = trace.steps[number - 1].call + 1 if number else 0
    return trace.losses[first : trace.steps[number].call + 1]


def _different_gradients(
    ranks: Sequence[TracedStep], reference: TracedStep, number: int, tolerance: float
) -> Iterator[Discrepancy]:
    least = _ROUNDING * _whole(reference)
    for rank, step in enumerate(ranks):
        for ours, theirs in zip(step.gradients, reference.gradients, strict=True):
            error = _relative(_apart(ours, theirs), max(_norm(theirs), least))
            yield from _beyond("gradients", ours.name, error, tolerance, rank=rank, step=number + 1)


def _different_parameters(ranks: Sequence[TracedStep], reference: TracedStep, number: int) -> Iterator[Discrepancy]:
    least = _ROUNDING * _whole(reference)
    expected = zip(reference.after, reference.before, reference.gradients, ranks[0].after, strict=True)
    for i, (after, before, gradient, first) in enumerate(expected):
        moved = _apart(after, before)
        for rank, step in enumerate(ranks):
            ours = step.after[i]
            error = _relative(_apart(ours, first), max(moved, _ALIKE * _norm(first)))
            yield from _beyond("own parameters", ours.name, error, _ALIKE, rank=rank, step=number + 1)
            error = _relative(_apart(ours, after), max(moved, _ROUNDING * _norm(after)))
            if _norm(gradient) > least:
                yield from _beyond("parameters", ours.name, error, _MOVED, rank=rank, step=number + 1)


def _beyond(quantity: Any, name: str, error: float, tolerance: float, **where: Any) -> Iterator[Discrepancy]:
    if math.isnan(error):
        where, error = {"fault": "is not finite", **where}, math.inf
    if error > tolerance:
        yield Discrepancy(quantity=quantity, name=name, error=error, tolerance=tolerance, **where)


def _whole(step: TracedStep) -> float:
    return math.hypot(*map(_norm, step.gradients))


def _relative(apart: float, size: float) -> float:
    return apart / size if size else math.inf if apart else 0.0


def _norm(tensor: TracedTensor) -> float:
    return math.hypot(*tensor.sketch)


def _apart(tensor: TracedTensor, other: TracedTensor) -> float:
    return math.hypot(*(a - b for a, b in zip(tensor.sketch, other.sketch, strict=True)))
