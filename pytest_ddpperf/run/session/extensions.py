"""The hooks of projects and other plugins in a session: they add strategies, metrics and facts, or get results."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.errors import SettingError, in_a_line
from pytest_ddpperf.metrics.table import METRICS, Metric
from pytest_ddpperf.records.counts import COUNTS
from pytest_ddpperf.reports.lines import printable
from pytest_ddpperf.strategies.table import ALIASES, STRATEGIES

if TYPE_CHECKING:
    import pytest

    from pytest_ddpperf.records.measurement import Measurement
    from pytest_ddpperf.records.results import Result

PROPERTY = "ddpperf "  # begins the names of our properties of a test
_TITLE_AND_TEXT = 2
_COLUMNS = {"better": ("lower", "higher"), "family": ("absolute", "relative"), "scale": ("ratio", "difference")}


class Extensions:
    """The hooks of one session; ``hook`` is pytest's object that calls hooks, or None without hooks."""

    def __init__(self, hook: Any = None, waits: Callable[[], bool] = lambda: False) -> None:
        self._hook, self._waits = hook, waits
        # Calls of hooks, by test: kept until ``tell`` or ``forget`` while ``waits()``, because tests may run again.
        self._kept: dict[str, list[Callable[[], object]]] = {}

    @cached_property
    def strategies(self) -> Mapping[str, Callable[..., Any]]:
        """The functions that the hooks ``pytest_ddpperf_strategies`` add, by name of the strategy."""
        hook, added = "pytest_ddpperf_strategies", dict[str, Callable[..., Any]]()
        for given in self._called(hook):
            if not isinstance(given, Mapping):
                raise SettingError(f"{hook} returned {given!r}: return a dict {{name: function}}")
            _require_new(hook, "strategy", given, {*STRATEGIES, *ALIASES, *added})
            for name, function in given.items():
                if not callable(function) or not isinstance(name, str) or not name.isidentifier():
                    reason = f"{hook}: {name!r}: {function!r} is not a strategy"
                    raise SettingError(f"{reason}: expected a function parallelise(module, ctx) -> Parallel")
            added |= given
        return added

    @cached_property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics that the hooks ``pytest_ddpperf_metrics`` add, after checks."""
        hook, added = "pytest_ddpperf_metrics", dict[str, Metric]()
        rows = self._called(hook)
        if not rows:
            return ()
        from pytest_ddpperf.metrics.scaling import EFFICIENCY, MEMORY, SPEEDUP

        known = {*(row.name for row in METRICS), *COUNTS, EFFICIENCY, MEMORY, SPEEDUP}
        for given in rows:
            for row in given if isinstance(given, Sequence) else (given,):
                if not isinstance(row, Metric):
                    raise SettingError(f"{hook} returned {row!r}: return a list of pytest_ddpperf.Metric")
                _require_new(hook, "metric", [row.name], {*known, *added})
                if not isinstance(row.name, str) or not row.name.isidentifier() or row.name != row.name.lower():
                    raise SettingError(f"{hook}: metric {row.name!r}: write the name in snake_case")
                for column, words in _COLUMNS.items():
                    if (found := getattr(row, column)) not in words:
                        raise SettingError(f"{hook}: {row.name} has {column}={found!r}: expected {' or '.join(words)}")
                added[row.name] = replace(row, samples=partial(_checked, row))
        return tuple(added.values())

    def recorded(self, facts: Mapping[str, str]) -> dict[str, str]:
        """Returns ``facts`` of the environment plus the facts that hooks add; hooks may replace only ``host``."""
        _require_new("pytest_ddpperf_environment", "fact", self._facts, facts.keys() - {"host"})
        return {**facts, **self._facts}

    @cached_property
    def _facts(self) -> Mapping[str, str]:
        hook, added = "pytest_ddpperf_environment", dict[str, str]()
        for given in self._called(hook):
            if not isinstance(given, Mapping) or not all(isinstance(word, str) for word in chain(*given.items())):
                raise SettingError(f"{hook} returned {given!r}: return a dict {{name: text}}")
            _require_new(hook, "fact", given, added)
            added |= given
        return added

    def measured(self, test: str, measurements: Sequence[Measurement], attempt: int) -> None:
        """Calls the hook ``pytest_ddpperf_measured`` for each measured benchmark."""
        for measurement in measurements:
            self._tell(test, "pytest_ddpperf_measured", test=test, measurement=measurement, attempt=attempt)

    def judged(self, results: Sequence[Result]) -> None:
        """Calls the hook ``pytest_ddpperf_verdict`` for each result."""
        for result in results:
            self._tell(result.test, "pytest_ddpperf_verdict", result=result)

    def _tell(self, of_test: str, name: str, **arguments: Any) -> None:
        call = partial(self._called, name, **arguments)
        if self._waits():
            self._kept.setdefault(of_test, []).append(call)
        else:
            call()

    def tell(self, test: str) -> None:
        """Makes the hook calls that were stored for a test, because the test does not run again."""
        for call in self._kept.pop(test, ()):
            call()

    def forget(self, test: str) -> None:
        """Drops the stored hook calls of a test."""
        self._kept.pop(test, None)

    def reports(self, results: Sequence[Result]) -> list[tuple[str, str]]:
        """Returns title and text of each section that hooks add to the summary."""
        if not results:
            return []
        parts = self._called("pytest_ddpperf_report", results=tuple(results))
        for part in parts:
            if not (isinstance(part, tuple) and len(part) == _TITLE_AND_TEXT and all(isinstance(p, str) for p in part)):
                raise SettingError(f"pytest_ddpperf_report returned {part!r}: return (title, text) or None")
        return parts

    def _called(self, name: str, **arguments: Any) -> list[Any]:
        if self._hook is None:
            return []
        try:
            found: list[Any] = getattr(self._hook, name)(**arguments)
        except Exception as error:
            raise _failure(name, error) from error
        return found


def tell_properties(item: pytest.Item, results: Iterable[Result]) -> None:
    """Sets a test's properties for JUnit and reportlog: verdicts, and values and changes of gated metrics."""
    others = [(name, value) for name, value in item.user_properties if not str(name).startswith(PROPERTY)]
    ours = [
        (f"{PROPERTY}{printable(result.name)} w{result.measurement.world_size} {name}", value)
        for result in results
        if result.test == item.nodeid
        for name, value in _facts(result).items()
    ]
    item.user_properties[:] = [*others, *ours]


def _facts(result: Result) -> Mapping[str, str | float]:
    facts: dict[str, str | float] = {"verdict": result.verdict.value}
    for comparison in result.comparisons:
        if comparison.gated:
            numbers = {"": comparison.series.value, " change": comparison.change}
            facts |= {
                f"{comparison.series.metric}{what}": number
                for what, number in numbers.items()
                if number is not None and math.isfinite(number)
            }
    return facts


def _failure(what: str, error: Exception) -> SettingError:
    """Returns the error for an exception in a hook's code: one line with the file and line that raised it."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return SettingError(f"{what} failed at {place.filename}:{place.lineno}: {in_a_line(error)}")


def _require_new(hook: str, noun: str, names: Iterable[str], known: Container[str]) -> None:
    for name in names:
        if name in known:
            raise SettingError(f"{hook}: a {noun} named {name!r} exists already: choose another name")


def _checked(row: Metric, measurement: Measurement) -> tuple[float, ...] | None:
    """Returns the samples of a metric that a hook added, or None; raises SettingError if the samples are invalid."""
    try:
        samples = row.samples(measurement)
    except Exception as error:
        raise _failure(f"pytest_ddpperf_metrics: metric {row.name}", error) from error
    if samples is None:
        return None
    fits = isinstance(samples, (tuple, list)) and 0 < len(samples) <= len(measurement.every)
    if not fits or not all(isinstance(sample, (int, float)) and math.isfinite(sample) for sample in samples):
        raise SettingError(
            f"pytest_ddpperf_metrics: metric {row.name} returned {samples!r} for {len(measurement.launches)} launches: "
            "return one finite number for each launch, or None for no metric"
        )
    return tuple(map(float, samples))
