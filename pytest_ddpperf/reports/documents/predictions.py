"""Predicted steps, and advice on how to train, in the results document."""

from __future__ import annotations

from pytest_ddpperf.analysis.candidates import Standing
from pytest_ddpperf.reports.document import Document, NotNegative, Positive, about


class GainData(Document):
    """The share of a sample's time that a change is predicted to save; below 0 if it costs."""

    value: float = about("Most likely.")
    low: float = about("At worst.")
    high: float = about("At best.")


class StepData(Document):
    """A step that nobody ran, in seconds."""

    world_size: Positive = about("Number of ranks.")
    network: str = about("The name of a cluster, or the key of the environment whose network was measured.")
    accelerator: str = about("That computing was modelled for; empty if it was timed on this machine.")
    seconds: NotNegative = about("Of a step, most likely.")
    low: NotNegative = about("Of a step, at best.")
    high: NotNegative = about("Of a step, at worst.")
    samples: NotNegative | None = about("Of a step of all ranks; null if it is not known.")
    lost: NotNegative = about("The share of the cores' time that others took while its computing was timed.")
    computing: NotNegative = about("Of a step without communication.")
    communication: NotNegative = about("Of all transfers, hidden ones too.")
    exposed: float = about("Of transfers that computing does not hide.")
    efficiency: NotNegative = about("Of weak scaling beside one rank: the share of the step in which ranks compute.")
    efficiency_low: NotNegative = about("The same at worst.")
    efficiency_high: NotNegative = about("The same at best.")


class PredictionData(StepData, inside="prediction"):
    """A step that nobody ran, of a call of predict or what_if."""

    test: str = about("pytest node id.", lambda found: found.test)
    name: str = about("Of the training.")
    gain: GainData | None = about(
        "Over the first way of the same call; null for the first one.", lambda found: found.gain
    )


class CandidateData(Document):
    """A way to train."""

    name: str = about("Strategy and settings in one line.")
    strategy: str = about("With its options.")
    batch_size: Positive | None = about("Samples of a rank; null if the workload has one size.")
    memory: NotNegative | None = about("The most bytes of tensors of a rank; null if it could not be simulated.")
    fits: bool = about("Whether they fit.")
    reason: str = about("Why they do not, or why there is no prediction; empty if there is one.")
    prediction: StepData | None = about("Its step; null if it does not fit, or could not be timed here.")
    measured: NotNegative | None = about("Seconds of a step on ranks of this machine; null if none ran it.")
    standing: Standing = about("Among all candidates, by the predicted time for a sample.")


class StrategyAdviceData(Document):
    """Which strategy, precision and batch size to train with."""

    test: str = about("pytest node id.")
    world_size: Positive = about("Number of ranks.")
    memory: NotNegative | None = about("Bytes of a rank; null for no limit.")
    candidates: list[CandidateData] = about("Those with a prediction first, by their predicted time for a sample.")
