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
from pytest_ddpperf.analysis.overlap import Overlap, overlapped, step_seconds

__all__ = [
    "BestBuckets",
    "BucketTrial",
    "GradientBucket",
    "Overlap",
    "best_bucket_bytes",
    "bucket_layout",
    "overlapped",
    "search_bucket_size",
    "step_seconds",
]
