"""What a failure on a rank says: the user's own frames, without those that lead to them."""

from __future__ import annotations

from pathlib import Path

import pytest

import pytest_ddpperf
from pytest_ddpperf.launch.exceptions import describe

PACKAGE = Path(pytest_ddpperf.__file__).parent


def raised_in(*files: str) -> BaseException:
    """What is raised in the last of these files, each of which calls into the next one."""

    def last() -> None:
        raise ValueError("wrong shape")

    call = last
    for file in reversed(files):
        namespace = {"inner": call}
        exec(compile("def call():\n    inner()", file, "exec"), namespace)  # noqa: S102  a frame in that file
        call = namespace["call"]
    with pytest.raises(ValueError, match="wrong shape") as caught:
        call()
    error = caught.value
    return error.with_traceback(
        error.__traceback__ and error.__traceback__.tb_next
    )  # without this function's own frame


def shown(error: BaseException, *files: str) -> list[str]:
    """Those of the files that the traceback names, in its order."""
    lines = describe(error, "run").traceback.splitlines()
    return [file for line in lines for file in files if f'"{file}"' in line]


def own(name: str) -> str:
    return str(PACKAGE / name)


def test_frames_that_lead_to_the_users_code_are_left_out() -> None:
    files = (
        own("launch/rank.py"),
        own("training/counting.py"),
        own("instruments/counting/counting.py"),
        "/home/train.py",
    )
    assert shown(raised_in(*files), *files) == ["/home/train.py"]


def test_frames_of_instruments_below_the_users_code_stay() -> None:
    files = own("instruments/counting/counting.py"), "/home/train.py", own("instruments/counting/dispatch.py")
    assert shown(raised_in(*files), *files) == list(files[1:])


def test_a_failure_that_starts_elsewhere_keeps_what_there_is() -> None:
    files = own("strategies/naive.py"), own("instruments/clock.py")
    assert shown(raised_in(*files), *files) == list(files)
