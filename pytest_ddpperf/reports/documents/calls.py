"""What calls other than check leave in the results document: searches, trainings, predictions, advice, calibrations."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from pytest_ddpperf.baselines.document import Document, Natural, NotNegative, Positive, about
from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.judge.calibration import Calibrated
from pytest_ddpperf.records import convergence
from pytest_ddpperf.records.batch_size import BatchSize, Search, Trial
from pytest_ddpperf.records.measurement import Interval
from pytest_ddpperf.records.predictions import Candidate, Gain, Predicted, Prediction, Standing, StrategyAdvice
from pytest_ddpperf.reports.documents.parts import BenchmarkData
from pytest_ddpperf.stats.rates import Rate


class TrialData(Document, of=[Trial]):
    """A batch size that was tried."""

    size: Positive
    fits: bool
    peak: NotNegative | None


class BatchSizeData(Document, inside="found", of=[Search, BatchSize]):
    """A search for the largest batch that fits into memory."""

    test: str
    training: str
    world_size: Positive = about("Number of ranks.", "environment.world_size")
    environment_key: str = about(
        "Stands for the environment of the search.", lambda search: environment_key(search.environment)
    )
    size: Positive
    peak: NotNegative | None
    limit: Positive | None
    memory_limit: Positive | None
    tried: Annotated[list[TrialData], Meta(min_length=1)]


class CurveData(Document, record=convergence.Curve):
    """One training; its values are means over the ranks, null for what is not finite."""

    values: dict[str, tuple[float | None, ...]]


class FinalValueData(Document, record=convergence.FinalValue):
    """A figure over launches; null for what is not finite."""

    value: float | None
    samples: tuple[float | None, ...]


class StandingData(Document, record=convergence.Standing):
    """How the end of a strategy's trainings stands to that of the first strategy's, launch by launch."""

    apart: NotNegative | None
    agreement: convergence.Agreement = about(
        "The verdict. equal: but for rounding. within tolerance: not worse by more than the tolerance. differs: by "
        "more than rounding explains, though gradients are exact. worse: by more than the tolerance, beyond chance."
    )


class ConvergenceData(Document, record=convergence.Convergence):
    """Trainings by several strategies, from the same weights on the same batches."""

    launches: Natural = about("Each trains by all strategies.", lambda found: len(found.strategies[0].curves))
    strategies: Annotated[tuple[convergence.Trainings, ...], Meta(min_length=2)]


class RateData(Document, of=[Rate]):
    """A share of runs."""

    found: Natural
    of: Positive
    value: NotNegative | None
    interval: Interval | None


class CalibratedData(BenchmarkData, inside="measurement", of=[Calibrated]):
    """A benchmark that was measured side by side with itself."""

    false_alarms: RateData = about(source="alarms")
    green: RateData
    bound: float | None
    mde: NotNegative | None
    gross: NotNegative


class StepData(Document, of=[Prediction]):
    """A step that nobody ran, in seconds."""

    world_size: Positive
    network: str
    accelerator: str
    seconds: NotNegative
    low: NotNegative
    high: NotNegative
    samples: NotNegative | None
    lost: NotNegative
    computing: NotNegative
    communication: NotNegative
    exposed: float
    efficiency: NotNegative
    efficiency_low: NotNegative
    efficiency_high: NotNegative


class PredictionData(StepData, inside="prediction", of=[Predicted]):
    """A step that nobody ran, of a call of predict or what_if."""

    test: str = about("pytest node id.", lambda found: found.test)
    name: str
    gain: Gain | None = about("Over the first way of the same call; null for the first one.", lambda found: found.gain)


class CandidateData(Document, of=[Candidate]):
    """A way to train."""

    name: str
    strategy: str
    batch_size: Positive | None
    memory: NotNegative | None
    fits: bool
    reason: str
    prediction: StepData | None
    measured: NotNegative | None
    standing: Standing


class StrategyAdviceData(Document, of=[StrategyAdvice]):
    """Which strategy, precision and batch size to train with."""

    test: str
    world_size: Positive
    memory: NotNegative | None
    candidates: list[CandidateData]
