"""Memory limits: sets aside benchmarks that do not fit, and searches for the largest batch size that fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pytest_ddpperf.errors import RankFailed, SettingError, WorkloadError, extended
from pytest_ddpperf.records.launch import RankLaunch
from pytest_ddpperf.records.measurement import LIMIT, Plan
from pytest_ddpperf.records.results import BaselineRecord
from pytest_ddpperf.records.verbs import BatchSize, Trial
from pytest_ddpperf.run.call.variants import Variant
from pytest_ddpperf.units import format_value

TRIES = 2  # of a benchmark that ran out of memory: another process may have taken the memory
PLAN = Plan(warmup=1, steps=2)  # from the second step on, the optimizer's state and DDP's final buckets exist
_PEAKS = ("peak_resident", "peak_reserved")  # a rank's use of the machine's memory: on CPU, on CUDA
_IDLE_DOUBLINGS = 10
CPU_RESOLUTION = 0.02  # readings of resident memory scatter by several per cent: closer sizes would differ by luck


class MemoryFit:
    """The variants ``left`` to measure, and the ``reasons`` why other benchmarks do not fit into memory."""

    def __init__(self, variants: Sequence[Variant], sections: list[tuple[str, str]]) -> None:
        self.left = list(variants)
        self.reasons: dict[tuple[str, int], str] = {}
        self._alone, self._sections = len(variants) == 1, sections
        self._tries: Counter[tuple[str, int]] = Counter()

    def tries_again(self, error: RankFailed) -> bool:
        """Returns whether to measure again after a rank ran out of memory; raises RankFailed if nothing is left."""
        __tracebackhide__ = True
        key = error.benchmark
        if not error.out_of_memory or error.shared or key is None or self._alone:
            return False
        self._tries[key] += 1
        if self._tries[key] < TRIES:
            return True
        others = "".join(f"{name}: {reason}\n" for (name, _), reason in self.reasons.items())
        self.reasons[key] = error.summary
        if len(self.left) == 1:
            raise extended(error, before=f"nothing fits into memory\n{others}{key[0]}: ") from error.__cause__
        self.left = [variant for variant in self.left if variant.key != key]
        self._sections.append((f"{key[0]}, out of memory", str(error)))
        return True


def under_limit_of(record: BaselineRecord, variant: Variant) -> Variant:
    """Returns the variant with the memory limit of a stored baseline, if the baseline had a limit."""
    others = {name: value for name, value in variant.recipe.items() if name != LIMIT}
    limits = {name: value for name, value in record.recipe.items() if name == LIMIT}
    return replace(variant, recipe={**others, **limits})


def largest(
    fits: Callable[[int], bool], start: int = 1, limit: int | None = None, resolution: float = 0.0
) -> int | None:
    """Returns the largest number for which ``fits`` is true (doubling, bisection); None if ``start`` is too large."""
    if not fits(start):
        return None
    fitting = start
    failing: int | None = None
    while fitting != limit and (failing is None or failing - fitting > max(1, resolution * fitting)):
        if failing is not None:
            number = (fitting + failing) // 2
        else:
            number = 2 * fitting if limit is None else min(2 * fitting, limit)
        if fits(number):
            fitting = number
        else:
            failing = number
    return fitting


def search(
    probe: Callable[[int], Sequence[RankLaunch]],
    *,
    device: str,
    start: int = 1,
    limit: int | None = None,
    memory_limit: int | None = None,
) -> BatchSize:
    """Returns the largest batch size whose ``probe`` takes at most ``memory_limit`` bytes of each rank."""
    if memory_limit is None and device == "cpu":
        raise SettingError(
            "find_batch_size on the CPU needs memory_limit, because all processes share the machine's memory: give "
            'the memory that each rank may use, such as memory_limit="2GiB"'
        )
    _require_size("start", start)
    if limit is not None:
        _require_size("limit", limit)
        if limit < start:
            raise SettingError(f"find_batch_size(start={start}, limit={limit}): start must not be above limit")
    trials: dict[int, Trial] = {}
    reasons: dict[int, str] = {}

    def fits(size: int) -> bool:
        if limit is None:
            _require_growth(trials, size)
        try:
            peaks = [rank.memory[kind] for rank in probe(size) for kind in _PEAKS if kind in rank.memory]
            peak = max(peaks, default=None)
            trials[size] = Trial(size, memory_limit is None or peak is None or peak <= memory_limit, peak)
        except RankFailed as failed:
            if not failed.out_of_memory:
                raise
            trials[size] = Trial(size, fits=False, peak=None)
            reasons[size] = failed.summary
        return trials[size].fits

    found = largest(fits, start, limit, CPU_RESOLUTION if device == "cpu" else 0.0)
    if found is None:
        raise WorkloadError(_too_large(trials[start], reasons.get(start), memory_limit))
    return BatchSize(size=found, peak=trials[found].peak, tried=tuple(trials.values()))


def _require_growth(trials: Mapping[int, Trial], size: int) -> None:
    """Raises an error if ten doublings of the batch size did not raise peak memory, as the search would never end."""
    latest = trials.get(size // 2)
    if latest is None or latest.peak is None:
        return
    smaller = {
        tried: trial.peak
        for tried, trial in trials.items()
        if latest.size // 2**_IDLE_DOUBLINGS <= tried < latest.size and trial.peak is not None
    }
    if len(smaller) < _IDLE_DOUBLINGS:
        return
    highest = max(smaller, key=lambda tried: smaller[tried])
    if latest.peak <= smaller[highest]:
        reason = f"batch size {latest.size} takes no more memory than {highest} ({format_value(smaller[highest], 'B')})"
        cure = "let the function use its argument, or, if memory is not the limit, give limit=LARGEST_SIZE"
        raise WorkloadError(f"find_batch_size: {reason}: {cure}")


def _too_large(trial: Trial, reason: str | None, memory_limit: int | None) -> str:
    within = "into memory" if memory_limit is None else f"into {format_value(memory_limit, 'B')} for each rank"
    needed = reason if trial.peak is None else f"a rank used {format_value(trial.peak, 'B')}"
    cure = "begin with a smaller one (start=...)" if trial.size > 1 else "train a smaller model"
    return (
        f"batch size {trial.size}, the smallest one to be tried, does not fit {within}: {needed}; {cure}"
        f"{'' if memory_limit is None else ', or raise memory_limit'}"
    )


def _require_size(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SettingError(f"find_batch_size({name}={value!r}): expected a whole number of at least 1")
