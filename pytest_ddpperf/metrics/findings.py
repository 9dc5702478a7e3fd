"""Remarks that a reader of the numbers needs, from the measurement alone."""

from __future__ import annotations

from pytest_ddpperf.metrics.communication import no_headroom
from pytest_ddpperf.metrics.health import health_findings
from pytest_ddpperf.metrics.launches import once, typical_step
from pytest_ddpperf.metrics.memory import growing_memory, tight_memory, uneven_memory
from pytest_ddpperf.records.measurement import Launch, Measurement
from pytest_ddpperf.stats.summaries import quantile, typical
from pytest_ddpperf.units import format_change, format_count, format_percent

SLOW_START = 0.10  # by how much the first quarter of the timed steps may be slower than the rest
FEWEST_STEPS = 8  # below that a quarter is a single step
OUTLYING_SIGMAS = 3.0
OUTLYING_SHARE = 0.05  # launches that agree to within this are close enough, however small their spread
FEWEST_LAUNCHES = 4  # below that nothing tells the outlier from the others
DISTURBED = 0.10  # share of the usable cores' time that others take
FEWEST_STORED = 3  # of two launches one that was disturbed cannot be told from the other
SIGMA_PER_MAD = 1.4826  # of a normal distribution


def findings_of(measurement: Measurement) -> tuple[str, ...]:
    """What a reader of a measurement has to know, a sentence each: overload, skipped steps, outlying launches ..."""
    found = (
        oversubscription(measurement),
        effective_batch(measurement),
        skipped_steps(measurement),
        picked_loading(measurement),
        unsettled_warmup(measurement),
        outlying_launches(measurement),
        growing_memory(measurement),
        uneven_memory(measurement),
        tight_memory(measurement),
        no_headroom(measurement),
    )
    return (*(text for text in found if text is not None), *health_findings(measurement))


def thin_baseline(measurement: Measurement) -> str | None:
    """A sentence where so few launches are stored that they hardly tell their own scatter; else None."""
    launches = len(measurement.launches)
    if not 0 < launches < FEWEST_STORED:
        return None
    return (
        f"the stored baseline rests on {format_count(launches, 'launch')} only, too few to know its scatter: what is "
        "compared with it will often be inconclusive; raise max_time and save again"
    )


def disturbed_baseline(measurement: Measurement) -> str | None:
    """A sentence where others took much of the cores while a baseline of times was made; else None."""
    if measurement.lost <= DISTURBED:
        return None
    return (
        f"the stored baseline was made while others took {format_percent(measurement.lost)} of the cores: times that "
        "are compared with it will often be inconclusive; save again on a quiet machine, or use --ddpperf-against"
    )


def oversubscription(measurement: Measurement) -> str | None:
    """A sentence where ranks that were timed had to share cores or GPUs; else None."""
    environment = measurement.environment
    if not environment.oversubscribed or not measurement.launches:
        return None
    each, noun = (environment.cores, "core") if environment.device == "cpu" else (environment.device_count, "GPU")
    return (
        f"oversubscribed: {format_count(environment.world_size, 'rank')} share "
        f"{format_count(each * environment.nodes, noun)}; step times say little about real hardware"
    )


def effective_batch(measurement: Measurement) -> str | None:
    """A sentence where an optimizer step takes several micro-batches; else None."""
    steps = int(measurement.recipe.get("accumulation_steps", "1"))
    size = measurement.effective_batch_size
    if steps == 1 or size is None:
        return None
    ranks = format_count(measurement.world_size, "rank")
    return f"effective batch size {size:g}: {steps} micro-batches on each of {ranks}"


def skipped_steps(measurement: Measurement) -> str | None:
    """A sentence where timed steps updated nothing; else None."""
    skipped = sum(len(launch.ranks[0].skipped_steps) for launch in measurement.launches)
    if not skipped:
        return None
    launches = format_count(len(measurement.launches), "launch")
    return (
        f"fp16 gradients overflowed in {format_count(skipped, 'timed step')} of {launches}, which updated nothing and "
        "are left out of the times; a longer warm-up lets the scale settle"
    )


def picked_loading(measurement: Measurement) -> str | None:
    """What ``loader=auto`` came to; None where it was not asked."""
    picked = next((launch.ranks[0].picked for launch in measurement.launches), None)
    return None if picked is None else picked[1]


def unsettled_warmup(measurement: Measurement) -> str | None:
    """A sentence where the first timed steps of most launches were still slower than the rest; else None."""
    slow = sum(map(_starts_slowly, measurement.launches))
    if 2 * slow <= len(measurement.launches):
        return None
    return (
        f"warm-up had not settled: in {slow} of {format_count(len(measurement.launches), 'launch')} the first quarter "
        f"of the timed steps was more than {format_percent(SLOW_START)} slower than the rest; raise the warm-up "
        f"(now {format_count(measurement.plan.warmup, 'step')})"
    )


def outlying_launches(measurement: Measurement) -> str | None:
    """A sentence that names launches far from the others; else None.

    Far is more than 3 standard deviations from the median, estimated from the median absolute deviation, and more
    than 5 %.
    """
    times = [typical_step(launch) for launch in measurement.launches]
    if len(times) < FEWEST_LAUNCHES:
        return None
    middle = quantile(times, 0.5)
    sigma = SIGMA_PER_MAD * quantile([abs(time - middle) for time in times], 0.5)
    limit = max(OUTLYING_SIGMAS * sigma, OUTLYING_SHARE * middle)
    far = [f"{i} ({format_change(time / middle - 1)})" for i, time in enumerate(times, 1) if abs(time - middle) > limit]
    if not far:
        return None
    noun = "launch" if len(far) == 1 else "launches"
    return f"{noun} {', '.join(far)} of {len(times)} far from the median step time; what lies far out hardly counts"


@once
def _starts_slowly(launch: Launch) -> bool:
    times = launch.step_times
    if len(times) < FEWEST_STEPS:
        return False
    quarter = len(times) // 4
    return typical(times[:quarter]) > (1 + SLOW_START) * typical(times[quarter:])
