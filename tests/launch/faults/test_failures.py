"""A rank's failure as a message; which failure is told first, and in which words."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pytest_ddpperf
from pytest_ddpperf.errors import PayloadError, RankFailed, RankSkipped
from pytest_ddpperf.launch.faults.exceptions import failed_report
from pytest_ddpperf.launch.faults.failures import RankEnd, failure
from pytest_ddpperf.launch.messages import Failed, FailureKind, Finished, StackPosition, Stage
from pytest_ddpperf.launch.streams import RankOutput

PACKAGE = Path(pytest_ddpperf.__file__).parent


def raised_in(*files: str) -> BaseException:
    """What is raised in the last of these files, each of which calls into the next one."""
    namespace: dict[str, Any] = {}
    exec(compile("def call():\n    raise ValueError('wrong shape')", files[-1], "exec"), namespace)  # noqa: S102
    for file in reversed(files[:-1]):
        namespace = {"inner": namespace["call"]}
        exec(compile("def call():\n    inner()", file, "exec"), namespace)  # noqa: S102  a frame in that file
    with pytest.raises(ValueError, match="wrong shape") as caught:
        namespace["call"]()
    error = caught.value
    own_frame = error.__traceback__
    assert own_frame is not None
    return error.with_traceback(own_frame.tb_next)


def own(name: str) -> str:
    return str(PACKAGE / name)


USERS, COUNTING = "/home/train.py", own("instruments/counting/counting.py")


@pytest.mark.parametrize(
    ("files", "kept"),
    [
        pytest.param([own("launch/rank.py"), own("training/preparing.py"), COUNTING, USERS], [3], id="leads to users'"),
        pytest.param([COUNTING, USERS, own("instruments/counting/dispatch.py")], [1, 2], id="below the users' code"),
        pytest.param([USERS, own("instruments/counting/sites.py"), torch.__file__], [0, 2], id="a wrapper of torch's"),
        pytest.param([own("training/loop.py"), COUNTING, own("instruments/clock.py")], [1, 2], id="a fault of ours"),
        pytest.param([own("training/loop.py"), COUNTING, torch.__file__], [1, 2], id="a fault of ours in torch"),
    ],
)
def test_a_traceback_has_the_users_frames_and_the_frames_that_failed_below(files: list[str], kept: list[int]) -> None:
    """Frames of instruments between the users' code and torch's are left out; without users' code they stay."""
    lines = failed_report(raised_in(*files), "run").traceback.splitlines()
    assert [file for line in lines for file in files if f'"{file}"' in line] == [files[i] for i in kept]


GLOO = "[../gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:4711. This is typically caused by a crash."


def raised(
    rank: int, kind: str, text: str, stamp: int, how: FailureKind = "raised", *, stage: Stage = "run"
) -> RankEnd:
    report = Failed(stage=stage, kind=how, type=kind, text=text, traceback=f"Traceback of rank {rank}", stamp=stamp)
    return RankEnd(rank=rank, report=report)


def died(rank: int, status: int, stamp: int, stderr: str = "") -> RankEnd:
    return RankEnd(rank=rank, status=status, stamp=stamp, output=RankOutput("", stderr))


def finished(rank: int) -> RankEnd:
    return RankEnd(rank=rank, report=Finished(b"", 1))


def running(rank: int) -> RankEnd:
    return RankEnd(rank=rank)


def told(*ends: RankEnd, out_of_memory: bool = False) -> RankFailed:
    error = failure([replace(end, starved=out_of_memory) for end in ends], len(ends))
    assert isinstance(error, RankFailed)
    return error


def test_the_root_is_not_the_first_to_complain_of_a_lost_peer() -> None:
    error = told(
        raised(0, "RuntimeError", GLOO, stamp=1),
        raised(1, "ValueError", "boom", stamp=3),
        raised(2, "torch.distributed.DistNetworkError", GLOO, stamp=2),
        running(3),
    )
    assert error.rank == 1
    assert str(error) == (
        "rank 1 of 4 raised ValueError: boom\n\nTraceback of rank 1\n\n"
        "ranks 0, 2: stopped (as a consequence: RuntimeError: Connection closed by peer)\nrank 3: stopped"
    )


@pytest.mark.parametrize(
    ("ends", "root"),
    [
        ([raised(0, "ConnectionResetError", "Connection reset by peer", 1), raised(1, "E", "", 2)], 0),  # a user's own
        ([raised(0, "RuntimeError", GLOO, 2), raised(1, "RuntimeError", GLOO, 1)], 1),  # all are victims
        ([raised(0, "RuntimeError", GLOO, 1), died(1, -signal.SIGKILL, 9)], 1),  # the other has died
        ([raised(0, "Skipped", "no data", 1, "skipped"), raised(1, "ValueError", "x", 2)], 1),  # the other has failed
    ],
)
def test_the_root_is_the_earliest_failure_that_no_other_has_caused(ends: list[RankEnd], root: int) -> None:
    assert told(*ends).rank == root


def test_a_kill_while_the_kernel_was_short_of_memory_says_so() -> None:
    assert "was killed by SIGKILL: the kernel ran out of memory" in str(told(died(0, -9, 1), out_of_memory=True))
    assert "memory" not in str(told(died(0, -11, 1), out_of_memory=True))


def test_a_crash_is_shown_with_the_users_frames_as_a_traceback_and_without_the_c_stack_of_python_3_14() -> None:
    stderr = (
        "before\nFatal Python error: Segmentation fault\n\nCurrent thread 0x01 [python] (most recent call first):\n"
        '  File "/a.py", line 2 in inner\n  File "/a.py", line 9 in outer\n  File "<string>", line 1 in <module>\n\n'
        "Current thread's C stack trace (most recent call first):\n"
        '  Binary file "/usr/bin/python3", at _Py_DumpStack+0x42 [0x5b27f7d7147e]\n'
        '  Binary file "/usr/lib/libc.so.6", at +0x3def0 [0x77b73226bef0]\n  <truncated rest of calls>\n\n'
        "Extension modules: numpy, torch (total: 2)\nlast words\n"
    )
    error = told(died(0, -11, 1, stderr))
    assert str(error) == (
        "rank 0 of 1 was killed by SIGSEGV\n\nFatal Python error: Segmentation fault\n"
        '  File "/a.py", line 9 in outer\n  File "/a.py", line 2 in inner'
    )
    assert error.sections == (("rank 0 stderr", "before\nlast words\n"),)


POOL = '  File "/lib/threading.py", line 1 in run\n'
WORKER = f"Fatal Python error: Segmentation fault\n\nCurrent thread 0x01 (most recent call first):\n{POOL}\n"
AT_START = "Fatal Python error: init_import_site: Failed to import the site module\nPython runtime state: initialized\n"


@pytest.mark.parametrize(
    ("status", "stderr", "shown"),
    [
        # The dump may be of a worker process; the line after it is the rank's.
        (3, f"{WORKER}CRITICAL: disk quota exceeded\n", "CRITICAL: disk quota exceeded\n"),
        (1, AT_START, AT_START),  # no stacks, no dump
    ],
)
def test_lines_around_a_dump_of_stacks_are_shown(status: int, stderr: str, shown: str) -> None:
    assert told(died(0, status, 1, stderr)).sections == (("rank 0 stderr", shown),)


def test_a_crash_in_an_idle_thread_shows_its_frames() -> None:
    main = 'Thread 0x02 (most recent call first):\n  File "/a.py", line 9 in train\n'
    assert 'File "/lib/threading.py", line 1 in run' in str(told(died(0, -11, 1, f"{WORKER}{main}")))


RETURN = "return from the function instead"
LESS = (  # serves those, too, who give a script, which has no settings of a Workload
    "a smaller batch, accumulation of gradients, activation checkpointing, bf16 or sharding (fsdp2, zero1) takes less: "
    "a Workload has settings for them, a script needs them in its code"
)
EXPECTED = "Expected one of cpu, cuda device type at start of device string: None"
FABRIC = "To use Fabric with more than one device, you must call `.launch()` or use the CLI: `fabric run --help`."


@pytest.mark.parametrize(
    ("kind", "message", "cure"),
    [
        ("bdb.BdbQuit", "", "a rank has no terminal: call print()"),
        ("EOFError", "EOF when reading a line", "a rank has no terminal: call print()"),
        ("StopIteration", "", "an iterator ended before the launch"),
        ("ValueError", "optimizer got an empty parameter list", "an iterator of parameters ends after one pass"),
        ("RuntimeError", "mat1 and mat2 must have the same dtype, but got Float and Double", "model and batch have"),
        ("TypeError", "linear(): argument 'input' must be Tensor, not numpy.ndarray", "a model takes tensors"),
        ("_pickle.PicklingError", "Can't pickle <class 't.Data'>: it's not the same object", "a spawned process"),
        ("AssertionError", "Torch not compiled with CUDA enabled", "this rank computes on the CPU"),
        ("RuntimeError", EXPECTED, "this rank computes on the CPU"),
        ("ValueError", "DistributedDataParallel is for modules, but got device_ids [0]", "this rank computes on the"),
        ("torch.AcceleratorError", "CUDA error: CUDA-capable device(s) is/are busy or unavailable", "another process"),
        ("RuntimeError", FABRIC, "give env={'LT_CLI_USED': 1, "),
        (
            "NotImplementedError",
            "Cannot copy out of meta tensor; no data!",
            "a tensor on the meta device has no values",
        ),
    ],
)
def test_the_cure_of_a_well_known_error_is_in_its_line(kind: str, message: str, cure: str) -> None:
    first, _, _ = str(told(raised(0, kind, message, 1))).partition("\n")
    assert first.startswith(f"rank 0 of 1 raised {kind}: {message.removesuffix('.')}{'; ' * bool(message)}{cure}")


@pytest.mark.parametrize(
    ("end", "heading"),
    [
        (raised(0, "EOFError", "Ran out of input", 1), "raised EOFError: Ran out of input"),  # nobody knows a cure
        (raised(0, "AssertionError", "assert 1 == 2\n + where", 1), "raised AssertionError: assert 1 == 2"),
        (raised(0, "Failed", "no good", 1, "failed"), "failed: no good"),
        (raised(0, "E", f"{'x' * 150}. Y and\nz", 1), f"raised E: {'x' * 150}."),  # as torch breaks its long messages
        (raised(0, "E", f"{'x' * 150} of 2. 3. and", 1), f"raised E: {'x' * 150} of 2. 3. and"),
        (raised(0, "E", f"{'x' * 150}. y.\nz", 1), f"raised E: {'x' * 150}. y."),
        (raised(0, "E", "x", 1, stage="join"), "raised E: x while it joined the group"),
        (raised(0, "E", "x", 1, stage="verify"), "raised E: x while it was compared with a single process"),
        (died(0, 3, 1), "exited with status 3"),
        (died(0, 0, 1), f"exited with status 0, which os._exit() or a library does: {RETURN}"),
        (raised(0, "SystemExit", "sys.exit(3)", 1, "exited"), "called sys.exit(3)"),
        (raised(0, "SystemExit", "sys.exit('train() failed')", 1, "exited"), "called sys.exit('train() failed')"),
        (raised(0, "SystemExit", "sys.exit(0)", 1, "exited"), f"called sys.exit(0); an exit ends the rank: {RETURN}"),
        (died(0, -signal.SIGABRT, 1, "  what():  vector::reserve\n"), "was killed by SIGABRT: vector::reserve"),
        (raised(0, "MemoryError", "", 1, "memory"), f"ran out of memory: MemoryError: {LESS}"),
    ],
)
def test_the_first_line_says_how_a_rank_ended(end: RankEnd, heading: str) -> None:
    assert str(told(end)).partition("\n")[0] == f"rank 0 of 1 {heading}"


def test_the_same_failure_on_all_ranks_is_reported_once() -> None:
    error = told(raised(0, "E", "x", 2), raised(1, "E", "x", 1), raised(2, "E", "x", 3), finished(3))
    assert str(error).startswith("rank 1 of 4 raised E: x")
    assert str(error).endswith("ranks 0, 2: the same\nrank 3: finished")


WANTING, BAD_ALLOC = raised(1, "MemoryError", "", 2, "memory"), "terminate called\n  what():  std::bad_alloc\n"


@pytest.mark.parametrize(
    ("ends", "starved", "wanting"),
    [
        ([raised(0, "RuntimeError", GLOO, 1), WANTING], False, True),
        ([raised(0, "ValueError", "boom", 1), WANTING], False, True),  # also where another one failed first
        ([died(0, -9, 1)], True, True),
        ([died(0, -6, 1, BAD_ALLOC)], False, True),
        ([raised(0, "ValueError", "boom", 1)], True, False),
        ([died(0, -9, 1)], False, False),  # by whomever
        ([died(0, -11, 1)], True, False),
        ([died(0, -6, 1, "Assertion `ok' failed")], False, False),
    ],
)
def test_a_failure_says_if_memory_ran_out(ends: list[RankEnd], *, starved: bool, wanting: bool) -> None:
    assert told(*ends, out_of_memory=starved).out_of_memory is wanting


def test_a_skip_counts_if_nothing_failed() -> None:
    error = failure([raised(0, "Skipped", "no data", 1, "skipped"), raised(1, "RuntimeError", GLOO, 2)], 2)
    assert isinstance(error, RankSkipped)
    assert str(error) == "no data"


ABORTED = """terminate called after throwing an instance of 'gloo::EnforceNotMet'
  what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4. Received data size doesn't match.
Fatal Python error: Aborted

Thread 0x00007fde797d5b80 (most recent call first):
  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 3245 in all_reduce
  File "/user/train.py", line 6 in step
"""


def lost(rank: int, line: str, sent: str, sequence: int = 7) -> RankEnd:
    """A rank whose collective, the seventh, ended with another rank."""
    end, position = raised(rank, "RuntimeError", GLOO, 1), StackPosition(line, "all_reduce", waits=True)
    assert end.failure is not None
    return replace(end, report=replace(end.failure, position=position, sent=sent, sequence=sequence))


ABORT, STEP = died(0, -signal.SIGABRT, 1, ABORTED), "/user/train.py:6 in step"


def test_a_rank_that_receives_another_size_is_not_to_blame() -> None:
    """It is the one that gloo ends; two ranks that differ in tensors alone may both be right."""
    error = told(ABORT, lost(1, STEP, "float32[8]"), lost(2, STEP, "float32[4]"))
    assert error.rank is None
    assert str(error) == (
        "ranks called collectives of different sizes: rank 0 of 3 received a piece of 8 bytes and expected one of 4\n\n"
        f"rank 0: in all_reduce ({STEP})\nrank 1: in all_reduce of float32[8] ({STEP})\n"
        f"rank 2: in all_reduce of float32[4] ({STEP})\n\n"
        "TORCH_DISTRIBUTED_DEBUG=DETAIL makes torch name the first collective that differs"
    )


def test_a_dump_of_stacks_among_the_output_is_without_our_frames() -> None:
    """The report of a crash shows the dump itself, so the output of the rank does not repeat it."""
    ours = f'Thread 0x01 (most recent call first):\n  File "{own("launch/streams.py")}", line 163 in asked\n\n'
    first, thread, rest = ABORTED.partition("Thread")
    whole = (
        f'{first}{ours}{thread}{rest}  File "{own("training/subject.py")}", line 112 in run\n\nExtension modules: a\n'
    )
    end = died(0, -signal.SIGABRT, 1, whole)
    ((_, shown),) = told(end, lost(1, STEP, "float32[8]")).sections
    assert shown == (
        f"{first.rstrip()}\n"
        '  File "/user/train.py", line 6 in step\n'
        '  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 3245 in all_reduce\n'
    )
    crash = died(0, -signal.SIGSEGV, 1, f"before\n{whole[whole.index('Fatal') :]}")
    assert told(crash).sections == (("rank 0 stderr", "before\n"),)


ODD = "/user/train.py:9 in odd"


@pytest.mark.parametrize(
    ("others", "shown"),
    [
        ([lost(1, STEP, "int8[4]"), lost(2, STEP, "int8[8]"), lost(3, STEP, "int8[4]")], f"int8[8] ({STEP})"),
        ([lost(1, STEP, "int64[4]"), lost(2, ODD, "int8[4]")], f"int8[4] ({ODD})"),
    ],
)
def test_a_rank_that_sends_other_tensors_or_is_at_another_line_is_to_blame(others: list[RankEnd], shown: str) -> None:
    error = told(ABORT, *others)
    assert error.rank == 2
    assert f"\n\nrank 2: in all_reduce of {shown}\n" in str(error)


def test_a_rank_that_receives_another_size_than_all_others_is_to_blame() -> None:
    """The others are all at one collective and agree about it; gloo has matched the receiver's with one of theirs."""
    error = told(ABORT, lost(1, ODD, "float32[8]"), lost(2, ODD, "float32[8]"))
    assert error.rank == 0
    assert str(error).startswith(
        "ranks called collectives of different sizes: rank 0 called another collective than the other ranks; "
        "rank 0 of 3 received"
    )
    apart = lost(1, ODD, "float32[8]", sequence=6), lost(2, ODD, "float32[8]", sequence=7)
    assert told(ABORT, *apart).rank is None


def test_a_rank_that_is_behind_is_not_to_blame_for_another_size() -> None:
    """It stands at an earlier line, or nobody knows how many collectives it has called."""
    other = lost(1, STEP, "float32[4]")
    assert told(ABORT, other, lost(2, "/user/train.py:3 in setup", "float32[1]", sequence=6)).rank is None
    collective = 'File "/x/site-packages/torch/distributed/distributed_c10d.py", line 1 in all_reduce'
    stack = f'Thread 0x1 (most recent call first):\n  {collective}\n  File "/user/train.py", line 3 in setup'
    error = failure((ABORT, other, running(2)), 3, stacks={2: stack})
    assert isinstance(error, RankFailed)
    assert error.rank is None
    assert "rank 2: in all_reduce (/user/train.py:3 in setup)\n" in str(error)


def test_if_all_ranks_receive_another_size_none_is_to_blame() -> None:
    """gloo has ended all of them, and none is left to tell what it has called."""
    error = told(*(replace(ABORT, rank=rank) for rank in range(2)))
    assert error.rank is None
    assert str(error).startswith("ranks called collectives of different sizes: rank 0 of 2 received a piece of 8 bytes")


def test_a_result_that_cannot_be_sent_back_is_reported_with_its_rank() -> None:
    error = failure((raised(1, "KeyboardInterrupt", "", 1, stage="send"), finished(0)), 2)
    assert isinstance(error, PayloadError)
    assert str(error) == (
        "the result of rank 1 cannot be sent back: KeyboardInterrupt; return plain data\n\nTraceback of rank 1"
    )


def test_a_refusal_of_the_code_of_some_ranks_names_these_ranks() -> None:
    said = "build (t.py:3) ended the process group that the plugin made\nleave that out"
    kind = "pytest_ddpperf.errors.WorkloadError"
    refused, same = (raised(rank, kind, said, stamp=1 + rank, how="refused") for rank in range(2))
    victim = raised(1, "RuntimeError", GLOO, stamp=2)
    assert str(failure((refused, victim), 2)) == said.replace("\n", " (on rank 0 of 2)\n")
    assert str(failure((refused, running(1)), 2)) == said.replace("\n", " (on rank 0 of 2)\n")
    assert str(failure((refused, same, finished(2)), 3)) == said.replace("\n", " (on ranks 0, 1 of 3)\n")
    assert str(failure((refused, same), 2)) == said


def test_a_refusal_found_by_one_rank_for_all_names_no_rank() -> None:
    refused = raised(0, "pytest_ddpperf.errors.WorkloadError", "not finite", stamp=1, how="refused", stage="verify")
    assert str(failure((refused, running(1)), 2)) == "not finite"


@pytest.mark.parametrize(
    ("error", "kind", "type_", "text"),
    [
        (SystemExit(3), "exited", "SystemExit", "sys.exit(3)"),
        (SystemExit(), "exited", "SystemExit", "sys.exit()"),
        (pytest.fail.Exception("no good"), "failed", "Failed", "no good"),
        (pytest.skip.Exception("no data"), "skipped", "Skipped", "no data"),
        (KeyboardInterrupt(), "raised", "KeyboardInterrupt", ""),
        (MemoryError(), "memory", "MemoryError", ""),
        (PayloadError("no"), "refused", "pytest_ddpperf.errors.PayloadError", "no"),
    ],
)
def test_an_exception_is_of_a_kind(error: BaseException, kind: str, type_: str, text: str) -> None:
    report = failed_report(error, "run")
    assert (report.kind, report.type, report.text) == (kind, type_, text)


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_exception_without_words_keeps_its_type_and_traceback() -> None:
    with pytest.raises(Speechless) as caught:
        raise Speechless
    report = failed_report(caught.value, "run")
    assert report.type.endswith("Speechless")
    assert report.text == "(and RuntimeError while its text was formatted)"
    assert "raise Speechless" in report.traceback


def test_a_chain_of_thousands_of_causes_keeps_its_last_traceback() -> None:
    first = last = ValueError("link")
    for _ in range(3000):
        last.__cause__ = last = ValueError("link")
    with pytest.raises(ValueError, match="link") as caught:
        raise first
    report = failed_report(caught.value, "run")
    assert report.text == "link"
    assert "raise first" in report.traceback


def test_a_message_of_megabytes_is_cut_in_the_middle() -> None:
    report = failed_report(ValueError("a" * 1_000_000 + "z"), "run")
    assert len(report.text) < 70_000
    assert len(report.traceback) < 70_000
    assert report.text.startswith("a")
    assert "[934465 characters are cut here]" in report.text
    assert report.text.endswith("z")


def test_out_of_memory_is_recognised_at_the_beginning_of_a_text() -> None:
    """A search through the 20 MB of a long text would take seconds."""
    said = "CUDA error: out of memory"
    assert failed_report(RuntimeError(f"{said}{' ' * 2**20}"), "run").kind == "memory"
    assert failed_report(RuntimeError(f"{' ' * 2**20}{said}"), "run").kind == "raised"
