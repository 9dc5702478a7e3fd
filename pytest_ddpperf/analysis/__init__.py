"""Models of what distributed training costs: pure, each formula with its source."""

from __future__ import annotations

from pytest_ddpperf.analysis.buckets import (
    BestBuckets,
    BucketTrial,
    GradientBucket,
    best_bucket_bytes,
    bucket_layout,
    search_bucket_size,
)
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
from pytest_ddpperf.analysis.memory import fsdp_parameter_bytes, model_state_bytes
from pytest_ddpperf.analysis.overlap import Overlap, overlapped, step_seconds
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
from pytest_ddpperf.analysis.volumes import (
    CommunicationCost,
    Traffic,
    estimate_ddp_comm_cost,
    estimate_fsdp_comm_cost,
    estimate_zero_comm_cost,
)

__all__ = [
    "BestBuckets",
    "BucketTrial",
    "CommunicationCost",
    "Complexity",
    "GradientBucket",
    "LawFit",
    "Network",
    "Overlap",
    "ScalingPoint",
    "Traffic",
    "algorithm_bandwidth",
    "amdahl",
    "best_bucket_bytes",
    "bucket_layout",
    "bus_bandwidth",
    "collective_time",
    "communication_complexity_analysis",
    "estimate_communication_time",
    "estimate_ddp_comm_cost",
    "estimate_fsdp_comm_cost",
    "estimate_zero_comm_cost",
    "fit_law",
    "fsdp_parameter_bytes",
    "gustafson",
    "hierarchical_time",
    "model_state_bytes",
    "overlapped",
    "search_bucket_size",
    "serial_fraction",
    "status",
    "step_seconds",
    "stops_paying",
]
