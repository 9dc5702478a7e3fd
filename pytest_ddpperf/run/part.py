"""The part of one call of a verb in the budget of its session, and what its runs in earlier passes have left."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_ddpperf.run.pool import SCREENING, Kept, Pass
from pytest_ddpperf.run.recording import Recording
from pytest_ddpperf.run.rounds import End

if TYPE_CHECKING:
    from pytest_ddpperf.against.paired_launches import PairedLaunches
    from pytest_ddpperf.judge.sequential import Look, Next
    from pytest_ddpperf.records.batch_size import Search
    from pytest_ddpperf.records.convergence import Convergence
    from pytest_ddpperf.records.launch import TimeSpent
    from pytest_ddpperf.records.results import Result
    from pytest_ddpperf.run.dealing import Need
    from pytest_ddpperf.run.planning import Budget
    from pytest_ddpperf.run.pool import Pool
    from pytest_ddpperf.run.variant import Variant

_LEAST_SECONDS = 1e-3  # a time is above 0
_ENDS = {Pass.PREPARE: End.SCREENED, Pass.SCREEN: End.SCREENED, Pass.CONFIRM: End.JUDGED, Pass.LAST: End.DIAGNOSED}


class Part:
    """The part of one call of a verb in the budget of its session."""

    def __init__(self, pool: Pool, test: str, number: int, before: Kept | None) -> None:
        self.before = before  # of the pass before; None in the first one
        # What was prepared is kept for the last run, even if this one knows it already.
        self.kept = Kept() if before is None else replace(before, recordings=[], preparing={**before.preparing})
        self._pool = pool
        self._place = test, number
        self._begun = pool.now()
        self._recorded = 0
        self._deadline = math.inf  # of launches that are not told again
        self._differs = False  # from the run before, in what is measured
        self._shared = False  # whether the session's budget is what limits the call
        self._seen = False  # whether a judge has looked
        self._unproven = False  # whether it needs a proof that was not dealt
        self._explains = 0.0  # seconds of a diagnosis that was dealt besides

    @property
    def silent(self) -> bool:
        """Whether the call is in a pass before the last."""
        return self._pool.silent

    @property
    def ends_at(self) -> End:
        """What measuring ends with in this pass."""
        return _ENDS[self._pool.current]

    @property
    def preparing_only(self) -> bool:
        """Whether the call ends before its first launch that times."""
        return self._pool.current is Pass.PREPARE

    @property
    def _screening(self) -> bool:
        return self.ends_at is End.SCREENED

    @property
    def _confirming(self) -> bool:
        return self.ends_at is End.JUDGED

    @property
    def told_again(self) -> bool:
        """Whether the call has nothing to confirm, and runs for the sake of another one of its test."""
        return self._pool.current is Pass.CONFIRM and not (self.before is not None and self.before.to_confirm)

    def max_time(self, ceiling: float, sides: int = 1) -> float:
        """The seconds that the call may measure so many sides from now on, those of its screening included."""
        pool, before = self._pool, 0.0
        self.kept.sides = sides
        if pool.seconds is None:
            return ceiling
        if self.before is not None and self.before.recordings:
            before = self.before.recordings[-1][1].elapsed
            given = before + self._dealt(pool.dealt(self._place))
        else:
            share = pool.share(self._begun, self._place, sides) - (pool.now() - self._begun)
            given = share / SCREENING if self._screening else share
        self._shared = given < ceiling
        given = min(ceiling, max(_LEAST_SECONDS, given))
        self._deadline = pool.now() + given * pool.turns - before
        return given

    def _dealt(self, share: float) -> float:
        """Note whether a share has the time for a proof, and for a diagnosis besides."""
        from pytest_ddpperf.run.dealing import Aim

        need = None if self.before is None else self.before.need
        if need is not None and need.aim is Aim.PROVE:
            self._unproven = not 0 < need.wanted <= share
            besides = share - need.wanted * (not self._unproven)
            self._explains = min(need.explains, max(0.0, besides))
        return share

    def limited(self, budget: Budget, recording: Recording, max_time: float) -> Budget:
        """The budget of a measuring, whose screening ends no earlier than in the pass before."""
        screening = budget.screening / budget.max_time * max_time
        budget = replace(budget, max_time=max_time, screening=screening, shared=self._shared)
        if self._screening:
            recording.deadline = budget.max_time * SCREENING if self._shared else budget.screening
            return replace(budget, screening=recording.deadline)
        if recording.first is None:  # nothing is told again
            within = max(_LEAST_SECONDS, min(max_time, self._deadline - self._pool.now()))
            budget = replace(budget, max_time=within, screening=budget.screening / max_time * within)
        return replace(budget, screening=max(budget.screening, recording.deadline), first=recording.first)

    def looked(self, recording: Recording, results: Sequence[Result], look: Look, made: int, action: Next) -> Next:
        """Note where a measuring stands when its judge has looked at ``made`` launches; what to do, as others need."""
        if recording.plans is None or recording.replaying or not (self.silent or self._shared):
            return action
        if self.told_again:
            return replace(action, action="stop")
        from pytest_ddpperf.run.dealing import Aim, need_of

        over = look.elapsed - recording.deadline if self._screening else self._pool.now() - self._deadline
        if self._shared and not self._seen and over > look.round_seconds:  # by launches that are made in any case
            self._pool.short.append(over)
        self._seen = True
        screened = (
            self.before.recordings[-1][1].elapsed if self._confirming and self.before is not None else look.elapsed
        )
        need = need_of(results, look, made, recording.plans.diagnosis_seconds, screened=screened)
        if self.silent and action.action == "confirm":
            recording.suspicion = made, look
        if self.silent:
            recording.first = recording.first or made
            recording.elapsed = look.elapsed
            ended = self._confirming and action.action == "stop" and need.aim is Aim.CONFIRM
            self.kept.need = _of_confirmed(need, recording.plans.diagnosis_seconds * action.explain) if ended else need
            return action if self._screening or need.aim is Aim.CONFIRM else replace(action, action="stop")
        if self.before is None or need.aim < Aim.PROVE:
            return action
        self.before.need = replace(need, wanted=need.least, explains=0.0)
        left = self._deadline - self._pool.now()
        diagnosed = self._unproven or left < self._explains + look.round_seconds * bool(self._explains)
        lacks = self._pool.lacks
        if action.action == "confirm" or not (lacks or (diagnosed and action.action == "more")):
            return action
        return replace(action, action="stop", briefly=lacks and not action.explain)

    def preparing(self, identity: Callable[[], bytes]) -> Recording:
        """A preparing launch: that of the pass before, if it found out the same."""
        if self.before is not None:
            if (known := self.before.preparing.get(identity())) is not None:
                return known.again()
            self._differs = True
        recording = Recording(self._pool.now, kept=self.silent)
        if self.silent:
            self.kept.preparing[identity()] = recording
        return recording

    def launching(self) -> AbstractContextManager[None]:
        """Around launches, which the last run does not make again."""
        return self._pool.launching()

    def end_silently(self, spent: TimeSpent, paired: PairedLaunches | None = None) -> None:
        """Keep what a run that is not the last knows besides its launches."""
        self.kept.spent, self.kept.paired = spent, paired

    def searched(self, search: Search, searches: list[Search]) -> None:
        """List a search, or keep it for the last run."""
        if self.silent:
            self.kept.search = search
        else:
            searches.append(search)

    def converged(self, found: Convergence, all_found: list[Convergence]) -> None:
        """List what trainings came to, or keep it for the last run."""
        if self.silent:
            self.kept.convergence = found
        else:
            all_found.append(found)

    def recording(self, variants: Sequence[Variant]) -> Recording:
        """The next measuring of the call: that of the run before, if the same benchmarks were measured there."""
        benchmarks: list[object] = [(each.identity_fields, each.of_reference) for each in variants]
        before = [] if self.before is None else self.before.recordings[self._recorded : self._recorded + 1]
        self._recorded += 1
        if before and before[0][0] == benchmarks and not self._differs:
            recording = before[0][1].again(kept=self.silent)
        else:
            recording = Recording(self._pool.now, kept=self.silent)
        if self.silent:
            self.kept.recordings.append((benchmarks, recording))
        return recording


def part_of(pool: Pool, test: str) -> Part:
    """The part of the next call of a test."""
    number, before = pool.next_call(test)
    part = Part(pool, test, number, before)
    if pool.silent and not part.told_again:
        pool.keep(test, number, part.kept)
    return part


def _of_confirmed(need: Need, diagnosis: float) -> Need:
    """What a suspect needs that was shown to be worse, or whose time is up: so many seconds to be explained."""
    return replace(need, least=diagnosis, wanted=diagnosis or need.wanted)
