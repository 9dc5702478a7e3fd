"""Faults in the order of collectives."""

from __future__ import annotations

import threading
from typing import Any

from benchmarks.campaign.kinds import STEPS, Place, kind

SKIP = "leave out the next collective"
BLOCKED = r"different sizes|blocked after .* in (all_reduce|broadcast|barrier|backward|_engine)"


def _dist() -> Any:
    import torch.distributed as dist

    return dist


def _ones(count: int, dtype: str = "float32") -> Any:
    import torch

    return torch.ones(count, dtype=getattr(torch, dtype))


@kind(BLOCKED, phases=STEPS, blame="majority", ways=("launcher", "copy"))
def leaves_out_a_collective(_: Place) -> str:
    return SKIP


@kind(BLOCKED, phases=STEPS, blame="majority")
def sums_alone(_: Place) -> None:
    _dist().all_reduce(_ones(7))


@kind(BLOCKED, phases=STEPS, blame="majority", ways=("launcher", "copy"))
def sums_another_size(_: Place) -> str:
    _dist().all_reduce(_ones(4096))
    return SKIP


@kind(BLOCKED, phases=STEPS, blame="majority", ways=("launcher", "copy"))
def sums_a_smaller_size(_: Place) -> str:
    _dist().all_reduce(_ones(3))
    return SKIP


@kind(BLOCKED, phases=STEPS, blame="majority", ways=("launcher", "copy"))
def sums_another_type(_: Place) -> str:
    _dist().all_reduce(_ones(84, "float64"))  # as many as there are parameters
    return SKIP


@kind(BLOCKED, phases=("first step", "warm-up", "timed steps"), blame="majority", ways=("launcher", "copy"))
def broadcasts_instead(_: Place) -> str:
    _dist().broadcast(_ones(84), 0)
    return SKIP


@kind(r"in (barrier|gathers_instead|all_gather)|different sizes|blocked after", phases=STEPS, blame="majority")
def gathers_instead(place: Place) -> None:
    whole = [_ones(8) for _ in range(place.case.world_size)]
    _dist().all_gather(whole, _ones(8))


@kind(r"in waits_at_a_barrier_alone|blocked after|different sizes", phases=STEPS, blame="majority")
def waits_at_a_barrier_alone(_: Place) -> None:
    _dist().barrier()


@kind(r"in makes_a_group_alone|blocked after", phases=STEPS, blame="majority")
def makes_a_group_alone(_: Place) -> None:
    dist = _dist()
    group = dist.new_group()
    dist.all_reduce(_ones(4), group=group)


@kind(r"Default process group has not been initialized|ended the process group|blocked after", phases=STEPS)
def destroys_the_group(_: Place) -> None:
    dist = _dist()
    dist.destroy_process_group()
    dist.all_reduce(_ones(4))


@kind(r"initialize the default process group|calls init_process_group", phases=STEPS)
def initialises_again(_: Place) -> None:
    _dist().init_process_group("gloo")


@kind(r"in receives_from_nobody", phases=STEPS, blame="majority")
def receives_from_nobody(place: Place) -> None:
    _dist().recv(_ones(4), src=place.case.other)


@kind(r"in sends_to_nobody", phases=STEPS, blame="majority")
def sends_to_nobody(place: Place) -> None:
    _dist().send(_ones(1 << 22), dst=place.case.other)


@kind(r"ValueError|RuntimeError|AssertionError", phases=STEPS)
def gathers_into_too_few(_: Place) -> None:
    _dist().all_gather([_ones(4)], _ones(5))


@kind(r"in waits_in_a_thread|blocked after|different sizes", phases=STEPS, blame="majority")
def waits_in_a_thread(_: Place) -> None:
    thread = threading.Thread(target=_dist().all_reduce, args=(_ones(7),))
    thread.start()
    thread.join()


@kind(r"different sizes|blocked after", phases=STEPS, blame="majority")
def swaps_two_collectives(_: Place) -> None:
    _dist().broadcast(_ones(5), 0)
    _dist().all_reduce(_ones(9))


@kind(r"ValueError|RuntimeError|TypeError", phases=STEPS)
def sums_what_is_no_tensor(_: Place) -> None:
    _dist().all_reduce([1, 2])
