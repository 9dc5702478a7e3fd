"""What a failure on a rank says: the user's own frames, without those that lead to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import pytest_ddpperf
from pytest_ddpperf.launch.exceptions import failed_report

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


def shown(error: BaseException, *files: str) -> list[str]:
    """Those of the files that the traceback names, in its order."""
    lines = failed_report(error, "run").traceback.splitlines()
    return [file for line in lines for file in files if f'"{file}"' in line]


def own(name: str) -> str:
    return str(PACKAGE / name)


def test_frames_that_lead_to_the_users_code_are_left_out() -> None:
    files = (
        own("launch/rank.py"),
        own("training/launches.py"),
        own("instruments/counting/counting.py"),
        "/home/train.py",
    )
    assert shown(raised_in(*files), *files) == ["/home/train.py"]


def test_frames_of_instruments_below_the_users_code_stay() -> None:
    files = own("instruments/counting/counting.py"), "/home/train.py", own("instruments/counting/dispatch.py")
    assert shown(raised_in(*files), *files) == list(files[1:])


@pytest.mark.parametrize("last", [own("instruments/clock.py"), torch.__file__])
def test_a_failure_without_the_users_code_keeps_what_there_is(last: str) -> None:
    """It may be a fault of ours, and would else look like one of torch's."""
    files = own("training/loop.py"), own("instruments/phases/recorder.py"), last
    assert shown(raised_in(*files), *files) == list(files[1:])
