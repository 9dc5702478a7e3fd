"""The checkouts that a session measures, each with the launchers that start its ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.instruments.health import Watch, watch_health
from pytest_ddpperf.launch.environment import thread_variables
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.launchers import Launchers
from pytest_ddpperf.settings import Settings

if TYPE_CHECKING:
    from pytest_ddpperf.against.paired_launches import PairedLaunches
    from pytest_ddpperf.against.revision_side import RevisionSide
    from pytest_ddpperf.against.worktree import Revision
    from pytest_ddpperf.launch.nodes.cluster import Cluster
    from pytest_ddpperf.launch.nodes.launchers import NodeLaunchers
    from pytest_ddpperf.launch.redirection import Redirection
    from pytest_ddpperf.reports.progress import LiveLine
    from pytest_ddpperf.run.session.probe import Probe

MAX_IDLE_LAUNCHERS = 4  # of a side, that are kept from test to test: enough for most comparisons
PRELOADED = (  # imported once in a fork server, not on every rank of every launch
    "pytest_ddpperf.training.loop",
    "pytest_ddpperf.training.preparing",
    "pytest_ddpperf.training.step",
    "pytest_ddpperf.training.correctness.verifier",
    "pytest_ddpperf.instruments.counting.counting",
    "pytest_ddpperf.instruments.phases.diagnosed_steps",
    "pytest_ddpperf.strategies.ddp",
)


class Sides:
    """The checkouts that a session measures, and the fork servers that start ranks from them."""

    def __init__(
        self,
        settings: Settings,
        root: Path,
        line: LiveLine,
        *,
        revision: Revision | None,
        probe: Probe | None,
        before_start: Callable[[], object],  # called once, before the first fork server starts
    ) -> None:
        self.reference = self.candidate = None  # None: stored baselines, and this checkout
        self.cluster: Cluster | None = None  # the launcher's processes that this one controls
        self.threads: dict[str, str] = {}  # variables that set ranks' threads; empty before the first launch
        self._settings, self._root, self._before_start = settings, root, before_start
        self._echo = echo = line.echo if line.echoes else None  # receives the output of ranks while they run
        if revision is not None:
            own = settings.against_tests and not revision.here and probe is None  # bisections run this checkout's tests
            self.reference = self._side(revision, tests=own, echo=echo and partial(echo, who="reference rank"))
        if revision is not None and probe is not None:
            self.candidate = self._side(probe.revision(revision), echo=echo)
        self._of_commits: dict[str, RevisionSide] = {}  # of baselines
        self._launchers: Launchers | None = None

    @property
    def launchers(self) -> Launchers:
        """The launchers that fork the candidate's ranks; created at the first use."""
        if self._launchers is None:
            self.threads.update(thread_variables(os.environ))  # of the ranks of all launches
            self._before_start()
            if self.reference is not None:
                self.reference.start()
            own = self.candidate
            self._launchers = Launchers(self._launcher, self._settings.preload) if own is None else own.launchers
        return self._launchers

    def _launcher(self, first: Launcher | None) -> Launcher:
        nodes = self._other_nodes(PRELOADED, None)
        return Launcher(threads=self.threads, preload=PRELOADED, echo=self._echo, like=first, nodes=nodes)

    def _other_nodes(self, preload: Sequence[str], redirection: Redirection | None) -> NodeLaunchers | None:
        if self.cluster is None or not self.cluster.nodes:
            return None
        from pytest_ddpperf.launch.nodes.launchers import NodeLaunchers

        return NodeLaunchers(self.cluster, preload, redirection)

    @property
    def nodes(self) -> int:
        """The number of nodes, including this node."""
        return 1 if self.cluster is None else 1 + len(self.cluster.nodes)

    @property
    def _started(self) -> list[Launchers]:
        """The launchers that have been started: the candidate's, then the references'."""
        others = [*filter(None, [self.reference]), *self._of_commits.values()]
        return [*filter(None, [self._launchers]), *(launchers for side in others for launchers in side.every)]

    @property
    def parents(self) -> tuple[int | None, ...]:
        """Process ids of the running fork servers, which are the parents of ranks; ``(None,)`` if none runs."""
        _ = self.launchers
        pids = tuple(pid for launchers in self._started for pid in launchers.parents if pid is not None)
        return pids or (None,)

    @property
    def remarks(self) -> list[str]:
        """The warnings of the candidate's and the reference's launchers, without duplicates."""
        both = [self._launchers, None if self.reference is None else self.reference.launchers]
        return list(dict.fromkeys(remark for launchers in filter(None, both) for remark in launchers.remarks))

    def roots(self, *, reference: bool) -> tuple[str, ...]:
        """Returns the root folders that the ranks of the reference, or else of the candidate, import from."""
        side = self.reference if reference else self.candidate
        own = str(self._root)
        return (own,) if side is None else (side.redirection.path(own), own)

    def gpus(self, world_size: int) -> tuple[str, ...]:
        """Returns the PCI ids of the first ``world_size`` GPUs, without GPUs whose id torch does not know."""
        return tuple(filter(None, self.launchers[0].machine().gpus.pci[:world_size]))

    def watch(self, gpus: Sequence[str], nodes: int) -> Watch:
        """Watches ``nodes`` nodes and the given GPUs for disturbances; returns a function that ends the watch."""
        here = watch_health(self.parents, gpus=gpus)
        others = dict if self.cluster is None else self.cluster.watch(nodes - 1)
        return lambda window: replace(here(window), nodes=others())

    def check_out(self) -> None:
        """Checks out the reference revision, except in a bisection; raises a LaunchError if git fails."""
        if self.reference is not None and self.candidate is None:
            self.reference.check_out()

    def paired(self, sections: list[tuple[str, str]]) -> PairedLaunches | None:
        """Returns an object that launches a benchmark in both revisions; None without a reference revision."""
        if self.reference is None:
            return None
        from pytest_ddpperf.against.paired_launches import PairedLaunches

        return PairedLaunches(self.reference, sections, self.candidate)

    def of_commit(self, commit: str) -> RevisionSide:
        """Returns the checkout of a baseline's commit, with launchers; raises LaunchError if git lacks the commit."""
        from pytest_ddpperf.against.worktree import baseline_revision

        if commit not in self._of_commits:
            revision = baseline_revision(commit, self._root)
            self._of_commits[commit] = self._side(revision, tests=True, opposite=True, opposite_echo=self._echo)
        return self._of_commits[commit]

    def _side(self, revision: Revision, **how: Any) -> RevisionSide:
        from pytest_ddpperf.against.revision_side import RevisionSide

        setup, asked = self._settings.against_setup, self._settings.preload
        nodes = self._other_nodes
        return RevisionSide(revision, setup, PRELOADED, asked=asked, threads=self.threads, nodes=nodes, **how)

    def end_test(self) -> None:
        """Ends idle launchers, except a few per revision; removes checkouts of baselines, except the newest."""
        for commit in [*self._of_commits][:-1]:  # the next test mostly needs the last one
            self._of_commits.pop(commit).close()
        for launchers in self._started:
            launchers.keep(MAX_IDLE_LAUNCHERS)

    def close(self) -> None:
        """Ends the launchers of candidate and reference, with all their ranks."""
        try:
            if self._launchers is not None:
                self._launchers.close()
        finally:
            for side in filter(None, (self.candidate, self.reference, *self._of_commits.values())):
                side.close()
