"""What travels by name and what by value, under every way in which pytest imports test modules."""

from __future__ import annotations

import json
import pickle
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

import pytest_ddpperf.records.measurement
from pytest_ddpperf.errors import PayloadError
from pytest_ddpperf.launch import payload
from pytest_ddpperf.launch.faults.failures import RankEnd
from pytest_ddpperf.launch.messages import Call, Finished
from pytest_ddpperf.launch.payload import dump_call, dump_result, travels_by_value, values_of

CONFTEST = """
class FromConftest:
    value = 7
"""
MODULE_OF_THE_REPO = """
import os
IMPORTED_BY = os.getpid()
def by_name(): return IMPORTED_BY == os.getpid()
"""
SUITE = """
import functools
import pytest
import lib_of_repo

SCALE = 3

class Local:
    def __init__(self, x): self.x = x
    def build(self, ctx, y=0): return self.x * SCALE + y + ctx.rank

class Child(Local):
    def build(self, ctx, y=0):
        assert type(self) is Child
        return super().build(ctx, y) + 100

def helper(ctx): return SCALE + ctx.rank

def each(ctx, *functions): return [function(ctx) for function in functions]

class TestInClass:
    def measured(self, ctx): return ctx.rank + 1

    def test_bound_method(self, ddpperf_group):
        assert ddpperf_group.run(self.measured).values == (1, 2)

    def test_all(self, ddpperf_group, from_conftest):
        n = 5
        def closure(ctx):
            class Inner(Local): pass
            return Inner(n).build(ctx), Inner

        numbers = helper, lambda ctx: n + helper(ctx), Local(2).build, functools.partial(Child(2).build, y=1)
        others = closure, lambda ctx: lib_of_repo.by_name(), lambda ctx: from_conftest
        found = ddpperf_group.run(each, *numbers, *others).values
        for rank, (*values, (inner, Inner), by_name, back) in enumerate(found):
            assert values == [3 + rank, 8 + rank, 6 + rank, 107 + rank]
            assert inner == 15 + rank and issubclass(Inner, Local)
            assert by_name
            assert back is from_conftest and back.value == 7

def test_assertion(ddpperf_group):
    from pytest_ddpperf.errors import RankFailed
    def wrong(ctx):
        assert helper(ctx) == 99
    with pytest.raises(RankFailed, match="where [34] = helper"):
        ddpperf_group.run(wrong)
"""


@pytest.mark.parametrize(
    "mode", [*(pytest.param(mode, marks=pytest.mark.slow) for mode in ("prepend", "append")), "importlib"]
)
def test_classes_and_functions_of_a_suite_reach_the_ranks(inner: pytest.Pytester, mode: str) -> None:
    suite = inner.path / "suite"
    suite.mkdir()
    fixture = "import pytest\n@pytest.fixture\ndef from_conftest(): return FromConftest\n"
    (suite / "conftest.py").write_text(CONFTEST + fixture)
    (suite / "test_suite.py").write_text(SUITE)
    (inner.path / "lib_of_repo.py").write_text(MODULE_OF_THE_REPO)
    inner.syspathinsert()
    options = ["-p", "no:cacheprovider", f"--rootdir={inner.path}", "-c", "/dev/null"]
    ranks = ["--ddpperf-world-size=2", "--ddpperf-device=cpu", "--ddpperf-backend=gloo", "--ddpperf-timeout=20"]
    inner.runpytest("-q", f"--import-mode={mode}", *options, *ranks, str(suite)).assert_outcomes(passed=3)


def test_test_modules_travel_by_value_and_installed_ones_by_name() -> None:
    assert travels_by_value(__name__, sys.modules[__name__])
    for module in (json, pytest, pytest_ddpperf.records.measurement, sys, types):
        assert not travels_by_value(module.__name__, module)


def test_a_module_that_no_path_leads_to_travels_by_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain_module.py").write_text("def f(): return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    import plain_module  # type: ignore[import-not-found]

    monkeypatch.delitem(sys.modules, "plain_module")
    assert not travels_by_value("plain_module", plain_module)
    monkeypatch.setattr(sys, "path", sys.path[1:])
    assert travels_by_value("plain_module", plain_module)


def test_a_module_made_by_hand_travels_by_value_when_it_defines_something() -> None:
    made = types.ModuleType("made_by_hand")
    assert not travels_by_value("made_by_hand", made)
    exec("def f(): return 1", made.__dict__)  # noqa: S102
    assert travels_by_value("made_by_hand", made)


def test_dumping_leaves_the_registry_of_cloudpickle_as_it_was() -> None:
    import cloudpickle  # type: ignore[import-untyped]

    before = cloudpickle.list_registry_pickle_by_value()
    call = pickle.loads(dump_call(Call(lambda _ctx: __name__, ())))
    assert call.function(None) == __name__
    assert cloudpickle.list_registry_pickle_by_value() == before


class Reduced:
    def __init__(self, function: Any, *args: object) -> None:
        self.reduced = function, args

    def __reduce__(self) -> Any:
        return self.reduced


def returned(value: object) -> list[RankEnd]:
    return [RankEnd(rank=0, report=Finished(dump_result(value, 0), 1))]


def test_a_result_that_cannot_be_loaded_in_time_does_not_hang_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "_MIN_LOAD_SECONDS", 0.05)
    with pytest.raises(PayloadError, match=r"^the result of rank 0 was not read by the test session before "):
        values_of(returned(Reduced(time.sleep, 600)), 0.0)


def test_a_result_that_exits_when_it_is_loaded_ends_no_session() -> None:
    cannot = r"^the result of rank 0 cannot be read by the test session: SystemExit: 5; "
    with pytest.raises(PayloadError, match=cannot):
        values_of(returned(Reduced(sys.exit, 5)), 1.0)


def test_a_function_that_travels_by_value_keeps_the_file_that_tracebacks_name() -> None:
    def outer() -> Any:
        def inner() -> None:
            raise ValueError

        return inner

    call: Any = pickle.loads(dump_call(Call(outer, ())))
    assert call.function.__code__.co_filename == __file__
    assert call.function().__code__.co_filename == __file__


def test_a_function_may_use_a_module_object_with_a_custom_class() -> None:
    import torch.backends.cudnn

    def benchmarks() -> bool:
        return torch.backends.cudnn.benchmark

    call: Call = pickle.loads(dump_call(Call(benchmarks, ())))
    assert call.function() is torch.backends.cudnn.benchmark
