"""The nouns of judging: what a baseline keeps, and what a measurement amounts to beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Environment, Interval, Measurement, Mode, Plan, Series, Spread
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.units import format_change, format_count


@dataclass(frozen=True)
class Provenance:
    """When and of what a measurement was made.

    Attributes:
        date: ISO 8601.
        commit: full hash; None where unknown.
        dirty: whether tracked files differed from the commit.
    """

    date: str
    commit: str | None
    dirty: bool = False


@dataclass(frozen=True)
class BaselineRecord:
    """What a baseline file keeps of one benchmark: what was measured then, and where it came from."""

    name: str
    strategy: str
    mode: Mode | None
    plan: Plan
    environment: Environment
    series: tuple[Series, ...]
    commit: str | None
    date: str  # ISO 8601, day
    steps: tuple[Mapping[str, float], ...]  # per launch: min, p25, p50, p75, p90, max, mean of its step times
    recipe: Mapping[str, str] = field(default_factory=dict)
    counts: Counts | None = None
    dirty: bool = False  # whether tracked files differed from the commit
    counted: Provenance | None = None  # of the counts, where these are of another run than the rest
    turns: bool = False  # as of Measurement
    lost: float = 0.0  # share of the usable cores' time that others took meanwhile; as of Measurement

    @property
    def counts_from(self) -> Provenance:
        """When and of what the counts were made."""
        return self.counted or Provenance(date=self.date, commit=self.commit, dirty=self.dirty)


def record_of(
    measured: Measurement, provenance: Provenance, steps: tuple[Mapping[str, float], ...] = ()
) -> BaselineRecord:
    """A measurement as the record that later ones are compared with; ``steps`` as in the record."""
    return BaselineRecord(
        name=measured.name,
        strategy=measured.strategy,
        mode=measured.mode,
        plan=measured.plan,
        environment=measured.environment,
        series=measured.series,
        commit=provenance.commit,
        date=provenance.date,
        steps=steps,
        recipe=measured.recipe,
        counts=measured.counts,
        dirty=provenance.dirty,
        turns=measured.turns,
        lost=measured.lost,
    )


@dataclass(frozen=True)
class Counterpart:
    """The other side of a benchmark that was measured side by side with another revision.

    Attributes:
        revision: in words: ``3f2a1c0 (main)``.
        commit: full hash; None for a folder that is no git checkout.
        launches: of the other side.
        lacking: why there are none.
        modules: of the project, by name: the files that this and the other side imported; None for not imported.
    """

    revision: str
    commit: str | None
    launches: int = 0
    lacking: str = ""
    modules: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class Noise:
    """What separate runs of a benchmark differ by while nothing changes, as a comparison takes it into account.

    Attributes:
        between_runs: how far a run's times deviate as a whole.
        floor: the relative change of a time below which a tolerance has no meaning.
        origin: where that was learned: ``calibrated on 2026-01-12``.
    """

    between_runs: Spread
    floor: float
    origin: str


@dataclass(frozen=True)
class Calibration:
    """One benchmark measured several times on one machine while nothing changed: how far its step times lie apart.

    Attributes:
        name: of the variant within its test.
        runs: how many.
        launches: of the run that had the fewest.
        steps: of a launch.
        seconds: from the start of the first run to that of the last.
        within: how far the steps of a launch lie apart.
        between_launches: how far the typical steps of a run's launches do.
        between_runs: how far runs deviate beyond what their launches explain.
        floor: as of ``Noise``.
        strategy: of the training, in words; empty in files from before it was told.
        recipe: of the training, as of ``Measurement``.
    """

    name: str
    date: str  # ISO 8601, day
    commit: str | None
    runs: int
    launches: int
    steps: int
    seconds: float
    within: Spread
    between_launches: Spread
    between_runs: Spread
    floor: float
    strategy: str = ""
    recipe: Mapping[str, str] = field(default_factory=dict)

    @property
    def noise(self) -> Noise:
        """What comparisons take of it."""
        return Noise(between_runs=self.between_runs, floor=self.floor, origin=f"calibrated on {self.date}")

    def of_training(self, strategy: str, recipe: Mapping[str, str]) -> bool:
        """Whether it is of that training: the same name may have trained otherwise, and then its floor says nothing."""
        return (self.strategy, dict(self.recipe)) == (strategy, dict(recipe))


@dataclass(frozen=True)
class Found:
    """What the store knows for a benchmark: the record to compare with, or why there is none.

    ``record`` None and ``differs`` empty: there is no baseline. ``differs`` names the facts of environment and training
    in which the nearest record differs, e.g. ``torch 2.11 -> 2.13``: then ``record`` is that foreign one, not
    comparable.

    Counts need less to be comparable: ``counted`` is the record to hold them against, of any machine, and
    ``counted_differs`` what stands against that; ``kernels_differ`` stands against those alone that depend on which
    kernels torch picks.
    """

    record: BaselineRecord | None
    origin: str  # the environment key, or the reason in words
    differs: tuple[str, ...] = ()
    counted: BaselineRecord | None = None
    counted_differs: tuple[str, ...] = ()
    kernels_differ: tuple[str, ...] = ()
    counterpart: Counterpart | None = None  # where the record is the other side of this very run
    alike: tuple[str, ...] = ()  # where there is none: records of the same test that differ in options alone
    noise: Noise | None = None  # learned for this benchmark on this kind of machine; None where nothing was

    @property
    def base_words(self) -> str:
        """What the record is called in a sentence."""
        return "the baseline" if self.counterpart is None else "the other revision"


@dataclass(frozen=True)
class Comparison:
    """One metric, judged.

    Attributes:
        change: relative change for ratio scales (0.132 is +13.2 %), absolute for differences; None without baseline.
        change_interval: where the change lies.
        tolerance: the change that the test accepts.
        margin: the worsening that it was shown not to reach if it is unchanged; None where no scatter decides.
        mde: minimal detectable effect: the smallest worsening that this run would have found with 95 % probability, had
            it come under suspicion: it is then measured for as long as the time allows.
        verdict: for this metric alone.
        note: why the verdict is what it is, where that is not plain from the numbers.
        difference: what changed in a count, where the note tells why it is not comparable.
        suspicious: whether it looks so much worse that fresh launches have to tell.
        promising: whether it looks as much better, so that beside another revision more launches have to tell.
        df: degrees of freedom of the change's interval.
        base_samples: one number for each launch that ``baseline`` comes from, as the samples of ``series``: beside
            another revision, of the same rounds in the same order.
    """

    series: Series
    baseline: float | None
    change: float | None
    change_interval: Interval | None
    tolerance: float
    mde: float | None
    verdict: Verdict
    gated: bool
    note: str = ""
    difference: str = ""
    suspicious: bool = False
    promising: bool = False
    df: float = math.inf
    base_samples: tuple[float, ...] = ()
    margin: float | None = None


@dataclass(frozen=True)
class Result:
    """One benchmark, judged: a row of the summary and an entry of the JSON file."""

    test: str  # pytest node id
    measurement: Measurement
    comparisons: tuple[Comparison, ...]
    verdict: Verdict
    baseline: BaselineRecord | None
    origin: str
    findings: tuple[Finding, ...]
    differs: tuple[str, ...] = ()  # as of Found
    counterpart: Counterpart | None = None  # as of Found
    seconds: float = 0.0  # of measuring, of all benchmarks that were measured side by side with this one

    def __repr__(self) -> str:
        """Verdict, benchmark and the main figure: the rest of it fills pages."""
        measured = self.measurement
        changes = [c.change for c in self.comparisons if c.series.metric == "step_time" and c.change is not None]
        change = f" ({format_change(changes[0])})" if changes else ""
        ranks = format_count(measured.world_size, "rank")
        return f"<Result {self.verdict.value}: {self.test} {self.name}, {ranks}, {measured.figure}{change}>"

    @property
    def name(self) -> str:
        """The variant's name within its test."""
        return self.measurement.name

    def __getitem__(self, metric: str) -> Comparison:
        """The comparison of a metric.

        Raises:
            KeyError: this benchmark has no such metric.
        """
        for comparison in self.comparisons:
            if comparison.series.metric == metric:
                return comparison
        raise KeyError(metric)
