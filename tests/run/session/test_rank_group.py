"""Functional tests on ranks: what each did, agreement, expected errors, meshes and numbers of ranks."""

from __future__ import annotations

import os

import pytest

from pytest_ddpperf.run.session.rank_group import shown_to_worker
from pytest_ddpperf.training.group import first_difference

SUITE = """
import os
import signal

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.ddpperf(world_size=2, device="cpu", backend="gloo", timeout=60)


class Odd(ValueError):
    pass
"""


def run_tests(pytester: pytest.Pytester, tests: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(test_group=SUITE + tests)
    return pytester.runpytest("-q", *options)


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        (1, 1, None),
        (float("nan"), float("nan"), None),
        ({"a": [1, 2.0]}, {"a": [1, 2.0]}, None),
        ({"a": [1, 2.0]}, {"a": [1, 2.5]}, ("['a'][1]", 2.0, 2.5)),
        ([1, 2], [1], ("", [1, 2], [1])),
        ({"a": 1}, {"b": 1}, ("", {"a": 1}, {"b": 1})),
        (1, True, ("", 1, True)),
    ],
)
def test_the_first_difference_of_values_has_a_place(one: object, other: object, difference: object) -> None:
    assert first_difference(one, other) == difference


def test_ranks_run_the_function_of_their_test_and_results_are_listed_by_rank(inner: pytest.Pytester) -> None:
    run = run_tests(
        inner,
        """
def test_values(ddpperf_group):
    results = ddpperf_group.run(lambda ctx: 10 * ctx.rank)
    assert (results.values, results.rank(1), results.errors) == ((0, 10), 10, {})

def test_errors(ddpperf_group):
    def odd(ctx):
        if ctx.rank == 1:
            raise Odd("one is odd")
        return "even"
    results = ddpperf_group.run(odd, check=False)
    assert results.rank(0) == "even"
    assert list(results.errors) == [1]
    assert results.errors[1].type.endswith("Odd")
    assert results.errors[1].text == "one is odd"
    assert 'raise Odd("one is odd")' in results.errors[1].traceback
    results.values

def test_agree(ddpperf_group):
    def total(ctx):
        ones = torch.ones(2)
        dist.all_reduce(ones)
        return {"sum": ones, "size": ctx.world_size}
    assert ddpperf_group.agree(total) == {"sum": [2.0, 2.0], "size": 2}

@pytest.mark.ddpperf(world_size=3)
def test_disagree(ddpperf_group):
    ddpperf_group.agree(lambda ctx: {"loss": [0.5, 0.25 * (ctx.rank == 2)]})

@pytest.mark.ddpperf(mesh="dp=1,tp=2")
def test_mesh(ddpperf_group):
    def place(ctx):
        return ctx.mesh["tp"].get_local_rank(), ctx.mesh["dp"].size(), ctx.device.type
    assert ddpperf_group.run(place).values == ((0, 1, "cpu"), (1, 1, "cpu"))

@pytest.mark.ddpperf(mesh="dp=2,tp=2")
def test_too_large(ddpperf_group):
    ddpperf_group.run(lambda ctx: None)

@pytest.mark.ddpperf(env={"OF_TEST": 5})
def test_variable(ddpperf_group):
    assert ddpperf_group.run(lambda ctx: os.environ["OF_TEST"]).rank(1) == "5"
    assert "OF_TEST" not in os.environ

@pytest.mark.ddpperf(env={"MASTER_PORT": 5})
def test_owned(ddpperf_group):
    ddpperf_group.run(lambda ctx: None)
""",
    )
    run.assert_outcomes(passed=4, failed=4)
    run.stdout.fnmatch_lines(
        [
            "Cause      rank 1 of 2 raised *Odd: one is odd",
            "ddpperf_group.agree: the value of the ranks first differs at ?'loss'??1?",
            "  ranks 0, 1 have 0.0",
            "  rank 2 has 0.25",
            "ddpperf_group.run: mesh 2 x 2 has 4 ranks, and the test has 2: give a *",
            "env={'MASTER_PORT': ...}: the plugin sets MASTER_PORT for ranks; leave MASTER_PORT out",
        ]
    )


def test_a_test_that_freezes_clocks_freezes_none_of_ours(pytester: pytest.Pytester) -> None:
    """Else no deadline would ever come. The package is imported while they stand still."""
    pytester.makepyfile(
        test_group=SUITE
        + """
import time
from pytest_ddpperf.errors import RanksTimedOut

@pytest.fixture(autouse=True)
def frozen(monkeypatch):
    for name in ("monotonic", "perf_counter", "time", "time_ns"):
        monkeypatch.setattr(time, name, lambda: 0)

@pytest.mark.ddpperf(timeout=1)
def test_ranks(ddpperf_group):
    with pytest.raises(RanksTimedOut):
        ddpperf_group.run(lambda ctx: signal.pause())
    assert time.monotonic() == 0

@pytest.mark.ddpperf(max_time=0.1, counts='off')
def test_benchmark(ddpperf):
    assert len(ddpperf.measure(lambda ctx: lambda: None, samples_per_step=1).launches) == 2  # the least
"""
    )
    pytester.runpytest_subprocess("-q", timeout=120).assert_outcomes(passed=2)


def test_every_rank_has_to_raise(inner: pytest.Pytester) -> None:
    run = run_tests(
        inner,
        """
def refuse(ctx):
    raise Odd(f"rank {ctx.rank} is odd")

def test_all(ddpperf_group):
    errors = ddpperf_group.raises_all(ValueError, refuse, match=r"rank \\d is odd").errors
    assert [errors[rank].text for rank in (0, 1)] == ["rank 0 is odd", "rank 1 is odd"]

def test_returns(ddpperf_group):
    ddpperf_group.raises_all(Odd, lambda ctx: refuse(ctx) if ctx.rank else "fine")

def test_other(ddpperf_group):
    ddpperf_group.raises_all(Odd, lambda ctx: refuse(ctx) if ctx.rank else {}["key"])

def test_words(ddpperf_group):
    ddpperf_group.raises_all(Odd, refuse, match="rank 0")

@pytest.mark.ddpperf(timeout=1)
def test_hangs(ddpperf_group):
    ddpperf_group.raises_all(Odd, lambda ctx: refuse(ctx) if ctx.rank else dist.barrier())

def test_killed(ddpperf_group):
    ddpperf_group.raises_all(Odd, lambda ctx: refuse(ctx) if ctx.rank else os.kill(os.getpid(), signal.SIGKILL))

def test_class(ddpperf_group):
    ddpperf_group.raises_all("Odd", refuse)

def test_pattern(ddpperf_group):
    ddpperf_group.raises_all(Odd, refuse, match="(")

def test_unsent(ddpperf_group):
    import threading
    lock = threading.Lock()
    ddpperf_group.raises_all(Odd, lambda ctx: lock)
""",
    )
    run.assert_outcomes(passed=1, failed=8)
    run.stdout.fnmatch_lines(
        [
            "not every rank raised Odd",
            "  rank 0 returned 'fine'",
            "not every rank raised Odd",
            "  rank 0 raised KeyError: 'key'",
            "not every rank raised Odd with a message like 'rank 0'",
            "  rank 1 raised *Odd: rank 1 is odd",
            "Cause      not every rank raised Odd: rank 0 of 2 *",
            "Cause      rank 0 of 2 was killed*",
            "ddpperf_group.raises_all: expected an exception class, not 'Odd'",
            "ddpperf_group.raises_all: match='(' is no regular expression: *",
            "*cannot be sent to the ranks: closure variable 'lock' of <lambda> (test_group.py:*",
        ]
    )


SIZES = """
@pytest.mark.ddpperf(world_size=[1, 2])
def test_sizes(ddpperf_group):
    size = ddpperf_group.world_size
    assert ddpperf_group.run(lambda ctx: ctx.world_size).values == (size,) * size

@pytest.mark.ddpperf(world_size=[1, 2])
class TestInner:
    @pytest.mark.ddpperf(world_size=2)
    def test_closest(self, ddpperf_group):
        assert ddpperf_group.world_size == 2
"""


def test_a_test_runs_once_for_each_number_of_ranks_of_its_marker(inner: pytest.Pytester) -> None:
    run = run_tests(inner, SIZES, "-vv")
    run.assert_outcomes(passed=3)
    run.stdout.fnmatch_lines(["*::test_sizes?w1? PASSED*", "*::test_sizes?w2? PASSED*", "*::test_closest PASSED*"])


def test_numbers_of_the_command_line_and_of_benchmarks_make_no_parameters(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
import pytest
def test_line(ddpperf_group): pass
@pytest.mark.ddpperf(world_size=[1, 2])
def test_benchmark(ddpperf, ddpperf_group): pass
@pytest.mark.ddpperf(world_size=[1, 0])
def test_wrong(ddpperf_group): pass
"""
    )
    run = pytester.runpytest("-q", "--collect-only", "--ddpperf-world-size=1,2", "-k", "not wrong")
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines(["*::test_wrong: @pytest.mark.ddpperf(world_size=?1, 0?): expected a number of ranks *"])


@pytest.mark.parametrize(
    ("worker", "visible", "gpus", "ranks", "shown"),
    [
        ((0, 2), None, 4, 2, "0,1"),
        ((1, 2), None, 4, 2, "2,3"),
        ((1, 2), "4,5,6,7", 4, 1, "6,7"),
        ((2, 3), None, 8, 2, "4,5"),
        ((1, 2), None, 4, 3, None),  # a share has two
        ((0, 2), None, 1, 1, None),
    ],
)
def test_workers_of_xdist_are_shown_separate_gpus_if_there_are_enough(
    worker: tuple[int, int], visible: str | None, gpus: int, ranks: int, shown: str | None
) -> None:
    environ = {"PYTEST_XDIST_WORKER": f"gw{worker[0]}", "PYTEST_XDIST_WORKER_COUNT": str(worker[1])}
    environ |= {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert shown_to_worker(environ, gpus, ranks) == ({} if shown is None else {"CUDA_VISIBLE_DEVICES": shown})


@pytest.mark.slow  # each worker starts a launcher of its own
def test_workers_of_xdist_run_tests_of_ranks_at_the_same_time(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_group=SUITE + SIZES)
    pytester.runpytest_subprocess("-q", "-n", "2").assert_outcomes(passed=3)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_ranks_have_separate_cores_if_the_marker_says_so(inner: pytest.Pytester) -> None:
    inner.makepyfile(
        test_group=SUITE
        + """
def cores(ctx): return sorted(os.sched_getaffinity(0))

def test_alike(ddpperf_group):
    assert len({*map(tuple, ddpperf_group.run(cores).values)}) == 1

@pytest.mark.ddpperf(cpu_binding="cores")
def test_bound(ddpperf_group):
    first, second = ddpperf_group.run(cores).values
    assert not {*first} & {*second}

@pytest.mark.ddpperf(cpu_binding="cores", world_size=2 * len(os.sched_getaffinity(0)))
def test_too_many(ddpperf_group): ddpperf_group.run(cores)
"""
    )
    run = inner.runpytest_inprocess("-q")
    run.assert_outcomes(passed=2, failed=1)
    run.stdout.fnmatch_lines(
        ["cpu_binding=cores needs a core for each rank, and * ranks have *: use fewer ranks, or *"]
    )
