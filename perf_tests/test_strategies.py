"""Which strategy is fastest here? A table shows step time, memory and speedup over `naive`.

First each strategy is verified: its gradients must equal the gradients of a single process.

    pytest perf_tests/test_strategies.py --ddpperf-world-size=2            the strategies with default options
    pytest perf_tests/test_strategies.py --ddpperf-world-size=2 -m sweep   their options
"""

from __future__ import annotations

import pytest

from pytest_ddpperf import Ddpperf

from .language_model import SMALL, language_model

BATCH = 2

STRATEGIES = ["naive", "flat", "overlap", "bucketed", "ddp", "zero1", "fsdp1", "fsdp2"]

OPTIONS = [
    "overlap_coalesced[coalesce_mb=0.1]",
    "bucketed[bucket_cap_mb=0.5]",
    "ddp[bucket_cap_mb=0.5]",
    "ddp[static_graph=true]",
    "ddp[gradient_as_bucket_view=true]",
    "ddp[find_unused_parameters=true]",
    "ddp[broadcast_buffers=false]",
    "ddp[comm_hook=fp16]",
    "ddp[comm_hook=bf16]",
    "ddp[comm_hook=powersgd]",
    "ddp[comm_hook=post_local_sgd]",
    "zero1[gradient_as_bucket_view=true]",
    "zero1[parameters_as_bucket_view=true]",
    "fsdp1[sharding=SHARD_GRAD_OP]",
    "fsdp1[sharding=NO_SHARD]",
    "fsdp1[use_orig_params=false]",
    "fsdp1[param_dtype=bf16,reduce_dtype=fp32]",
    "fsdp1[sharding=HYBRID_SHARD,replicas=2]",
    "fsdp2[reshard_after_forward=false]",
    "fsdp2[param_dtype=bf16,reduce_dtype=fp32]",
    "fsdp2[replicas=2]",
]


@pytest.mark.ddpperf(launches=3, warmup=3)
def test_strategies(ddpperf: Ddpperf) -> None:
    ddpperf.compare(language_model(SMALL, BATCH), strategies=STRATEGIES, over="naive")


@pytest.mark.sweep
@pytest.mark.ddpperf(launches=4)
@pytest.mark.parametrize("strategy", OPTIONS)
def test_options(ddpperf: Ddpperf, strategy: str) -> None:
    if "HYBRID_SHARD" in strategy and max(ddpperf.world_sizes) < 4:
        pytest.skip("two copies of two ranks each need four ranks")
    plain = strategy.partition("[")[0]
    ddpperf.compare(language_model(SMALL, BATCH), strategies=[plain, strategy])
