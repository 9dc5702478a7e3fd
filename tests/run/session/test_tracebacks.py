"""Where an error is said to come from."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest

from pytest_ddpperf.errors import E, Regression
from pytest_ddpperf.run.call.requests import several_sizes
from pytest_ddpperf.run.session.tracebacks import end_in_code_of_user, place, text_alone


def of_ours() -> None:
    several_sizes([2])


def with_a_handler() -> None:
    class Sizes(list[int]):
        def __iter__(self) -> None:  # type: ignore[override]  # as the handler of a timeout runs inside of our code
            __tracebackhide__ = True
            pytest.fail("Timeout >1.0s")

    several_sizes(Sizes())


def of_the_user() -> None:
    raise ValueError


@pytest.mark.parametrize("function", [of_ours, with_a_handler, of_the_user])
def test_a_traceback_ends_in_the_code_of_the_user(function: Callable[[], None]) -> None:
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - of several kinds
        function()
    end_in_code_of_user(caught.value)
    names = [frame.f_code.co_name for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    assert names[-1] == function.__name__
    line = function.__code__.co_firstlineno
    where = place(caught.value, __file__, "a/test_b.py::test_c")
    assert where in {f"  at a/test_b.py:{line + more} in {function.__name__}" for more in range(1, 8)}


TEST = "perf/test_a.py::test_step"


def raised(error: E) -> E:
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def test_a_verdict_is_shown_without_a_traceback_and_the_summary_of_failed_tests_has_its_cause() -> None:
    error = raised(
        Regression("custom: REGRESSED\n\nCause      all_reduce", summary="all_reduce 2 -> 8 calls (a.py:16)")
    )
    shown = text_alone(error, "test_a.py", TEST, 50, verbose=False)
    assert str(shown).splitlines() == ["custom: REGRESSED", "", "Cause      all_reduce", f"  in {TEST}"]
    assert shown.reprcrash.message == "all_reduce 2 -> 8 calls (a.py:16)"
