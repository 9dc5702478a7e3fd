"""Tests marked gpu take turns, in whatever processes they are."""

from __future__ import annotations

import fcntl
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from tests import conftest


def can_begin(lock: IO[str], kind: int) -> bool:
    """Whether another test could begin now that locks in this way."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(lock, fcntl.LOCK_UN)
    return True


@pytest.mark.parametrize(
    ("mark", "other_alone", "other_shares"),
    [
        pytest.param(pytest.mark.gpu, False, False, id="alone"),
        pytest.param(pytest.mark.gpu(devices=2), False, False, id="on two"),
        pytest.param(pytest.mark.gpu(shared=True), False, True, id="shared"),
        pytest.param(None, True, True, id="without a GPU"),
    ],
)
def test_another_gpu_test_begins_before_one_has_ended_only_if_both_are_shared(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mark: pytest.MarkDecorator | None,
    *,
    other_alone: bool,
    other_shares: bool,
) -> None:
    monkeypatch.setattr(conftest, "GPU_LOCK", tmp_path / "lock")
    item: Any = SimpleNamespace(get_closest_marker={"gpu": mark and mark.mark}.get)
    with (tmp_path / "lock").open("w") as other:
        run = conftest.pytest_runtest_protocol(item)
        next(run)
        assert (can_begin(other, fcntl.LOCK_EX), can_begin(other, fcntl.LOCK_SH)) == (other_alone, other_shares)
        with pytest.raises(StopIteration):
            next(run)
        assert can_begin(other, fcntl.LOCK_EX)
