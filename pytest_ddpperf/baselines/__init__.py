"""Stored measurements: which environment they belong to, how they are written down, where they lie."""

from __future__ import annotations

from pytest_ddpperf.baselines.checkout import Checkout, checkout
from pytest_ddpperf.baselines.codec import BaselineFile
from pytest_ddpperf.baselines.fingerprint import differences, environment, environment_key
from pytest_ddpperf.baselines.machine import MachineFacts, machine_facts
from pytest_ddpperf.baselines.store import Store

__all__ = [
    "BaselineFile",
    "Checkout",
    "MachineFacts",
    "Store",
    "checkout",
    "differences",
    "environment",
    "environment_key",
    "machine_facts",
]
