"""The modules that the two sides of a paired benchmark have imported."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddpperf.against.paired_launches import PairedLaunches, _require_own
from pytest_ddpperf.errors import SameCode
from pytest_ddpperf.launch.launcher import LaunchResult
from pytest_ddpperf.launch.redirection import Observed, Redirection
from pytest_ddpperf.launch.streams import RankOutput


@pytest.fixture
def paired() -> PairedLaunches:
    reference: Any = SimpleNamespace(
        redirection=Redirection(root="/here", target="/there"), revision=SimpleNamespace(label="3f2a1c0 (main)")
    )
    return PairedLaunches(reference, [])


def launched(*files: dict[str, str]) -> LaunchResult[Any]:
    return LaunchResult(tuple(Observed(None, one) for one in files), (RankOutput("", ""),) * len(files), 1.0)


def test_what_each_side_imported_is_put_side_by_side(paired: PairedLaunches) -> None:
    paired._noted(paired._of_candidate, launched({"demo": "/here/demo.py"}, {"demo.b": "/here/b.py"}))
    paired._noted(paired._of_reference, launched({"demo": "/there/demo.py", "demo.c": "/there/c.py"}))
    _require_own(paired._reference, paired._of_reference)
    assert paired.modules == {
        "demo": ("/here/demo.py", "/there/demo.py"),
        "demo.b": ("/here/b.py", None),
        "demo.c": (None, "/there/c.py"),
    }


def test_a_file_of_this_checkout_on_the_other_side_is_an_error(paired: PairedLaunches) -> None:
    paired._noted(
        paired._of_reference, launched({"demo": "/there/demo.py", "demo.b": "/here/b.py", "demo.c": "/here/c.py"})
    )
    with pytest.raises(SameCode, match=r"3f2a1c0 \(main\) imported demo.b from /here/b.py and 1 other module, which"):
        _require_own(paired._reference, paired._of_reference)
