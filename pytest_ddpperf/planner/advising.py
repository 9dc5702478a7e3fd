"""Advises on strategy, precision and batch size (``ddpperf.advise``), by predicting memory and step time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from pytest_ddpperf.analysis.advice import ROOM
from pytest_ddpperf.errors import RankFailed, SettingError
from pytest_ddpperf.parsers import byte_count
from pytest_ddpperf.planner.hardware import ACCELERATORS
from pytest_ddpperf.planner.predicting import Predictor
from pytest_ddpperf.records.predictions import Candidate, Standing, StrategyAdvice
from pytest_ddpperf.run.call.requests import VerbCall, of_size
from pytest_ddpperf.run.call.variants import GivenStrategy, NamedVariant
from pytest_ddpperf.settings import overlay_words
from pytest_ddpperf.strategies.table import resolve
from pytest_ddpperf.training.subject import Script, Workload
from pytest_ddpperf.units import format_value

STRATEGIES = ("ddp", "zero1", "fsdp2[reshard_after_forward=false]", "fsdp2")
PRECISIONS = ("fp32", "bf16")
_TOO_LARGE = "the model is too large to be timed in this machine's memory; name an accelerator"
_MEASURED = 3  # how many candidates are measured: the fastest ones that fit


def _limit(memory: float | str | None, accelerator: str | None) -> float | None:
    """Returns the memory limit of a rank in bytes, by default the accelerator's memory; None for no limit."""
    if memory is None:
        return ACCELERATORS[accelerator].memory if accelerator in ACCELERATORS else None  # type: ignore[index]
    try:
        return byte_count(memory)
    except ValueError as error:
        raise SettingError(f"ddpperf.advise(memory={memory!r}): expected {error}") from None


def _listed(name: str, given: Iterable[Any] | None) -> tuple[Any, ...] | None:
    if given is None:
        return None
    found = () if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    if not found:
        raise SettingError(f"ddpperf.advise({name}={given!r}): expected a list of one or more values")
    return found


def advised(
    predictor: Predictor,
    call: VerbCall,
    subject: Workload | Callable[[int], Workload],
    *,
    strategies: Iterable[GivenStrategy] | None,
    precisions: Iterable[str] | None,
    batch_sizes: Iterable[int] | None,
    memory: float | str | None,
    measure: Callable[[Workload, Candidate], float] | None = None,
) -> StrategyAdvice:
    """Predicts memory and step time of all candidates, and returns them, the fastest first.

    A candidate is a combination of a strategy, a precision and a batch size. For ``strategies`` and ``precisions``,
    None means a default list; for ``batch_sizes``, it means the workload's own size. ``measure`` returns the
    seconds of a candidate's step on ranks of this machine; if it is None, nothing is measured.
    """
    __tracebackhide__ = True
    limit = _limit(memory, call.settings.accelerator)
    tried = product(_listed("strategies", strategies) or STRATEGIES, _listed("precisions", precisions) or PRECISIONS)
    sizes = _listed("batch_sizes", batch_sizes)
    if measure is not None and not predictor.runs_here(call):
        reason = "ddpperf.advise(measure=True): on this machine the ranks would share cores or GPUs"
        raise SettingError(f"{reason}; leave measure out, or give a smaller world_size")
    workloads = _workloads(subject, sizes)
    found: list[Candidate] = []
    asking: dict[int, tuple[VerbCall, NamedVariant, str | None]] = {}  # by place in ``found``
    variants = list(product(workloads.items(), tried))
    for number, ((size, workload), (strategy, precision)) in enumerate(variants, start=1):
        live_line = f"memory, candidate {number} of {len(variants)}"
        candidate, own, variant = _simulated(predictor, call, workload, strategy, precision, live_line=live_line)
        found.append(replace(_fitting(candidate, limit), batch_size=size))
        if found[-1].fits:
            asking[len(found) - 1] = own, variant, None
    for place, prediction in zip(asking, predictor.outcomes([*asking.values()]), strict=True):
        told: Any = {"reason": _TOO_LARGE} if isinstance(prediction, RankFailed) else {"prediction": prediction}
        found[place] = replace(found[place], **told)
    ordered = list(ranked(found))
    for place, candidate in enumerate(ordered[:_MEASURED] if measure is not None else ()):
        if candidate.prediction is not None and measure is not None:
            ordered[place] = replace(candidate, measured=measure(workloads[candidate.batch_size], candidate))
    ranks = max(predictor.session.world_sizes(call.settings))
    return StrategyAdvice(test=predictor.test, candidates=tuple(ordered), world_size=ranks, memory=limit)


def _workloads(
    subject: Workload | Callable[[int], Workload], batch_sizes: Sequence[int] | None
) -> dict[int | None, Workload]:
    if isinstance(subject, Workload):
        if batch_sizes is not None:
            fact = f"ddpperf.advise(batch_sizes={list(batch_sizes)}): a Workload has only one batch size"
            raise SettingError(f"{fact}; give a function batch_size -> Workload")
        return {None: subject}
    if not callable(subject) or isinstance(subject, Script) or batch_sizes is None:
        without = " without batch_sizes" if callable(subject) and not isinstance(subject, Script) else ""
        raise SettingError(
            "ddpperf.advise: expected a Workload, or a function batch_size -> Workload with batch_sizes=[...], not a "
            f"{type(subject).__name__}{without}"
        )
    return {size: of_size(subject, size, "batch size") for size in batch_sizes}


def _simulated(
    predictor: Predictor, call: VerbCall, workload: Workload, given: GivenStrategy, precision: str, *, live_line: str
) -> tuple[Candidate, VerbCall, NamedVariant]:
    """Simulates one rank of a candidate; returns the candidate, and the call and variant with which to predict a step.

    The candidate has the peak bytes of the rank's tensors, or says that the rank ran out of memory.
    """
    __tracebackhide__ = True
    words: dict[str, Any] = {} if precision == call.settings.precision else {"precision": precision}
    own = replace(call, settings=overlay_words(call.settings, words, where="ddpperf.advise"))
    own = replace(own, own={**call.own, **words})
    strategy = resolve("ddp" if given is None else given, call.strategies)
    plain_ddp = strategy.name == "ddp" and not strategy.options  # its C++ code reads the values of tensors
    modelled = plain_ddp and call.settings.accelerator is not None
    variant = NamedVariant(subject=workload, strategy=resolve("bucketed") if modelled else strategy)
    name = " ".join((str(strategy), *(f"{word}={value}" for word, value in words.items())))
    candidate = Candidate(name=name, strategy=str(strategy), settings=words)
    try:
        without_buckets = replace(variant, strategy=resolve("overlap")) if modelled else variant
        taken, gradients = predictor.peak_bytes(own, without_buckets, live_line)
    except RankFailed as failed:
        if not failed.out_of_memory:
            raise
        reason = "the strategy reads the values of tensors, and the real model does not fit into this machine's memory"
        return replace(candidate, fits=False, reason=reason), own, variant
    return replace(candidate, memory=taken + gradients * modelled), own, variant  # DDP copies gradients to its buckets


def _fitting(candidate: Candidate, memory: float | None) -> Candidate:
    """Returns the candidate; marks it as not fitting if its tensors need more than ``memory`` bytes."""
    if memory is None or candidate.memory is None or candidate.memory <= ROOM * memory:
        return candidate
    sizes = " of ".join(format_value(nbytes, "B") for nbytes in (candidate.memory, memory))
    return replace(candidate, fits=False, reason=f"the tensors of a rank take {sizes}")


def ranked(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Sorts candidates by predicted time per sample, the fastest first, and sets ``standing``, such as ``best``."""

    def place(candidate: Candidate) -> tuple[bool, float]:
        prediction = candidate.prediction
        if prediction is None:
            return True, candidate.memory or 0.0
        return False, prediction.seconds / (prediction.samples or 1.0)  # for a sample, or else for a step

    ordered = sorted(candidates, key=place)
    return tuple(replace(candidate, standing=_standing(candidate, ordered[0])) for candidate in ordered)


def _standing(candidate: Candidate, first: Candidate) -> Standing:
    if candidate.prediction is None or first.prediction is None:
        return "not timed" if candidate.fits else "does not fit"
    if candidate is first:
        return "best"
    return "maybe as good" if candidate.prediction.gain_over(first.prediction).high >= 0 else "slower"
