"""What the kernel tells of processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from pytest_ddpperf.launch import processes


def test_children_are_found_until_they_are_reaped() -> None:
    before = processes.children()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert processes.children() - before == {child.pid}
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert child.pid in processes.children()  # ended, not reaped
    assert child.pid not in processes.children()


def test_a_process_is_found_by_its_environment() -> None:
    environ = {**os.environ, "DDPPERF_TEST_MARK": "one"}
    with subprocess.Popen([sys.executable, "-c", "print(); input()"], stdin=-1, stdout=-1, env=environ) as child:
        assert child.stdout is not None
        child.stdout.readline()  # it runs: until the new program is loaded, its environment is still ours
        assert processes.marked("DDPPERF_TEST_MARK", "one") == {child.pid}
        assert processes.marked("DDPPERF_TEST_MARK", "on") == set()
        processes.kill(child.pid, group=True)
        assert child.wait(5) == -signal.SIGKILL


def test_killing_what_is_gone_is_no_error() -> None:
    with subprocess.Popen(["true"]) as child:
        child.wait(5)
    processes.kill(child.pid, group=True)


def test_kills_for_want_of_memory_are_counted() -> None:
    assert processes.out_of_memory_kills() >= 0


def test_a_variable_is_overwritten_where_others_see_it() -> None:
    code = (
        "import os, pathlib; from pytest_ddpperf.launch.processes import overwrite_variable\n"
        "overwrite_variable('MARKED', 'new'); print(os.environ['MARKED'])\n"
        "print(b'MARKED=new' in pathlib.Path('/proc/self/environ').read_bytes().split(bytes(1)))\n"
        "try: overwrite_variable('MARKED', 'longer')\n"
        "except ValueError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "MARKED": "old"}, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["new", "True", "MARKED cannot become 'longer'"]
