"""Faults in the order of collectives, and of what a rank returns."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

from benchmarks.campaign.endings import Mute, started, throw
from benchmarks.campaign.kinds import STEPPED, STEPS, Place, hang, kind, kinds

SKIP = "leave out the next collective"
BLOCKED = r"different sizes|blocked after"


def _dist() -> Any:
    import torch.distributed as dist

    return dist


def _ones(count: int, dtype: str = "float32") -> Any:
    import torch

    return torch.ones(count, dtype=getattr(torch, dtype))


kinds(
    [
        ("leaves_out_a_collective", BLOCKED, lambda _: SKIP),
        ("sums_another_size", BLOCKED, lambda _: _dist().all_reduce(_ones(4096)) or SKIP),
        ("sums_a_smaller_size", BLOCKED, lambda _: _dist().all_reduce(_ones(3)) or SKIP),
        ("sums_another_type", BLOCKED, lambda _: _dist().all_reduce(_ones(84, "float64")) or SKIP),
        ("broadcasts_instead", BLOCKED, lambda _: _dist().broadcast(_ones(84), 0) or SKIP),
    ],
    phases=STEPPED,
    blame="majority",
)
kinds(
    [
        ("sums_alone", BLOCKED, lambda _: _dist().all_reduce(_ones(7))),
        ("gathers_alone", BLOCKED, lambda p: _dist().all_gather([_ones(8)] * p.case.world_size, _ones(8))),
        ("waits_at_a_barrier_alone", BLOCKED, lambda _: _dist().barrier()),
        ("makes_a_group_alone", BLOCKED, lambda _: _dist().all_reduce(_ones(4), group=_dist().new_group())),
        ("receives_from_nobody", r"in receives_from_nobody", lambda p: _dist().recv(_ones(4), src=p.case.other)),
        ("sends_to_nobody", r"in sends_to_nobody", lambda p: _dist().send(_ones(1 << 22), dst=p.case.other)),
        (
            "waits_in_a_thread",
            rf"in waits_in_a_thread|{BLOCKED}",
            lambda _: started(_dist().all_reduce, _ones(7)).join(),
        ),
        ("swaps_two_collectives", BLOCKED, lambda _: (_dist().broadcast(_ones(5), 0), _dist().all_reduce(_ones(9)))),
    ],
    phases=STEPS,
    blame="majority",
)
kinds(
    [
        (
            "destroys_the_group",
            r"Default process group has not been initialized|ended the process group|blocked after",
            lambda _: (_dist().destroy_process_group(), _dist().all_reduce(_ones(4))),
        ),
        (
            "initialises_again",
            r"initialize the default process group|calls init_process_group",
            lambda _: _dist().init_process_group("gloo"),
        ),
        (
            "gathers_into_too_few",
            r"ValueError|RuntimeError|AssertionError",
            lambda _: _dist().all_gather([_ones(4)], _ones(5)),
        ),
        ("sums_what_is_no_tensor", r"ValueError|RuntimeError|TypeError", lambda _: _dist().all_reduce([1, 2])),
    ],
    phases=STEPS,
)


class Read:
    """An object that does something while it is loaded."""

    def __init__(self, act: Any, *arguments: Any) -> None:
        self.act, self.arguments = act, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.act, self.arguments


class Sent(Read):
    """An object that does something while it is pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        self.act(*self.arguments)
        return int, ()


SENT_BACK, READ = r"cannot be sent back", r"cannot be read by the test session"
kinds(
    [
        ("returns_a_lock", SENT_BACK, lambda _: threading.Lock()),
        ("returns_a_generator", SENT_BACK, lambda _: (number for number in range(3))),
        ("raises_while_sent", rf"{SENT_BACK}(?s:.*)boom 7", lambda _: Sent(throw, ValueError("boom 7"))),
        ("interrupts_while_sent", rf"{SENT_BACK}(?s:.*)KeyboardInterrupt", lambda _: Sent(throw, KeyboardInterrupt())),
        ("exits_while_sent", rf"{SENT_BACK}(?s:.*)sys\.exit\(5\)", lambda _: Sent(sys.exit, 5)),
        ("raises_without_words_while_sent", rf"{SENT_BACK}(?s:.*)Mute", lambda _: Sent(throw, Mute())),
        ("ends_while_sent", r"exited with status 5", lambda _: Sent(os._exit, 5)),
        ("blocks_while_sent", r"in hang\b", lambda _: Sent(hang)),
        ("raises_while_read", rf"{READ}.*boom 7", lambda _: Read(throw, ValueError("boom 7"))),
        ("interrupts_while_read", rf"{READ}.*KeyboardInterrupt", lambda _: Read(throw, KeyboardInterrupt())),
        ("exits_while_read", rf"{READ}.*SystemExit", lambda _: Read(sys.exit, 5)),
        ("raises_without_words_while_read", rf"{READ}.*Mute", lambda _: Read(throw, Mute())),
        ("blocks_while_read", r"was not read by the test session before the deadline", lambda _: Read(time.sleep, 60)),
        ("imports_nothing_while_read", rf"{READ}.*no_such_module", lambda _: Read(__import__, "no_such_module")),
    ],
    phases=("result",),
)
kinds([("returns_much", r"(?!)", lambda _: bytes(80 << 20))], phases=("result",), passes="must")


@kind(rf"{SENT_BACK}(?s:.*)(RecursionError|deep|nested)", phases=("result",))
def returns_the_deep(_: Place) -> object:
    nested: list[Any] = []
    for _number in range(200_000):
        nested = [nested]
    return nested
