"""The correctness pass: does a strategy train what a single process would have trained? Importable without torch."""

from pytest_ddpperf.training.correctness.verification import (
    Agreement,
    Discrepancy,
    Extent,
    Verification,
    VerifyJob,
    discrepancy_text,
    verify_launch,
)

__all__ = ["Agreement", "Discrepancy", "Extent", "Verification", "VerifyJob", "discrepancy_text", "verify_launch"]
