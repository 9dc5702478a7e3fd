"""Faults that are exceptions."""

from __future__ import annotations

import sys
import warnings
from typing import Any, NoReturn

from benchmarks.campaign.kinds import LOADED, STEPS, Place, kind

HERE = (*STEPS, "import", "join")


class Rude(BaseException):
    pass


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Leaver(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class Odd(Exception):
    __module__ = None  # type: ignore[assignment]


class Bound(Exception):
    def __init__(self, one: object, two: object) -> None:
        super().__init__(one)
        self.two = two

    def __reduce__(self) -> NoReturn:
        raise TypeError("not by pickle")


@kind(r"ValueError: boom 7")
def raises(_: Place) -> None:
    raise ValueError("boom 7")


@kind(r"Rude: boom 7")
def raises_base(_: Place) -> None:
    raise Rude("boom 7")


@kind(r"sys\.exit\(3\)")
def exits_by_sys(_: Place) -> None:
    sys.exit(3)


@kind(r"sys\.exit\((0|)\)")
def exits_by_sys_with_success(_: Place) -> None:
    sys.exit(0)


@kind(r"sys\.exit\('enough'\)")
def exits_by_sys_with_words(_: Place) -> None:
    sys.exit("enough")


@kind(r"KeyboardInterrupt")
def interrupts(_: Place) -> None:
    raise KeyboardInterrupt


@kind(r"Mute\b(?s:.*)in raises_without_words")
def raises_without_words(_: Place) -> None:
    raise Mute


@kind(r"Leaver\b(?s:.*)in raises_leaving_words")
def raises_leaving_words(_: Place) -> None:
    raise Leaver


@kind(r"ValueError: link 2999(?s:.*)in raises_a_chain")
def raises_a_chain(_: Place) -> None:
    error: BaseException = ValueError("first")
    for number in range(3000):
        after = ValueError(f"link {number}")
        after.__cause__ = error
        error = after
    raise error


@kind(r"ValueError: boom 7")
def raises_a_circle(_: Place) -> None:
    first, second = ValueError("boom 7"), KeyError("back")
    first.__cause__, second.__cause__ = second, first
    raise first


@kind(r"ValueError: long")
def raises_long_words(_: Place) -> None:
    raise ValueError("long " + "x" * 20_000_000)


@kind(r"ValueError: many")
def raises_many_lines(_: Place) -> None:
    raise ValueError("many\n" * 1_000_000)


@kind(r"(ExceptionGroup|ValueError): two faults")
def raises_a_group(_: Place) -> None:
    group: Any = getattr(__import__("builtins"), "ExceptionGroup", None)
    raise ValueError("two faults") if group is None else group("two faults", [ValueError("a"), KeyError("b")])


@kind(r"Odd: boom 7")
def raises_without_module(_: Place) -> None:
    raise Odd("boom 7")


@kind(r"Bound: boom 7")
def raises_unpicklable(_: Place) -> None:
    raise Bound("boom 7", lambda: None)


@kind(r"RecursionError")
def recurses(place: Place) -> None:
    recurses(place)


@kind(r"ran out of memory: MemoryError|MemoryError")
def raises_memory_error(_: Place) -> None:
    raise MemoryError


@kind(r"StopIteration")
def raises_stop_iteration(_: Place) -> None:
    next(iter(()))


@kind(r"GeneratorExit")
def raises_generator_exit(_: Place) -> None:
    raise GeneratorExit


@kind(r"ValueError: .*boom 7")
def raises_control_characters(_: Place) -> None:
    raise ValueError("\x1b[2J\x00 \ud800 boom 7")


@kind(r"(failed: |Failed: )?boom 7")
def fails_by_pytest(_: Place) -> None:
    import pytest

    pytest.fail("boom 7")


@kind(r"RuntimeError: .*(size|shape|mat1)", phases=LOADED)
def raises_in_torch(_: Place) -> None:
    import torch

    torch.ones(3, 4) @ torch.ones(3, 4)


@kind(r"ValueError: deep")
def raises_from_the_deep(_: Place) -> None:
    def down(depth: int) -> None:
        if depth == 0:
            raise ValueError("deep")
        down(depth - 1)

    down(700)


@kind(r"AssertionError: no equal")
def asserts(_: Place) -> None:
    raise AssertionError("no equal")


@kind(r"UserWarning: boom 7")
def warns_as_error(_: Place) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.warn("boom 7", stacklevel=1)


@kind(r"OSError: .*[Tt]imed out|TimeoutError: .*Connection closed by peer")
def raises_like_a_victim(_: Place) -> None:
    raise TimeoutError("Connection closed by peer")


@kind(r"ModuleNotFoundError: .*no_such_module", phases=HERE)
def imports_nothing(_: Place) -> None:
    __import__("no_such_module")


@kind(r"UnicodeDecodeError")
def decodes(_: Place) -> None:
    b"\xff".decode("utf-8")
