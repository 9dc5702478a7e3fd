"""How often ``ddpperf network --check`` names a planted slow rank and a planted slow link, on real ranks.

    python benchmarks/network_faults.py                   # as root, for links are shaped in network namespaces
    python benchmarks/network_faults.py --sweeps 3 --only link

Faults take turns, so that all see the same moods of the machine:

nothing       no fault is planted.
slow rank     rank 1 computes for 5 ms before it begins a collective.
slow link     what ranks 1 and 2 send each other is limited to 1 Gbit/s, by a queue (tc, htb) at either end.
slow rank's   the same for all links of rank 2.
links

Each sweep is told as the command tells it. Three and four ranks share two cores: there the command names links, and no
late ranks. What it would say of ranks with a core for each stands beside, as ``enough cores``.

Goal: at least nine of ten planted faults are named, and nothing else; nothing is named where nothing is planted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.analysis.costs import COLLECTIVES
from pytest_ddpperf.cli.network import check_lines
from pytest_ddpperf.launch.environment import thread_variables
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.network import RankSweep, SweepPlan
from pytest_ddpperf.reports.phrases import environment_text
from pytest_ddpperf.run.predict.network import MeasuredNetwork, measure_network, network_environment, sizes_between

if TYPE_CHECKING:
    from typing_extensions import Self

    from pytest_ddpperf.launch.context import RankContext

GOAL = 0.9
DELAY = 0.005  # seconds that a slow rank computes before each collective
RATE = "1gbit"  # of a slow link
TIMEOUT = 300.0  # seconds
LATE_RANK, SLOW_LINK, SLOW_ENDS = 1, (1, 2), 2
INTERFACE = "ddpperf0"  # of a rank, in its namespace
_SENTENCES = re.compile(
    r"(?P<rank>rank (\d+) is slow)|(?P<links>every link of rank (\d+))|(?P<link>the link of ranks (\d+) and (\d+))"
)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is planted in a group of ranks, and what has to be named."""

    name: str
    ranks: int
    truth: frozenset[str] = frozenset()
    delays: Mapping[int, float] = field(default_factory=dict)  # of ranks, before each collective
    slow: frozenset[tuple[int, int]] = frozenset()  # who sends slowly to whom


def faults() -> Iterator[Fault]:
    """Each fault that is planted."""
    for ranks in (2, 3, 4):
        yield Fault(name="nothing", ranks=ranks)
        yield Fault(name="slow rank", ranks=ranks, truth=frozenset({f"rank {LATE_RANK}"}), delays={LATE_RANK: DELAY})
    for ranks in (3, 4):
        pairs = frozenset(permutations(range(ranks), 2))
        yield Fault(
            name="slow link",
            ranks=ranks,
            truth=frozenset({"link {} {}".format(*SLOW_LINK)}),
            slow=frozenset(pair for pair in pairs if {*pair} == {*SLOW_LINK}),
        )
        yield Fault(
            name="slow rank's links",
            ranks=ranks,
            truth=frozenset({f"links {SLOW_ENDS}"}),
            slow=frozenset(pair for pair in pairs if SLOW_ENDS in pair),
        )


class Namespaces:
    """A network namespace for each rank, all on one bridge; what some send to others is limited to a rate."""

    def __init__(self, ranks: int, slow: frozenset[tuple[int, int]], rate: str = RATE) -> None:
        self._slow, self._rate = slow, rate
        self.hub = f"ddpnf{os.getpid()}"
        self.names = tuple(f"{self.hub}r{rank}" for rank in range(ranks))
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        try:
            for name in (self.hub, *self.names):
                _run("ip", "netns", "add", name)
                self._open.callback(_run, "ip", "netns", "del", name)
            _run("ip", "-n", self.hub, "link", "add", "bridge", "type", "bridge")
            _run("ip", "-n", self.hub, "link", "set", "bridge", "up")
            for rank, name in enumerate(self.names):
                self._join(rank, name)
            for rank, name in enumerate(self.names):
                self._limit(name, [other for sender, other in sorted(self._slow) if sender == rank])
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _join(self, rank: int, name: str) -> None:
        port = f"port{rank}"
        own = ("link", "add", INTERFACE, "netns", name, "type", "veth", "peer", "name", port, "netns", self.hub)
        _run("ip", *own)
        _run("ip", "-n", self.hub, "link", "set", port, "master", "bridge", "up")
        _run("ip", "-n", name, "address", "add", f"{address(rank)}/24", "dev", INTERFACE)
        for interface in ("lo", INTERFACE):
            _run("ip", "-n", name, "link", "set", interface, "up")

    def _limit(self, name: str, others: Sequence[int]) -> None:
        """Limit what this namespace sends to ``others``, together; all else has no limit that matters."""
        if not others:
            return
        tc = ("tc", "-n", name)
        _run(*tc, "qdisc", "add", "dev", INTERFACE, "root", "handle", "1:", "htb", "default", "1")
        for number, rate in (("1", "100gbit"), ("2", self._rate)):
            kind = ("htb", "rate", rate, "quantum", "60000")
            _run(*tc, "class", "add", "dev", INTERFACE, "parent", "1:", "classid", f"1:{number}", *kind)
        for other in others:
            match = ("u32", "match", "ip", "dst", f"{address(other)}/32", "flowid", "1:2")
            _run(*tc, "filter", "add", "dev", INTERFACE, "parent", "1:", "protocol", "ip", *match)


def address(rank: int) -> str:
    """That of a rank, in its namespace."""
    return f"10.213.9.{rank + 1}"


def planted(ctx: RankContext, plan: SweepPlan, delays: Mapping[int, float], names: Sequence[str]) -> RankSweep:
    """A sweep with a fault: a rank that computes before each collective, or ranks in namespaces of their own."""
    import time

    import torch.distributed as dist

    from pytest_ddpperf.instruments.network import sweep

    if names:
        regroup(ctx, names[ctx.rank])
    delay = delays.get(ctx.rank, 0.0)

    def late(call: Any, *args: Any, **kwargs: Any) -> Any:
        end = time.perf_counter() + delay
        while time.perf_counter() < end:
            pass
        return call(*args, **kwargs)

    if delay:  # of this process, which lives for one launch
        for name in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast"):
            setattr(dist, name, partial(late, getattr(dist, name)))
    return sweep(ctx, plan)


def regroup(ctx: RankContext, namespace: str) -> None:
    """Make the group anew from inside a network namespace."""
    import ctypes
    import os
    from pathlib import Path

    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    dist.destroy_process_group()
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/run/netns/{namespace}").open(encoding="ascii") as there:
        if libc.setns(there.fileno(), 0x40000000) != 0:  # CLONE_NEWNET
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {namespace}")
    os.environ["GLOO_SOCKET_IFNAME"] = "ddpperf0"
    again = PrefixStore("in namespaces", store)
    dist.init_process_group("gloo", store=again, rank=ctx.rank, world_size=ctx.world_size)


def measured(launcher: Launcher, fault: Fault, plan: SweepPlan) -> MeasuredNetwork:
    """A sweep over ranks with a fault."""
    here = network_environment(launcher, fault.ranks, "cpu", "gloo")
    with contextlib.ExitStack() as opened:
        names = opened.enter_context(Namespaces(fault.ranks, fault.slow)).names if fault.slow else ()
        function = partial(planted, delays=fault.delays, names=names)
        return measure_network(launcher, here, plan, TIMEOUT, function)


def told(network: MeasuredNetwork) -> frozenset[str]:
    """What the command names, such as ``rank 1``, ``link 1 2`` or ``links 2``."""
    found = set()
    for line in check_lines(network, "auto", ()):
        said = _SENTENCES.match(line)
        if said is None:
            found.add(line)
        else:
            numbers = (group for group in said.groups() if group and group.isdigit())
            found.add(" ".join((str(said.lastgroup), *numbers)))
    return frozenset(found)


def with_enough_cores(network: MeasuredNetwork) -> MeasuredNetwork:
    """The same sweep, taken as that of a machine with a core for each rank."""
    here = network.environment
    return replace(network, environment=replace(here, cores=max(here.cores, here.world_size * here.threads)))


def why_not() -> str:
    """Why no link can be shaped here; empty where it can."""
    try:
        with Namespaces(2, frozenset({(0, 1)})):
            return ""
    except FileNotFoundError:
        return "iproute2 is not installed"
    except subprocess.CalledProcessError as error:
        return f"links cannot be shaped here: {error.stderr.strip()}"


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=10, help="of each fault (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="of a sweep (default: %(default)s, as the command's)")
    parser.add_argument("--max-size", type=int, default=2**20, help="of a collective (default: %(default)s bytes)")
    parser.add_argument("--only", default="", help="faults whose names have this")
    parser.add_argument("--show", action="store_true", help="what each sweep is told to have")
    options = parser.parse_args()
    reason = why_not()
    chosen = [fault for fault in faults() if options.only in fault.name and not (reason and fault.slow)]
    right: Counter[tuple[int, str]] = Counter()
    wrong: dict[int, Counter[str]] = {number: Counter() for number in range(len(chosen))}
    with Launcher(threads=thread_variables(os.environ)) as launcher:
        print(environment_text(network_environment(launcher, 2, "cpu", "gloo")), reason, sep="\n")
        print(
            f"{options.sweeps} sweeps of each fault, {options.rounds} rounds, up to {options.max_size} B\n", flush=True
        )
        for turn in range(options.sweeps):
            for number, fault in enumerate(chosen):
                sizes = sizes_between(2**10, options.max_size, fault.ranks)
                plan = SweepPlan(collectives=COLLECTIVES, sizes=sizes, rounds=options.rounds, seed=turn)
                network = measured(launcher, fault, plan)
                for way, seen in (("here", network), ("enough cores", with_enough_cores(network))):
                    names = told(seen)
                    right[number, way] += names == fault.truth
                    if names != fault.truth:
                        wrong[number][f"{way}: {', '.join(sorted(names)) or 'nothing'}"] += 1
                if options.show:
                    print(turn, fault.name, fault.ranks, *told(seen), sep="; ", flush=True)
    print(f"{'fault':<18}{'ranks':>6}{'has to be named':>17}{'right here':>12}{'enough cores':>14}   said else")
    missed = False
    for number, fault in enumerate(chosen):
        here, enough = (right[number, way] / options.sweeps for way in ("here", "enough cores"))
        others = "; ".join(f"{words} ({times})" for words, times in wrong[number].most_common())
        truth = ", ".join(fault.truth) or "-"
        print(f"{fault.name:<18}{fault.ranks:>6}{truth:>17}{here:>12.0%}{enough:>14.0%}   {others}")
        missed |= enough < (GOAL if fault.truth else 1.0)
    print(f"\ngoal: {'missed' if missed else 'reached'}")
    sys.exit(missed)


if __name__ == "__main__":
    main()
