"""What tests of formats share."""

from __future__ import annotations

from collections.abc import Callable

from pytest_ddpperf.against.git import Checkout
from pytest_ddpperf.reports.documents.entries import Run

MakeDocument = Callable[..., Run]

HOSTILE = "<script>|_&*x*\n`y`~[z](u)@me #1"
CODE = Checkout("3f2a1c0" + "0" * 33, "main", dirty=True, commit_date="2026-01-11T09:00:00+00:00")
