"""The zygote and its controller: how each takes the end of the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytest_ddpperf.launch.launcher import Launcher

CONTROLLER = """
import os, signal, subprocess, sys
from pathlib import Path
from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.launch.launcher import Launcher

def block(ctx, folder):
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    pids = f"{os.getpid()} {os.getppid()} {child.pid}"
    part = Path(folder, f"{ctx.rank}.part")
    part.write_text(pids)
    part.rename(part.with_suffix(".pids"))
    signal.pause()

try:
    Launcher().run(block, sys.argv[1], world_size=2, device="cpu", backend="gloo", timeout=60)
except LaunchError as error:
    print(error)
except KeyboardInterrupt:
    print("interrupted", {"torch", "numpy"} & set(sys.modules))
"""


def blocked_controller(folder: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """A controller whose ranks block, and the pids of its zygote, ranks and grandchildren."""
    (folder / "controller.py").write_text(CONTROLLER)
    command = [sys.executable, str(folder / "controller.py"), str(folder)]
    controller = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while len(list(folder.glob("*.pids"))) < 2:
        assert controller.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    pids = {int(pid) for path in folder.glob("*.pids") for pid in path.read_text().split()}
    assert len(pids) == 5
    return controller, sorted(pids)


def test_nothing_outlives_a_killed_controller(tmp_path: Path, all_gone: Callable[[Iterable[int]], bool]) -> None:
    controller, pids = blocked_controller(tmp_path)
    with controller:
        controller.kill()
        assert all_gone(pids)


def test_nothing_outlives_a_killed_zygote(tmp_path: Path, all_gone: Callable[[Iterable[int]], bool]) -> None:
    controller, pids = blocked_controller(tmp_path)
    with controller:
        zygote = int((tmp_path / "0.pids").read_text().split()[1])
        os.kill(zygote, signal.SIGKILL)
        output, _ = controller.communicate(timeout=20)
        assert output == "the process that ranks are forked from was killed by SIGKILL; the ranks were stopped\n"
        assert all_gone(pids)


def test_ctrl_c_ends_everything_and_comes_through(tmp_path: Path, all_gone: Callable[[Iterable[int]], bool]) -> None:
    controller, pids = blocked_controller(tmp_path)
    with controller:
        controller.send_signal(signal.SIGINT)
        output, _ = controller.communicate(timeout=20)
        assert output == "interrupted set()\n"  # the controller has imported neither torch nor numpy
        assert all_gone(pids)


@pytest.mark.slow  # the kernel sends SIGTERM to the zygote of a killed controller too
def test_a_terminated_zygote_takes_its_ranks_along(tmp_path: Path, all_gone: Callable[[Iterable[int]], bool]) -> None:
    controller, pids = blocked_controller(tmp_path)
    with controller:
        zygote = int((tmp_path / "0.pids").read_text().split()[1])
        os.kill(zygote, signal.SIGTERM)
        output, _ = controller.communicate(timeout=20)
        assert output == "the process that ranks are forked from exited with status 0; the ranks were stopped\n"
        assert all_gone(pids)


def test_the_zygote_has_one_thread(launcher: Launcher) -> None:
    def threads(_ctx: object) -> int:
        return len(os.listdir(f"/proc/{os.getppid()}/task"))  # noqa: PTH208

    assert launcher.run(threads, world_size=1, device="cpu").rank(0) == 1


def test_a_forked_copy_of_the_controller_leaves_the_zygote_alone(launcher: Launcher) -> None:
    def parent(_ctx: object) -> int:
        return os.getppid()

    zygote = launcher.run(parent, world_size=1, device="cpu").rank(0)
    copy = os.fork()
    if copy == 0:
        try:
            launcher.close()
        finally:
            os._exit(0)
    os.waitpid(copy, 0)
    assert launcher.run(parent, world_size=1, device="cpu").rank(0) == zygote
