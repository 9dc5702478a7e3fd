"""What distributed training costs, and what measured figures mean: pure, each formula with its source."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_ddpperf.analysis.buckets import BestBuckets as BestBuckets
    from pytest_ddpperf.analysis.buckets import BucketTrial as BucketTrial
    from pytest_ddpperf.analysis.buckets import GradientBucket as GradientBucket
    from pytest_ddpperf.analysis.buckets import best_bucket_bytes as best_bucket_bytes
    from pytest_ddpperf.analysis.buckets import bucket_layout as bucket_layout
    from pytest_ddpperf.analysis.buckets import search_bucket_size as search_bucket_size
    from pytest_ddpperf.analysis.candidates import Candidate as Candidate
    from pytest_ddpperf.analysis.candidates import StrategyAdvice as StrategyAdvice
    from pytest_ddpperf.analysis.costs import Complexity as Complexity
    from pytest_ddpperf.analysis.costs import Network as Network
    from pytest_ddpperf.analysis.costs import algorithm_bandwidth as algorithm_bandwidth
    from pytest_ddpperf.analysis.costs import bus_bandwidth as bus_bandwidth
    from pytest_ddpperf.analysis.costs import collective_time as collective_time
    from pytest_ddpperf.analysis.costs import communication_complexity_analysis as communication_complexity_analysis
    from pytest_ddpperf.analysis.costs import estimate_communication_time as estimate_communication_time
    from pytest_ddpperf.analysis.costs import hierarchical_time as hierarchical_time
    from pytest_ddpperf.analysis.diagnosis import diagnosis_of as diagnosis_of
    from pytest_ddpperf.analysis.links import CLUSTERS as CLUSTERS
    from pytest_ddpperf.analysis.links import HARDWARE as HARDWARE
    from pytest_ddpperf.analysis.links import Hardware as Hardware
    from pytest_ddpperf.analysis.memory import fsdp_parameter_bytes as fsdp_parameter_bytes
    from pytest_ddpperf.analysis.memory import model_state_bytes as model_state_bytes
    from pytest_ddpperf.analysis.network import CollectiveFit as CollectiveFit
    from pytest_ddpperf.analysis.network import fit_collectives as fit_collectives
    from pytest_ddpperf.analysis.network import fit_sizes as fit_sizes
    from pytest_ddpperf.analysis.overlap import Overlap as Overlap
    from pytest_ddpperf.analysis.overlap import overlapped as overlapped
    from pytest_ddpperf.analysis.overlap import step_seconds as step_seconds
    from pytest_ddpperf.analysis.predictions import Gain as Gain
    from pytest_ddpperf.analysis.predictions import Prediction as Prediction
    from pytest_ddpperf.analysis.predictions import WhatIf as WhatIf
    from pytest_ddpperf.analysis.predictions import predicted as predicted
    from pytest_ddpperf.analysis.replay import Replayed as Replayed
    from pytest_ddpperf.analysis.replay import replayed as replayed
    from pytest_ddpperf.analysis.rooflines import ACCELERATORS as ACCELERATORS
    from pytest_ddpperf.analysis.rooflines import Accelerator as Accelerator
    from pytest_ddpperf.analysis.scaling import LawFit as LawFit
    from pytest_ddpperf.analysis.scaling import ScalingPoint as ScalingPoint
    from pytest_ddpperf.analysis.scaling import amdahl as amdahl
    from pytest_ddpperf.analysis.scaling import fit_law as fit_law
    from pytest_ddpperf.analysis.scaling import gustafson as gustafson
    from pytest_ddpperf.analysis.scaling import serial_fraction as serial_fraction
    from pytest_ddpperf.analysis.scaling import status as status
    from pytest_ddpperf.analysis.scaling import stops_paying as stops_paying
    from pytest_ddpperf.analysis.transfers import FittedNetwork as FittedNetwork
    from pytest_ddpperf.analysis.transfers import NamedNetwork as NamedNetwork
    from pytest_ddpperf.analysis.volumes import CommunicationCost as CommunicationCost
    from pytest_ddpperf.analysis.volumes import Traffic as Traffic
    from pytest_ddpperf.analysis.volumes import estimate_ddp_comm_cost as estimate_ddp_comm_cost
    from pytest_ddpperf.analysis.volumes import estimate_fsdp_comm_cost as estimate_fsdp_comm_cost
    from pytest_ddpperf.analysis.volumes import estimate_zero_comm_cost as estimate_zero_comm_cost

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
__all__ = list(_HOMES)


def __dir__() -> list[str]:
    """All public names, whether or not they were asked for."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    """Import a public name when it is asked for: a report needs few of them."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
