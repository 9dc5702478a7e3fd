"""What distributed training costs, and what measured figures mean: pure, each formula with its source."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_ddpperf.analysis.buckets import (
        BestBuckets,
        BucketTrial,
        GradientBucket,
        best_bucket_bytes,
        bucket_layout,
        search_bucket_size,
    )
    from pytest_ddpperf.analysis.candidates import Candidate, StrategyAdvice
    from pytest_ddpperf.analysis.costs import (
        Complexity,
        Network,
        algorithm_bandwidth,
        bus_bandwidth,
        collective_time,
        communication_complexity_analysis,
        estimate_communication_time,
        hierarchical_time,
    )
    from pytest_ddpperf.analysis.diagnosis import diagnosis_of
    from pytest_ddpperf.analysis.links import CLUSTERS, HARDWARE, Hardware
    from pytest_ddpperf.analysis.memory import fsdp_parameter_bytes, model_state_bytes
    from pytest_ddpperf.analysis.network import CollectiveFit, fit_collectives, fit_sizes
    from pytest_ddpperf.analysis.overlap import Overlap, overlapped, step_seconds
    from pytest_ddpperf.analysis.predictions import Gain, Prediction, WhatIf, predicted
    from pytest_ddpperf.analysis.replay import Replayed, replayed
    from pytest_ddpperf.analysis.rooflines import ACCELERATORS, Accelerator
    from pytest_ddpperf.analysis.scaling import (
        LawFit,
        ScalingPoint,
        amdahl,
        fit_law,
        gustafson,
        serial_fraction,
        status,
        stops_paying,
    )
    from pytest_ddpperf.analysis.transfers import FittedNetwork, NamedNetwork
    from pytest_ddpperf.analysis.volumes import (
        CommunicationCost,
        Traffic,
        estimate_ddp_comm_cost,
        estimate_fsdp_comm_cost,
        estimate_zero_comm_cost,
    )

__all__ = [
    "ACCELERATORS",
    "CLUSTERS",
    "HARDWARE",
    "Accelerator",
    "BestBuckets",
    "BucketTrial",
    "Candidate",
    "CollectiveFit",
    "CommunicationCost",
    "Complexity",
    "FittedNetwork",
    "Gain",
    "GradientBucket",
    "Hardware",
    "LawFit",
    "NamedNetwork",
    "Network",
    "Overlap",
    "Prediction",
    "Replayed",
    "ScalingPoint",
    "StrategyAdvice",
    "Traffic",
    "WhatIf",
    "algorithm_bandwidth",
    "amdahl",
    "best_bucket_bytes",
    "bucket_layout",
    "bus_bandwidth",
    "collective_time",
    "communication_complexity_analysis",
    "diagnosis_of",
    "estimate_communication_time",
    "estimate_ddp_comm_cost",
    "estimate_fsdp_comm_cost",
    "estimate_zero_comm_cost",
    "fit_collectives",
    "fit_law",
    "fit_sizes",
    "fsdp_parameter_bytes",
    "gustafson",
    "hierarchical_time",
    "model_state_bytes",
    "overlapped",
    "predicted",
    "replayed",
    "search_bucket_size",
    "serial_fraction",
    "status",
    "step_seconds",
    "stops_paying",
]

_NAMES = {
    "transfers": "FittedNetwork NamedNetwork",
    "rooflines": "ACCELERATORS Accelerator",
    "replay": "Replayed replayed",
    "predictions": "Gain Prediction WhatIf predicted",
    "candidates": "Candidate StrategyAdvice",
    "buckets": "BestBuckets BucketTrial GradientBucket best_bucket_bytes bucket_layout search_bucket_size",
    "costs": "Complexity Network algorithm_bandwidth bus_bandwidth collective_time "
    "communication_complexity_analysis estimate_communication_time hierarchical_time",
    "diagnosis": "diagnosis_of",
    "links": "CLUSTERS HARDWARE Hardware",
    "memory": "fsdp_parameter_bytes model_state_bytes",
    "network": "CollectiveFit fit_collectives fit_sizes",
    "overlap": "Overlap overlapped step_seconds",
    "scaling": "LawFit ScalingPoint amdahl fit_law gustafson serial_fraction status stops_paying",
    "volumes": "CommunicationCost Traffic estimate_ddp_comm_cost estimate_fsdp_comm_cost estimate_zero_comm_cost",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __dir__() -> list[str]:
    """All public names, whether or not they were asked for."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    """Import a public name when it is asked for: a report needs few of them."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
