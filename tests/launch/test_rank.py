"""The process that a function finds itself in."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_ddpperf.launch.context import RankContext
    from pytest_ddpperf.launch.launcher import Launcher


def test_a_rank_is_a_plain_process_of_its_own(launcher: Launcher) -> None:
    def look(_ctx: RankContext) -> dict[str, object]:
        handlers = (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT)
        return {
            "leads its session": os.getsid(0) == os.getpid(),
            "input": sys.stdin.read(),
            "handlers": tuple(signal.getsignal(number) for number in handlers),
            "threads": [thread.name for thread in threading.enumerate()],
            "oom": Path("/proc/self/oom_score_adj").read_text(encoding="ascii").strip(),
            "files": [link for link in map(os.readlink, _open_files()) if link.startswith("/")],
        }

    def _open_files() -> list[str]:
        return [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")[:-1]]  # noqa: PTH208  less its own

    seen = launcher.run(look, world_size=2, device="cpu").rank(1)
    files = seen.pop("files")
    assert seen == {
        "leads its session": True,
        "input": "",
        "handlers": (signal.SIG_DFL, signal.SIG_DFL, signal.default_int_handler),
        "threads": ["MainThread"],
        "oom": "1000",
    }
    assert isinstance(files, list)
    own = [file for file in files if "/ddpperf-" not in file and "#" not in file and file != "/dev/null"]
    assert own == [], files


def test_what_a_rank_executes_inherits_none_of_our_files(launcher: Launcher) -> None:
    def inheritable(_ctx: RankContext) -> list[bool]:
        return [os.get_inheritable(descriptor) for descriptor in range(5)]

    # Standard streams; then the socket for the report, and the file for stacks.
    assert launcher.run(inheritable, world_size=1, device="cpu").rank(0) == [True, True, True, False, False]


def test_what_only_happens_at_exit_cannot_hang_a_launch(launcher: Launcher) -> None:
    def leaves_a_thread(ctx: RankContext) -> int:
        threading.Thread(target=threading.Event().wait, daemon=False).start()
        return ctx.rank

    assert launcher.run(leaves_a_thread, world_size=2, device="cpu", timeout=20).values == (0, 1)
