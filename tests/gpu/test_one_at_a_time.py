"""Tests marked gpu take turns, in whatever processes they are."""

from __future__ import annotations

import fcntl
from typing import IO

import pytest

from tests import conftest


def is_free(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(lock, fcntl.LOCK_UN)
    return True


@pytest.mark.parametrize("marked", [True, False])
def test_no_other_one_begins_before_a_gpu_test_has_ended(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, *, marked: bool
) -> None:
    monkeypatch.setattr(conftest, "ALONE", pytester.path / "lock")
    mark = "@pytest.mark.gpu" if marked else ""
    pytester.makeini("[pytest]\nmarkers = gpu")
    item = pytester.getitem(f"import pytest\n{mark}\ndef test_it(): pass", "test_it")
    with (pytester.path / "lock").open("w") as other:
        run = conftest.pytest_runtest_protocol(item)
        next(run)
        assert is_free(other) is not marked
        with pytest.raises(StopIteration):
            next(run)
        assert is_free(other)
