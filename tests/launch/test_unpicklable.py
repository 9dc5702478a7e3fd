"""The sentence that names what cannot be sent."""

from __future__ import annotations

import functools
import os
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_ddpperf.errors import PayloadError
from pytest_ddpperf.launch.messages import Call
from pytest_ddpperf.launch.payload import dump_call

GUARD = threading.Lock()


@dataclass
class Trainer:
    name: str = "t"
    lock: Any = field(default_factory=threading.Lock)

    def build(self, _ctx: object) -> str:
        return self.name


class Slotted:
    __slots__ = ("lock",)

    def __init__(self) -> None:
        self.lock = threading.Lock()


def uses_global(_ctx: object) -> bool:
    return GUARD.locked()


def plain(_ctx: object, *_: object, **__: object) -> None:
    return None


def test_a_closure_variable_is_named_with_its_function() -> None:
    trainer = Trainer()

    def build(_ctx: object) -> str:
        return trainer.name

    place = f"{os.path.relpath(__file__)}:{build.__code__.co_firstlineno}"
    with pytest.raises(PayloadError) as caught:
        dump_call(Call(build, ()))
    assert str(caught.value) == (
        f"build ({place}) cannot be sent to the ranks: closure variable 'trainer' of build ({place}) -> "
        "attribute 'lock' of test_unpicklable.Trainer is a _thread.lock: cannot pickle '_thread.lock' object; "
        "create this object inside the function"
    ).replace("test_unpicklable.Trainer", f"{__name__}.Trainer")


@pytest.mark.parametrize(
    ("function", "arguments", "way"),
    [
        (uses_global, (), "global 'GUARD' used by uses_global ("),
        (functools.partial(plain, x=GUARD), (), "argument 'x' of partial(plain ("),
        (plain, (1, {"deep": [0, GUARD]}), "argument 1 -> key 'deep' -> item 1 is a _thread.lock"),
        (plain, (Slotted(),), ".Slotted is a _thread.lock"),
        (Trainer().build, (), "instance of method build -> attribute 'lock' of "),
        (lambda _ctx, x=GUARD: x, (), "default 0 of <lambda> ("),
    ],
)
def test_the_path_to_the_object_that_cannot_be_pickled_is_named(
    function: Any, arguments: tuple[object, ...], way: str
) -> None:
    with pytest.raises(PayloadError, match="cannot be sent to the ranks") as caught:
        dump_call(Call(function, arguments))
    assert way in str(caught.value)
    assert "cannot pickle '_thread.lock' object" in str(caught.value)


def test_a_fixture_in_a_closure_is_named_and_not_its_parts(request: pytest.FixtureRequest) -> None:
    def build(_ctx: object) -> str:
        return str(request.node)

    with pytest.raises(PayloadError) as caught:
        dump_call(Call(build, ()))
    assert "closure variable 'request' of build (" in str(caught.value)
    assert str(caught.value).endswith(
        "is a _pytest.fixtures.TopRequest: this object is part of pytest; read the needed values before the call"
    )


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (ValueError("not me"), "ValueError: not me"),
        (MemoryError(), "MemoryError"),
        (ValueError("h" * 20_000_000), f"ValueError: {'h' * 400}..."),
    ],
    ids=["with a word", "without a word", "of 20 MB"],
)
def test_an_object_that_refuses_is_shown_with_its_own_reason_briefly(raised: Exception, told: str) -> None:
    class Shy:
        def __reduce__(self) -> str:
            raise raised

    with pytest.raises(PayloadError, match=r"argument 0 is a .*Shy: ") as caught:
        dump_call(Call(plain, (Shy(),)))
    assert str(caught.value).endswith(f"Shy: {told}; create this object inside the function")
