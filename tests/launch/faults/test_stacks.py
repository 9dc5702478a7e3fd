"""Stacks as faulthandler writes them, and what is said of them."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from pytest_ddpperf.launch.faults import roll_call, stacks
from pytest_ddpperf.launch.messages import StackPosition
from tests.shell import shown

LIB = sysconfig.get_path("purelib")
RANK = Path(stacks.__file__).parents[1] / "rank.py"
C10D = f"{LIB}/torch/distributed/distributed_c10d.py"


def written(*frames: str, thread: str = "Current thread 0x00007f01") -> str:
    lines = [f'  File "{file}", line {line} in {name}' for file, line, name in (f.split("|") for f in frames)]
    return "\n".join([f"{thread} (most recent call first):", *lines, f'  File "{RANK}", line 1 in live', ""])


ALL_REDUCE = written(f"{C10D}|3252|all_reduce", f"{LIB}/torch/distributed/c10d_logger.py|83|wrapper", "/x/t.py|12|step")
BARRIER = written(f"{C10D}|4000|barrier", "/x/t.py|20|end")
BROADCAST = written(f"{C10D}|3151|broadcast", "/x/t.py|9|build")
RECEIVE = written(f"{C10D}|2799|recv", "/x/t.py|4|stage")
NEW_GROUP = written(f"{C10D}|2169|_new_process_group_helper", f"{C10D}|5863|new_group", "/x/t.py|5|stage")
BACKWARD = written(
    f"{LIB}/torch/autograd/graph.py|8|_engine_run_backward", f"{LIB}/torch/_tensor.py|5|backward", "/x/t.py|14|step"
)
COMPILING = written(
    "/cache/torchinductor_me/cq/ccqkoo456ajqxsstnxmi4s6vpvp3qpzb2dfegua5sloukxv4csq5.py|33|<module>",
    f"{LIB}/torch/nn/parallel/distributed.py|1890|forward",
    f"{LIB}/torch/_dynamo/eval_frame.py|1166|compile_wrapper",
    f"{LIB}/torch/_dynamo/eval_frame.py|511|__call__",
    "/x/t.py|24|step",
)
BUILDS = "/x/t.py|30|build"
BUILD = written(BUILDS, "/x/t.py|50|test")
START = written()
QUEUE = written(f"{RANK.with_name('interleaving.py')}|9|wait", f"{RANK.parents[1]}/training/loop.py|7|run_launch")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ALL_REDUCE, StackPosition("/x/t.py:12 in step", "all_reduce", waits=True)),
        (BACKWARD, StackPosition("/x/t.py:14 in step", "backward", waits=True)),
        (QUEUE, StackPosition("", "the queue of interleaved launches", waits=True)),
        (BUILD, StackPosition("/x/t.py:30 in build", "", waits=False)),
        (COMPILING, StackPosition("/x/t.py:24 in step", "forward", waits=False)),
        (
            written(f"{C10D}|1|init_process_group", f"{RANK}|2|_join_group"),
            StackPosition("", "init_process_group", waits=True),
        ),
        (written(), StackPosition("", "the start of the rank", waits=False)),
    ],
)
def test_a_place_is_the_users_innermost_line_and_the_function_that_it_called(
    text: str, expected: StackPosition
) -> None:
    assert stacks.position(stacks.threads(text)[0]) == expected


def test_the_main_thread_is_written_last_or_alone() -> None:
    """faulthandler writes 100 threads, the main one last: with more it is missing, and stands at an unknown place."""
    young = written("/x/t.py|1|young", thread="Thread 0x0002 [loader]")
    cut = f"{young}\n...\n"
    asked_again = cut + BUILD.replace("Current thread 0x00007f01", "Stack")
    for text in (f"{young}\n{BUILD}", asked_again):
        assert [stack[0].function for stack in stacks.threads(text)] == ["build", "young"]
    assert stacks.threads(cut)[0] == []
    assert stacks.position([]) is None
    assert (stacks.lacks_main_thread(cut), stacks.lacks_main_thread(asked_again)) == (True, False)


BLOCKED = "blocked after 10 s"
REDUCES, REDUCING = "blocked after 10 s in all_reduce (/x/t.py:12 in step)", "in all_reduce (/x/t.py:12 in step)"
GRADIENTS, BUILDING = "blocked after 10 s in backward (/x/t.py:14 in step)", "at /x/t.py:30 in build"
ENDING, RUNS = "in barrier (/x/t.py:20 in end)", "still running after 10 s"
NO_STACK, IF_SLOW = "at an unknown place (no stack was received)", "if the launch is slow, raise timeout"


@pytest.mark.parametrize(
    ("found", "finished", "line", "guilty"),
    [
        ({0: ALL_REDUCE, 2: ALL_REDUCE, 3: ALL_REDUCE}, [1], f"ranks 0, 2, 3 of 4 {REDUCES}; rank 1 had finished", 1),
        ({0: ALL_REDUCE, 1: BUILD}, [], f"rank 0 of 2 {REDUCES}; rank 1 {BUILDING}", 1),
        # As long as ranks 1 and 2 have not told what they have called, none is to blame.
        ({0: BARRIER, 1: ALL_REDUCE, 2: ALL_REDUCE}, [], f"ranks 1, 2 of 3 {REDUCES}; rank 0 {ENDING}", None),
        ({0: BACKWARD, 1: BUILD}, [], f"rank 0 of 2 {GRADIENTS}; rank 1 {BUILDING}", 1),
        ({0: BACKWARD, 1: ALL_REDUCE}, [], f"rank 0 of 2 {GRADIENTS}; rank 1 {REDUCING}", None),
        (
            {0: QUEUE, 1: BARRIER},
            [],
            f"rank 0 of 2 {BLOCKED} in the queue of interleaved launches; rank 1 {ENDING}",
            None,
        ),
        ({2: BARRIER}, [0, 1], f"rank 2 of 3 {BLOCKED} {ENDING}; ranks 0, 1 had finished", 2),
        ({0: BROADCAST}, [1], f"rank 0 of 2 {BLOCKED} in broadcast (/x/t.py:9 in build); rank 1 had finished", 1),
        ({0: ""}, [1], f"rank 0 of 2 {RUNS} {NO_STACK}; rank 1 had finished", 0),
        ({0: START, 1: ""}, [], f"rank 0 of 2 {RUNS} in the start of the rank; rank 1 {NO_STACK}", 1),
        ({0: BUILD}, [], f"rank 0 of 1 {RUNS} {BUILDING}; {IF_SLOW}", 0),
        ({0: BACKWARD}, [], f"rank 0 of 1 {RUNS} in backward (/x/t.py:14 in step); {IF_SLOW}", 0),
        ({0: BUILD, 1: BUILD}, [], f"ranks 0, 1 of 2 {RUNS} {BUILDING}; {IF_SLOW}", None),
    ],
)
def test_the_summary_of_ranks_names_the_rank_that_keeps_the_others_waiting(
    found: dict[int, str], finished: list[int], line: str, guilty: int | None
) -> None:
    world_size = len(found) + len(finished)
    assert roll_call.heading(found, finished, world_size, 10.0) == (line, guilty)
    assert roll_call.heading({0: BROADCAST}, [1, 2], 3, 10.0)[1] is None, "a broadcast lets ranks go on"


def test_the_summary_of_ranks_says_which_ranks_stand_and_which_move() -> None:
    """Rank 1 of the first launch loops, and rank 2 of it has gone on from where rank 0 waits."""
    moves = {0: False, 1: True, 2: True}
    assert roll_call.heading({0: ALL_REDUCE, 1: BUILD, 2: ALL_REDUCE}, [], 3, 10.0, moved=moves) == (
        f"rank 0 of 3 {REDUCES}; rank 2 moving {REDUCING}; rank 1 moving {BUILDING}",
        1,
    )
    line, _ = roll_call.heading({0: BUILD}, [], 1, 10.0, moved={0: False})
    assert line.startswith("rank 0 of 1 still running after 10 s, standing at /x/t.py:30 in build; if the launch is")


def test_the_docs_show_the_roll_call_of_a_hang() -> None:
    waits, reads = written(f"{C10D}|3252|all_reduce", "train.py|88|step"), written("data.py|12|read_batch")
    line, _ = roll_call.heading(
        {0: waits, 1: reads, 2: waits, 3: waits},
        [],
        4,
        60.0,
        moved=dict.fromkeys(range(4), False),
        waits_in=dict.fromkeys((0, 2, 3), ("all_reduce", 41)),
    )
    assert shown("ranks.md", "blocked") == f"{line}\n"


SPAWNING = written(f"{LIB}/torch/multiprocessing/spawn.py|340|spawn", BUILDS)
LOCKED = written(f"{LIB}/torch/utils/file_baton.py|50|wait", f"{LIB}/torch/utils/cpp_extension.py|24|load", BUILDS)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ([SPAWNING], " in spawn (/x/t.py:30 in build); the plugin sees no steps of processes that a script starts "),
        ([LOCKED, LOCKED], " in load (/x/t.py:30 in build); all wait for the build of an extension: a build that was "),
        ([LOCKED, BUILD], "; if the launch is slow, raise timeout"),  # one builds what the other waits for
    ],
)
def test_for_a_wait_that_more_time_does_not_end_the_cure_is_named(found: list[str], told: str) -> None:
    assert told in roll_call.heading(dict(enumerate(found)), [], len(found), 10.0)[0]


def test_a_rank_has_moved_if_its_line_or_the_function_called_there_differs() -> None:
    loops = written("/x/t.py|31|build", "/x/t.py|50|test")
    deeper = written(f"{LIB}/torch/nn/functional.py|7|linear", "/x/t.py|30|build", "/x/t.py|50|test")
    first = {0: BUILD, 1: BUILD, 2: BUILD, 3: BUILD, 4: BUILD, 5: ""}
    assert roll_call.moved(first, {0: BUILD, 1: loops, 2: deeper, 4: "", 5: BUILD}) == {
        0: False,
        1: True,
        2: True,
        3: True,  # it has finished
    }


@pytest.mark.parametrize(
    ("found", "called", "suspect", "guilty"),
    [
        ([BARRIER, ALL_REDUCE, ALL_REDUCE], {1: 4, 2: 4}, 0, 0),
        ([BROADCAST, ALL_REDUCE, ALL_REDUCE], {1: 4, 2: 3}, 0, None),  # a root whose receiver leaves it out
        ([BARRIER, ALL_REDUCE, ALL_REDUCE], {1: 4, 2: None}, 0, None),  # one counts for several groups
        ([BARRIER, ALL_REDUCE, ALL_REDUCE], {1: 4}, 0, None),  # one tells nothing
        ([BACKWARD, BACKWARD, BARRIER, BACKWARD], {0: 7, 1: 7, 3: 7}, 2, 2),
        ([ALL_REDUCE, BROADCAST, ALL_REDUCE, RECEIVE], {0: 3, 1: 2, 2: 3}, 3, 3),
        ([ALL_REDUCE, BROADCAST, NEW_GROUP], {0: 3, 1: 2}, 2, 2),
        ([ALL_REDUCE, BROADCAST, RECEIVE], {0: 3, 1: 3}, 2, None),  # a stage whose sender is in a mismatch
        ([ALL_REDUCE, ALL_REDUCE, RECEIVE], {0: 3, 1: 2}, 2, None),  # a stage behind two of unequal steps
        ([RECEIVE, RECEIVE, ALL_REDUCE, BROADCAST], {}, None, None),  # two stages behind two
        ([RECEIVE, RECEIVE, RECEIVE, BROADCAST], {0: 2, 1: 2, 2: 2}, 3, 3),  # stages behind one
        ([ALL_REDUCE, RECEIVE], {0: 3}, None, None),  # two contradict each other
        ([BROADCAST, ALL_REDUCE, BARRIER], {}, None, None),
        ([ALL_REDUCE, ALL_REDUCE, ALL_REDUCE], {}, None, None),
        ([BARRIER, ALL_REDUCE, ALL_REDUCE, BUILD], {}, None, None),  # one does not wait
    ],
)
def test_a_rank_is_to_blame_if_all_others_wait_and_agree_on_their_collectives(
    found: list[str], called: dict[int, int | None], suspect: int | None, guilty: int | None
) -> None:
    listed = dict(enumerate(found))
    assert (roll_call.suspect(listed), roll_call.confirmed(listed, [], called)) == (suspect, guilty)
    if BUILD not in found:
        assert roll_call.heading(listed, [], len(found), 10.0, called)[1] == guilty


def test_a_rank_that_has_finished_is_to_blame_if_the_others_agree() -> None:
    waiting = {0: BROADCAST, 2: ALL_REDUCE}
    assert roll_call.suspect(waiting, [1]) == 1
    assert roll_call.suspect(waiting, [1, 3]) is None
    assert roll_call.heading(waiting, [1], 3, 10.0, {0: 2, 2: 3})[1] == 1
    assert roll_call.heading(waiting, [1], 3, 10.0, {0: 2, 2: 2})[1] is None, "the others contradict each other"


def test_a_wait_for_a_handle_or_inside_torchs_code_for_ranks_is_a_wait(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("handle = all_reduce(tensor, async_op=True)\nhandle.wait()\nready.acquire()\n")
    torch = f"{LIB}/torch"
    waits = {
        "handle": written(f"{tmp_path}/t.py|2|step"),
        "operator": written(
            f"{torch}/_ops.py|1|__call__", f"{torch}/distributed/_functional_collectives.py|9|wait_tensor"
        ),
        "module": written(f"{torch}/distributed/utils.py|1|_verify", f"{torch}/nn/parallel/distributed.py|8|__init__"),
        "lock": written(f"{tmp_path}/t.py|3|step"),
        "work": written(f"{torch}/nn/modules/linear.py|1|forward", f"{torch}/nn/parallel/distributed.py|9|forward"),
    }
    found = {name: stacks.position(stacks.threads(text)[0]) for name, text in waits.items()}
    waiting = {name for name, where in found.items() if where is not None and where.waits}
    assert waiting == {"handle", "operator", "module"}


TIMING = RANK.parents[1] / "training/timing.py"
SYNCHRONIZE = written(f"{LIB}/torch/cuda/__init__.py|1089|synchronize", "/x/t.py|8|step")


@pytest.fixture
def item(tmp_path: Path) -> str:
    """A rank in a line that needs the value of a tensor."""
    (tmp_path / "train.py").write_text("def step():\n    total += loss.item()\n    work(loss)\n")
    return written(f"{tmp_path}/train.py|2|step")


def test_with_nccl_a_rank_that_waits_for_its_gpu_waits_for_others(item: str, tmp_path: Path) -> None:
    """NCCL's collectives run there: Python goes on until it needs a value."""
    on_gpu = {text: stacks.position(stacks.threads(text)[0], nccl=True) for text in (item, SYNCHRONIZE)}
    assert on_gpu == {
        item: StackPosition(f"{tmp_path}/train.py:2 in step", "a wait for its GPU", waits=True),
        SYNCHRONIZE: StackPosition("/x/t.py:8 in step", "synchronize", waits=True),
    }
    assert not any(where.waits for text in on_gpu if (where := stacks.position(stacks.threads(text)[0])))
    works = item.replace("line 2", "line 3")
    assert roll_call.heading({0: item, 1: works, 2: item}, [], 3, 10.0, nccl=True)[1] == 1
    assert roll_call.heading({0: item, 1: works, 2: SYNCHRONIZE}, [], 3, 10.0, nccl=True)[1] == 1


def test_with_nccl_our_own_wait_for_a_loss_is_one_for_the_gpu() -> None:
    """Without users' frames a rank would seem to stand at its start."""
    number = next(i for i, line in enumerate(TIMING.read_text().splitlines(), 1) if "loss.item()" in line)
    waits = written(f"{TIMING}|{number}|loss_value", f"{TIMING}|1|run_launch")
    settles = written(f"{LIB}/torch/cuda/__init__.py|1|synchronize", f"{RANK.parents[1]}/instruments/clock.py|1|settle")
    for text in (waits, settles):
        found = stacks.position(stacks.threads(text)[0], nccl=True)
        assert found == StackPosition("", "a wait for its GPU", waits=True)
    line, guilty = roll_call.heading({0: waits, 1: BUILD}, [], 2, 10.0, nccl=True)
    assert line == "rank 0 of 2 blocked after 10 s in a wait for its GPU; rank 1 at /x/t.py:30 in build"
    assert guilty == 1


def test_with_nccl_ranks_that_all_wait_for_their_gpus_may_have_sent_different_tensors(item: str) -> None:
    for_gpus = "all ranks wait for their GPUs: most likely they called a collective with tensors of different"
    assert roll_call.mismatch_hint({0: item, 1: item}, [], nccl=True).startswith(for_gpus)
    assert roll_call.mismatch_hint({0: item, 1: item}, []) == ""


@pytest.mark.parametrize(
    ("found", "finished", "told"),
    [
        ({0: ALL_REDUCE, 1: ALL_REDUCE}, [], True),
        ({0: ALL_REDUCE, 1: BARRIER}, [], False),
        ({0: ALL_REDUCE}, [1], False),
        ({0: BUILD, 1: BUILD}, [], False),
        ({0: ALL_REDUCE, 1: ""}, [], False),
        ({0: QUEUE, 1: QUEUE}, [], False),
    ],
)
def test_ranks_that_hang_in_one_collective_must_have_called_different_ones(
    found: dict[int, str], finished: list[int], *, told: bool
) -> None:
    assert ("with tensors of different sizes or types" in roll_call.mismatch_hint(found, finished)) is told


def test_equal_stacks_are_listed_once_and_ours_not_at_all() -> None:
    assert stacks.listing({0: BUILD, 1: BUILD, 2: ""}) == (
        'ranks 0, 1:\n  File "/x/t.py", line 50 in test\n  File "/x/t.py", line 30 in build\n\n'
        "rank 2:\n  gave no stack: the rank was stopped, or in a system call that cannot be interrupted"
    )


def test_threads_that_wait_in_a_pool_or_run_our_code_are_not_listed() -> None:
    """The last one runs a function of the user's."""
    pool = ("/lib/concurrent/futures/thread.py|83|_worker", "/lib/threading.py|982|run", "/lib/threading.py|1002|start")
    ours = f"{RANK.parents[1]}/training/script_run.py|99|_measured", "/lib/concurrent/futures/thread.py|58|run", *pool
    threads = [written(*frames, thread="Thread 0x02") for frames in (("/x/t.py|3|load", *pool), ours, pool)]
    assert stacks.written("\n".join([*threads, BUILD])) == (
        f"{stacks.written(BUILD)}\n  another thread (1):\n"
        '  File "/lib/threading.py", line 1002 in start\n  File "/lib/threading.py", line 982 in run\n'
        '  File "/lib/concurrent/futures/thread.py", line 83 in _worker\n  File "/x/t.py", line 3 in load'
    )


def test_the_thread_that_answers_the_controller_is_not_listed_even_in_a_crash() -> None:
    answering = written(
        f"{RANK.parent}/faults/flight_recorder.py|1|_answer", "/lib/threading.py|982|run", thread="Thread"
    )
    assert stacks.written(f"{answering}\n{BUILD}", idle=True) == stacks.written(BUILD)


def test_the_rank_to_blame_is_listed_first() -> None:
    assert stacks.listing({0: ALL_REDUCE, 1: BUILD}, guilty=1).startswith("rank 1:\n")
    assert stacks.listing({0: ALL_REDUCE, 1: BUILD}).startswith("rank 0:\n")
    assert stacks.listing({0: ALL_REDUCE}, guilty=1).startswith("rank 1:\n  had finished\n\nrank 0:\n")
    assert stacks.listing({0: QUEUE}) == "rank 0:\n  in the queue of interleaved launches"


def test_a_path_with_letters_beyond_ascii_is_read_from_a_stack(tmp_path: Path) -> None:
    """faulthandler escapes them: such a line would not be found, and our own files there would pass as the user's."""
    file = tmp_path / "träning_学习.py"
    file.write_text("handle.wait()")
    text = written(
        f"{str(file).replace('ä', chr(92) + 'xe4').replace('学习', chr(92) + 'u5b66' + chr(92) + 'u4e60')}|1|step"
    )
    (found,) = stacks.threads(text)
    assert found[0].file == str(file)
    assert stacks.position(found) == StackPosition(f"{file}:1 in step", "", waits=True)
    assert stacks.threads(written(f"/x/{chr(92)}udce9.py|1|step"))[0][0].file == f"/x/{chr(92)}udce9.py", "no character"


def test_code_without_a_file_name_has_a_place() -> None:
    text = written("|3|step")
    assert stacks.position(stacks.threads(text)[0]) == StackPosition(":3 in step", "", waits=False)
    assert stacks.written(text) == '  File "", line 3 in step'
