"""Ranks of two nodes, of which the other is an agent in a thread of this process."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.errors import LaunchError, RankFailed, RankSkipped, RanksTimedOut, SettingError
from pytest_ddpperf.instruments.clock import system_time
from pytest_ddpperf.launch import processes
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.launchers import AUTO, Launchers
from pytest_ddpperf.launch.link import Close, ForeignPeer, Link, LinkEnded, Question, connect
from pytest_ddpperf.launch.nodes.agent import Agent
from pytest_ddpperf.launch.nodes.cluster import Cluster, offset, require_one_agent
from pytest_ddpperf.launch.nodes.launchers import NodeLaunchers, spread
from pytest_ddpperf.launch.nodes.meeting import Hello, Role
from pytest_ddpperf.records.launch import CpuHealth, Health
from tests.factories import run_on_cpu

NEEDED = {"torch": "2.13.0", "the tests": "f00d"}
AT_ONCE = 5.0
PRELOAD = ("pytest_ddpperf.launch.rank",)


def hello(rank: int, machine: str = "a", **other: Any) -> Hello:
    cores = frozenset(os.sched_getaffinity(0))
    return Hello(rank=rank, host=f"host-{machine}", machine=machine, cores=cores, needed=NEEDED, **other)


LACKING = replace(hello(1, "b"), needed={**NEEDED, "torch": "2.11.0"})


class Tasks:
    """A controller, and tasks that follow it in threads."""

    def __init__(self, *others: Hello) -> None:
        self.cluster = Cluster("127.0.0.1", hello(0), 1 + len(others))
        self.links: list[Link] = []
        self.agents: dict[int, Agent] = {}
        self.roles: dict[int, Role] = {}
        self.statuses: dict[int, int] = {}
        self._threads = [threading.Thread(target=self._follow, args=(other,), daemon=True) for other in others]
        for thread in self._threads:
            thread.start()

    def _follow(self, own: Hello) -> None:
        card = self.cluster.card
        link = connect((card.host, card.port), card.key, {"task": own.plain()})
        self.links.append(link)
        with contextlib.suppress(LinkEnded):
            role = link.receive()
            if isinstance(role, Role):
                self.roles[own.rank] = role
                if role.node is not None:
                    agent = self.agents[own.rank] = Agent(link, self.cluster.card, role.node, lambda _: None)
                    self.statuses[own.rank] = agent.serve()
            last = link.receive() if own.rank not in self.statuses else None
            if isinstance(last, Close):
                self.statuses[own.rank] = last.status
        link.close()

    def close(self, status: int = 0) -> None:
        self.cluster.close(status)
        for thread in self._threads:
            thread.join(30)


@pytest.fixture(scope="module")
def two(launcher: Launcher) -> Iterator[tuple[Cluster, Launcher]]:
    """A controller of two nodes and its launcher; the launchers of all nodes copy the zygote of one."""

    def copying(*, like: Launcher | None, **arguments: Any) -> Launcher:
        return Launcher(like=like or launcher, **arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("pytest_ddpperf.launch.nodes.agent.Launcher", copying)
        tasks = Tasks(hello(1, "b"))
        tasks.cluster.gather(20)
        with Launcher(like=launcher, nodes=NodeLaunchers(tasks.cluster, PRELOAD)) as first:
            yield tasks.cluster, first
        tasks.close(3)
    assert tasks.statuses == {1: 3}


def total(ctx: RankContext) -> float:
    import torch
    import torch.distributed as dist

    summed = torch.tensor([float(ctx.rank + 1)])
    dist.all_reduce(summed)
    return float(summed.item())


def test_ranks_of_two_nodes_make_one_group(two: tuple[Cluster, Launcher]) -> None:
    def look(ctx: RankContext) -> tuple[object, ...]:
        print(f"rank {ctx.rank} was here")
        names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "GLOO_SOCKET_IFNAME")
        return total(ctx), ctx.local_rank, ctx.local_world_size, *(os.environ[name] for name in names)

    result = run_on_cpu(two[1], look, world_size=4)
    assert result.values == (
        (10.0, 0, 2, "0", "0", "2", "0", "2", "lo"),
        (10.0, 1, 2, "1", "1", "2", "0", "2", "lo"),
        (10.0, 0, 2, "2", "0", "2", "1", "2", "lo"),
        (10.0, 1, 2, "3", "1", "2", "1", "2", "lo"),
    )
    assert [output.stdout for output in result.outputs] == [f"rank {rank} was here\n" for rank in range(4)]


def test_ranks_that_make_their_group_by_themselves_find_the_store(two: tuple[Cluster, Launcher]) -> None:
    def joins(ctx: RankContext) -> float:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        return total(ctx)

    result = run_on_cpu(two[1], joins, own_group=True)
    assert result.values == (3.0, 3.0)


def test_variables_that_a_test_has_changed_reach_the_ranks_of_other_nodes(
    two: tuple[Cluster, Launcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(_: RankContext) -> tuple[str | None, ...]:
        return os.environ.get("DDPPERF_TRIED"), os.environ.get("HOME")

    monkeypatch.setenv("DDPPERF_TRIED", "yes")
    monkeypatch.delenv("HOME")
    assert run_on_cpu(two[1], read).values == (("yes", None),) * 2
    monkeypatch.undo()
    assert run_on_cpu(two[1], read).values == ((None, os.environ.get("HOME")),) * 2


def test_a_rank_of_another_node_that_raises_is_reported_first_with_its_output(two: tuple[Cluster, Launcher]) -> None:
    def raises(ctx: RankContext) -> None:
        if ctx.rank == 1:
            print("about to")
            raise ValueError("boom")
        total(ctx)

    start = time.monotonic()
    with pytest.raises(RankFailed) as caught:
        run_on_cpu(two[1], raises)
    assert time.monotonic() - start < AT_ONCE
    assert str(caught.value).startswith("rank 1 of 2 raised ValueError: boom\n")
    assert any("about to" in text for _, text in caught.value.sections)


def test_a_rank_of_another_node_that_waits_for_ever_is_shown_with_its_stack(two: tuple[Cluster, Launcher]) -> None:
    def waits_for_nothing(ctx: RankContext) -> None:
        while ctx.rank == 1:
            signal.pause()  # the request for its stack wakes it
        total(ctx)

    with pytest.raises(RanksTimedOut) as caught:
        run_on_cpu(two[1], waits_for_nothing, timeout=1.0)
    assert caught.value.rank == 1
    assert "in waits_for_nothing" in str(caught.value)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed modules that note the processes which import them; one of them reads its rank."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    note = "import os, time\nwith open(__file__ + '.pids', 'a') as file: print(os.getpid(), file=file)\n"
    wait = "end = time.monotonic() + 0.002\nwhile time.monotonic() < end: pass\n"
    (folder / "alike_on_nodes.py").write_text(f"{note}{wait}")
    (folder / "own_on_nodes.py").write_text(f"{note}RANK = int(os.environ['RANK'])\n{wait}")
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    return folder


def importers(folder: Path, module: str) -> list[int]:
    return [int(word) for word in (folder / f"{module}.py.pids").read_text().split()]


def test_imports_seen_on_ranks_are_made_once_on_each_node(two: tuple[Cluster, Launcher], installed: Path) -> None:
    """A module that reads its rank is imported for each rank of the controller's node, and by those of others.

    A launcher of the node copies the zygote of one with the same arguments.
    """

    def imports(_: RankContext) -> tuple[int, int, int]:
        import alike_on_nodes  # type: ignore[import-not-found]
        import own_on_nodes  # type: ignore[import-not-found]

        assert alike_on_nodes
        return os.getpid(), os.getppid(), own_on_nodes.RANK

    def make(first: Launcher | None) -> Launcher:
        return Launcher(like=first or two[1], nodes=NodeLaunchers(two[0], PRELOAD))

    (_, original) = run_on_cpu(two[1], lambda _: os.getppid()).values
    with contextlib.closing(Launchers(make, [AUTO])) as launchers:
        first = run_on_cpu(launchers[0], imports, world_size=4)
        assert processes._stat(first.values[3][1])[1] == str(original)
        launchers.note("scope", first.imports)
        launchers.wait(1, "scope", 4)
        second = run_on_cpu(launchers[0], imports, world_size=4)
        pids, parents, ranks = zip(*second.values, strict=True)
        assert ranks == (0, 1, 2, 3)
        before = {pid for pid, *_ in first.values}
        by_zygotes = set(importers(installed, "alike_on_nodes")) - before
        assert len(by_zygotes) == 2, "one on each node"
        assert not by_zygotes & {*pids}
        assert parents[2] == parents[3]
        assert parents[2] in by_zygotes
        assert set(importers(installed, "own_on_nodes")) - before >= {*parents[:2], *pids[2:]}
        launchers.wait(1, "another", 4)
        third = run_on_cpu(launchers[0], imports, world_size=4)
        assert {pid for pid, *_ in third.values} <= set(importers(installed, "alike_on_nodes"))


def test_a_rank_of_another_node_that_is_killed_for_lack_of_memory_is_reported(
    two: tuple[Cluster, Launcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel of the other node alone counts a kill, for any rank that it may have killed."""
    counts, here = iter(range(100)), threading.main_thread()

    def kills() -> int:
        return 0 if threading.current_thread() is here else next(counts)

    monkeypatch.setattr("pytest_ddpperf.launch.rank_processes.out_of_memory_kills", kills)

    def dies(ctx: RankContext, guilty: int) -> None:
        if ctx.rank == guilty:
            os.kill(os.getpid(), signal.SIGKILL)
        total(ctx)

    for guilty in range(2):
        with pytest.raises(RankFailed, match=rf"^rank {guilty} of 2 was killed by SIGKILL") as caught:
            run_on_cpu(two[1], dies, guilty)
        assert caught.value.out_of_memory == (guilty == 1)
        assert ("the kernel ran out of memory" in str(caught.value)) == (guilty == 1)


def test_the_load_of_another_node_is_asked_of_its_agent(
    two: tuple[Cluster, Launcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: list[list[int | None]] = []

    def watch(parents: list[int | None]) -> Callable[[object], Health]:
        watched.append(parents)
        return lambda _: Health(cpu=CpuHealth(throttled=float(len(watched))))

    monkeypatch.setattr("pytest_ddpperf.launch.nodes.agent.watch_health", watch)
    cluster = two[0]
    (_, zygote) = run_on_cpu(two[1], lambda _: os.getppid()).values
    node = cluster.nodes[0]
    ended = cluster.watch(1)
    node.link.ask(Agent.health)  # the answer comes too late for a launch before
    assert ended() == {"node 1 (host-b)": CpuHealth(throttled=1.0)}
    assert watched == [[zygote]]
    assert cluster.watch(0)() == {}


@pytest.mark.slow
def test_an_agent_that_is_gone_is_named_at_once_and_leaves_no_rank(
    tmp_path: Path, all_gone: Callable[[Iterable[int]], bool]
) -> None:
    tasks = Tasks(hello(1, "b"))
    tasks.cluster.gather(20)
    pids: list[int] = []

    def waits(ctx: RankContext, file: str) -> None:
        while ctx.rank == 1:
            Path(file).write_text(str(os.getpid()))
            signal.pause()
        total(ctx)

    with Launcher(nodes=NodeLaunchers(tasks.cluster, PRELOAD)) as launcher:
        assert run_on_cpu(launcher, total).values == (3.0, 3.0)
        assert tasks.cluster.lost == ""
        pids += run_on_cpu(launcher, lambda _: os.getppid()).values
        (there,) = tasks.agents[1]._launchers
        cut = threading.Timer(2.0, there.close)
        cut.start()
        start = time.monotonic()
        with pytest.raises(LaunchError, match=r"^node 1 \(host-b\) is gone"):
            run_on_cpu(launcher, waits, str(tmp_path / "pid"))
        assert time.monotonic() - start < 2.0 + AT_ONCE
    pids.append(int((tmp_path / "pid").read_text()))
    tasks.links[0].close()
    deadline = time.monotonic() + AT_ONCE
    while not tasks.cluster.lost and time.monotonic() < deadline:
        pass
    assert tasks.cluster.lost.startswith("node 1 (host-b) is gone")
    tasks.close()
    assert all_gone(pids)


def test_one_task_of_each_other_machine_becomes_its_agent_and_the_others_wait_for_the_status() -> None:
    tasks = Tasks(hello(1), hello(2, "b"), hello(3, "b"), hello(4, "c"))
    tasks.cluster.gather(20)
    tasks.close(5)
    assert {rank: role.node for rank, role in tasks.roles.items()} == {1: None, 2: 1, 3: None, 4: 2}
    assert tasks.statuses == {1: 5, 2: 5, 3: 5, 4: 5}
    assert [node.hello.host for node in tasks.cluster.nodes] == ["host-b", "host-c"]


def test_tasks_that_a_launcher_has_bound_share_the_cores_of_their_node() -> None:
    cores = os.sched_getaffinity(0)
    bound = [replace(hello(rank), cores=frozenset({core})) for rank, core in enumerate(sorted(cores), 1)]
    tasks = Tasks(*bound)
    tasks.cluster.gather(20)
    tasks.close()
    assert {role.cores for role in tasks.roles.values()} == {frozenset(cores)}
    assert os.sched_getaffinity(0) == cores


def test_a_task_that_does_not_join_is_named() -> None:
    cluster = Cluster("127.0.0.1", hello(0), 4)
    with pytest.raises(LaunchError, match=r"^rank 1 of the launcher and 2 more did not connect"):
        cluster.gather(0.01)
    cluster.close(4)


@pytest.mark.parametrize(
    ("others", "error", "told"),
    [
        (
            [hello(1, "b"), hello(1, "c")],
            LaunchError,
            r"^a process at 127\.0\.0\.1 said .* rank 1 .*, and so did one at",
        ),
        ([hello(7, "b")], LaunchError, r"said that it is rank 7 of the launcher: .*--ddpperf-rendezvous-dir=DIR$"),
        ([LACKING], SettingError, r"^torch is 2\.13\.0 on the node of rank 0, but 2\.11\.0 on host-b \(rank 1"),
    ],
)
def test_an_invalid_or_repeated_rank_ends_the_rendezvous(
    others: list[Hello], error: type[Exception], told: str
) -> None:
    """Who has read the card in torchrun's store can say that he is any task, before it comes or after."""
    tasks = Tasks(*others)
    with pytest.raises(error, match=told):
        tasks.cluster.gather(20)
    tasks.close()


def test_after_the_rendezvous_differences_of_nodes_are_reported_and_the_port_is_closed() -> None:
    """The key of the card is good for nothing, and an address that takes no part is not even greeted."""
    tasks = Tasks(hello(1, "b", facts={"Python": "3.11"}))
    tasks.cluster._own = replace(tasks.cluster._own, facts={"Python": "3.12", "the kernel": "6"})
    card = tasks.cluster.card
    address = card.host, card.port
    tasks.cluster.gather(20)
    assert tasks.cluster.differences == [
        "Python is 3.12 on the controller, and 3.11 on node 1 (host-b)",
        "the kernel is 6 on the controller, and unknown on node 1 (host-b)",
    ]
    with pytest.raises(ForeignPeer):
        connect(address, card.key, {"looks": True})
    connect(address, tasks.cluster.card.key, {"looks": True}).close()
    tasks.cluster._known = frozenset({"10.1.2.3"})
    with socket.create_connection(address) as stranger:
        stranger.settimeout(AT_ONCE)
        assert stranger.recv(1) == b""
    tasks.cluster._known = frozenset({"127.0.0.1"})
    with socket.create_connection(address) as stranger:
        stranger.settimeout(AT_ONCE)
        greeting = stranger.recv(1000)
        stranger.sendall(greeting + bytes(100))
        while stranger.recv(1000):
            pass
    tasks.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(address, 1)


def test_a_controller_that_could_not_accept_one_connection_accepts_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    accept, failures = socket.socket.accept, [OSError(errno.EMFILE, "Too many open files")]

    def accepting(listening: socket.socket) -> Any:
        if failures:
            raise failures.pop()
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", accepting)
    tasks = Tasks(hello(1, "b"))
    tasks.cluster.gather(20)
    tasks.close()
    assert not failures


@pytest.mark.parametrize(
    "said",
    [{"store": 1}, {"task": {"rank": 1}}, {"task": {**hello(1).plain(), "rank": []}}, {"launcher": 1}, [], "task"],
)
def test_a_peer_with_an_invalid_first_message_is_refused(said: Any) -> None:
    tasks = Tasks(hello(1, "b"))
    card = tasks.cluster.card
    with pytest.raises(ForeignPeer):
        connect((card.host, card.port), card.key, said)
    tasks.cluster.gather(20)
    tasks.close()


@pytest.mark.parametrize("kind", ["launcher", "store"])
@pytest.mark.parametrize("late", [False, True])
def test_who_may_have_read_the_key_from_the_store_is_no_launcher_of_a_node_and_gets_to_no_port(
    monkeypatch: pytest.MonkeyPatch, kind: str, *, late: bool
) -> None:
    """Not before all tasks have come, and not by a connection that began before and goes on when they have."""
    tasks = Tasks(hello(1, "b"))
    card = tasks.cluster.card
    early = socket.create_connection((card.host, card.port))
    assert early.recv(1, socket.MSG_PEEK)  # the controller uses the key of the card for it
    if late:
        tasks.cluster.gather(20)
    with socket.create_server(("127.0.0.1", 0)) as local, monkeypatch.context() as patched:
        said = {"launcher": [1, 0], "store": local.getsockname()[1]}
        patched.setattr(socket, "create_connection", lambda *_: early)
        with pytest.raises(ForeignPeer):
            connect((card.host, card.port), card.key, {kind: said[kind]})
    if not late:
        tasks.cluster.gather(20)
    tasks.close()


@pytest.mark.parametrize(
    ("world_size", "nodes", "gpus", "counts"),
    [
        (1, 2, 0, (1,)),
        (4, 2, 0, (2, 2)),
        (2, 3, 0, (1, 1)),
        (4, 2, 4, (4,)),
        (6, 3, 4, (3, 3)),  # two nodes are enough
        (12, 2, 4, (6, 6)),  # more ranks than GPUs
    ],
)
def test_ranks_are_assigned_to_nodes(world_size: int, nodes: int, gpus: int, counts: tuple[int, ...]) -> None:
    assert spread(world_size, nodes, gpus) == counts


@pytest.mark.parametrize(("world_size", "nodes", "gpus", "needed"), [(3, 2, 0, 2), (7, 2, 4, 2), (5, 3, 2, 3)])
def test_ranks_that_do_not_divide_by_the_nodes_that_they_need_are_skipped(
    world_size: int, nodes: int, gpus: int, needed: int
) -> None:
    told = f"^{world_size} ranks cannot be divided evenly among the {needed} nodes that they need"
    with pytest.raises(RankSkipped, match=told):
        spread(world_size, nodes, gpus)


def test_tasks_of_a_node_that_see_different_gpus_are_refused() -> None:
    """``srun --gpus-per-task=1`` shows each task another GPU."""
    alike = [hello(2, gpus=("A", "B")), hello(3, gpus=("A", "B"))]
    assert require_one_agent(alike).rank == 2
    with pytest.raises(SettingError, match=r"tasks 2 and 5 of the launcher .* --ntasks-per-node=1 --gpus-per-node=N"):
        require_one_agent([*alike, hello(5, gpus=("B",))])


def test_a_node_without_a_gpu_is_named_if_the_controller_has_some(two: tuple[Cluster, Launcher]) -> None:
    nodes = two[1].nodes
    assert nodes is not None
    assert nodes.counts(2, 2) == (2,)
    with pytest.raises(LaunchError, match=r"^node 1 \(host-b\) has no GPU that torch can use"):
        nodes.counts(4, 2)


@pytest.mark.slow
def test_a_launcher_of_a_node_that_has_ended_is_replaced(two: tuple[Cluster, Launcher]) -> None:
    assert run_on_cpu(two[1], total).values == (3.0, 3.0)
    for link in two[1].nodes.links.values():  # type: ignore[union-attr]
        link._socket.shutdown(socket.SHUT_RDWR)
    with pytest.raises(LaunchError, match=r"^node 1 \(host-b\) is gone"):
        run_on_cpu(two[1], total)
    assert two[0].lost == ""
    assert run_on_cpu(two[1], total).values == (3.0, 3.0)


def test_a_launch_after_an_interrupted_sweep_ignores_the_answers_to_it(
    two: tuple[Cluster, Launcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Question, "answer", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_on_cpu(two[1], total)
    assert run_on_cpu(two[1], total).values == (3.0, 3.0)


def test_the_clock_of_a_node_is_read_from_its_fastest_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent at 1000, answered by 1600 with 5300 on the other clock: 300 each way, so the clock is 4000 ahead."""
    now = iter([0, 900, 1000, 1600, 2000, 3000, 4000, 4700])
    monkeypatch.setattr(system_time, "time_ns", lambda: next(now))
    answers = iter([9999, 5300, 1, 2])

    class Answering:
        def ask(self, _: object) -> Answering:
            return self

        def answer(self, _: float) -> int:
            return next(answers)

    assert offset(Answering()) == (4000, 300)  # type: ignore[arg-type]
