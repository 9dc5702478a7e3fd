"""The ranks of the fixture ``ddpperf_group``."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest

from pytest_ddpperf.errors import RankFailed, RanksDiffer, RanksTimedOut, SettingError, extended, hidden
from pytest_ddpperf.launch.context import Gpus
from pytest_ddpperf.launch.environment import require_free
from pytest_ddpperf.launch.launch_run import LaunchResult
from pytest_ddpperf.launch.messages import numbers
from pytest_ddpperf.run.session.session import Session
from pytest_ddpperf.run.session.tracebacks import skipping
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.training.group import GroupCall, RankError, call, first_difference
from pytest_ddpperf.training.subject import unfit

__tracebackhide__ = hidden

T = TypeVar("T")
_SHOWN = 200  # characters of a value in an error


@dataclass(frozen=True)
class RankResults(Generic[T]):
    """Each rank's return value in ``ddpperf_group.run``. With ``check=False``, ``errors`` has exceptions by rank."""

    _values: tuple[T, ...]
    errors: Mapping[int, RankError]

    @property
    def values(self) -> tuple[T, ...]:
        """The value of each rank; raises RankFailed if a rank raised."""
        for rank in self.errors:
            self.rank(rank)
        return self._values

    def rank(self, rank: int) -> T:
        """Returns the value of ``rank``; raises RankFailed if this rank raised."""
        error = self.errors.get(rank)
        if error is not None:
            told = f"rank {rank} of {len(self._values)} raised {error}\n\n{error.traceback}"
            raise RankFailed(told, rank=rank, stack=error.traceback)
        if not 0 <= rank < len(self._values):
            raise IndexError(f"there is no rank {rank}; give a rank from 0 to {len(self._values) - 1}")
        return self._values[rank]


class RankGroup:
    """The fixture that runs functions on ranks, for functional tests; every ``run`` starts fresh ranks."""

    def __init__(self, session: Session, settings: Settings, sections: list[tuple[str, str]], test: str) -> None:
        self._session = session
        self._settings = settings
        self._sections = sections
        self._file = test.partition("::")[0]

    @property
    def world_size(self) -> int:
        """The number of ranks: the test's parameter, else the largest of ``--ddpperf-world-size``."""
        return max(self._session.world_sizes(self._settings))

    def run(self, function: Callable[..., T], *args: Any, check: bool = True) -> RankResults[T]:
        """Calls ``function(ctx, *args)`` on every rank of a fresh process group.

        Args:
            function: function that each rank calls; the setting ``mesh`` adds ``ctx.mesh``.
            args: further arguments of the function.
            check: whether the test fails if a rank raises. If it is False, every rank runs until it returns or raises,
                and ``result.errors`` has the exceptions.

        Returns:
            The value of each rank: ``result.rank(0)``, ``result.values``.

        Raises:
            RankFailed: a rank raised, exited, was killed or blocked; the message starts with this rank.
            SettingError: ``function`` does not take these arguments.
            PayloadError: function, arguments or a result cannot be sent, or a result cannot be read in time.
        """
        return self._run("run", function, args, keep=None if check else Exception)

    def agree(self, function: Callable[..., Any], *args: Any) -> Any:
        """Returns the value of ``function(ctx, *args)`` if it is the same on every rank.

        Values are numbers, texts, tensors and arrays, and lists, tuples and dictionaries of such values. In the
        result, tensors and arrays are lists of numbers, and tuples are lists.

        Raises:
            RanksDiffer: ranks returned different values; the message names the ranks and the first difference.
            RankFailed, SettingError, PayloadError: as for ``run``.
        """
        values = self._run("agree", function, args, plain=True).values
        found = [first_difference(values[0], value) for value in values]
        first = next(filter(None, found), None)
        if first is None:
            return values[0]
        place = first[0]
        same = [rank for rank, difference in enumerate(found) if difference is None]
        lines = [f"{numbers(same)} {'have' if len(same) > 1 else 'has'} {_short(first[1])}"]
        lines += [
            f"rank {rank} has {_short(each[2])}{'' if each[0] == place else f' at {each[0]}'}"
            for rank, each in enumerate(found)
            if each is not None
        ]
        where = f" first differs at {place}" if place else " differs"
        raise RanksDiffer("\n  ".join([f"ddpperf_group.agree: the value of the ranks{where}", *lines]))

    def raises_all(
        self, error: type[Exception], function: Callable[..., Any], *args: Any, match: str | None = None
    ) -> RankResults[Any]:
        """Calls ``function(ctx, *args)`` on every rank, and fails the test unless every rank raises ``error``.

        If a rank raises, the other ranks continue.

        Args:
            error: the expected class of exceptions.
            function: as for ``run``.
            args: as for ``run``.
            match: a regular expression that every message has to contain.

        Returns:
            The exception of each rank: ``result.errors[0].text``.

        Raises:
            RanksDiffer: a rank returned, or raised something else; the message has a line for each such rank.
            RanksTimedOut: a rank neither returned nor raised before the deadline; the message has this rank's stack.
            RankFailed, SettingError, PayloadError: as for ``run``.
        """
        if not (isinstance(error, type) and issubclass(error, Exception)):
            raise SettingError(f"ddpperf_group.raises_all: expected an exception class, not {_short(error)}")
        try:
            pattern = None if match is None else re.compile(match)
        except re.error as wrong:
            raise SettingError(f"ddpperf_group.raises_all: match={match!r} is no regular expression: {wrong}") from None
        expected = error.__name__ + ("" if match is None else f" with a message like {match!r}")
        try:
            results = self._run("raises_all", function, args, keep=error)
        except RanksTimedOut as late:
            raise extended(late, before=f"not every rank raised {expected}: ") from None
        lines = []
        for rank in range(self.world_size):
            raised = results.errors.get(rank)
            if raised is None:
                lines.append(f"rank {rank} returned {_short(results.rank(rank))}")
            elif not raised.expected or (pattern is not None and not pattern.search(raised.text)):
                lines.append(f"rank {rank} raised {raised}\n{raised.traceback}")
        if lines:
            raise RanksDiffer("\n  ".join([f"not every rank raised {expected}", *lines]))
        return results

    def _run(self, verb: str, function: Callable[..., Any], args: tuple[Any, ...], **how: Any) -> RankResults[Any]:
        if not callable(function):
            kind = type(function).__name__
            raise SettingError(f"ddpperf_group.{verb}: expected a function(ctx, *arguments), not a {kind}")
        problem = unfit(function, "ctx", *(f"argument {number}" for number, _ in enumerate(args, 1)))
        if problem is not None:
            raise SettingError(f"ddpperf_group.{verb}: {problem}")
        sizes = self._settings.mesh
        if sizes is not None and math.prod(sizes.values()) != self.world_size:
            raise SettingError(
                f"ddpperf_group.{verb}: mesh {' x '.join(map(str, sizes.values()))} has {math.prod(sizes.values())} "
                f"ranks, and the test has {self.world_size}: give a world_size or a mesh that fits"
            )
        if sizes is None and not any(how.values()):
            return RankResults(self._launch(function, *args).values, {})
        result = self._launch(call, GroupCall(function=function, arguments=args, mesh=sizes, **how))
        errors = {rank: value for rank, value in enumerate(result.values) if isinstance(value, RankError)}
        return RankResults(result.values, errors)

    def _launch(self, function: Callable[..., Any], *args: Any) -> LaunchResult[Any]:
        settings = self._settings
        require_free(settings.env or ())
        launchers = self._session.sides.launchers.with_variables(settings.env or ())
        if settings.simulate is not None:
            pytest.skip("ddpperf_group was skipped: ddpperf simulate runs only ddpperf.check and ddpperf.measure")
        if "PYTEST_XDIST_WORKER" in os.environ and settings.device != "cpu":
            gpus = launchers[0].having(()).machine().gpus
            launchers[0].having(tuple(shown_to_worker(os.environ, len(gpus.names), self.world_size).items()))
        with skipping():
            gpus = launchers[0].machine().gpus if settings.device != "cpu" else Gpus()
            with self._session.leases.sharing(gpus, self.world_size):
                launchers.wait(1, self._file, self.world_size)
                result = self._session.limited(launchers[0].run)(
                    function,
                    *args,
                    world_size=self.world_size,
                    backend=settings.backend,
                    device=settings.device,
                    timeout=settings.timeout,
                    bind=settings.cpu_binding == "cores",
                )
        launchers.note(self._file, result.imports)
        self._sections.extend(result.sections)
        return result


def shown_to_worker(environ: Mapping[str, str], gpus: int, ranks: int) -> dict[str, str]:
    """Returns CUDA_VISIBLE_DEVICES with this pytest-xdist worker's share of the GPUs, as {name: value}.

    The result is empty if the share is smaller than the number of ranks. Then all workers share all GPUs.
    """
    workers, number = int(environ["PYTEST_XDIST_WORKER_COUNT"]), int(environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    share = gpus // workers
    if share < ranks or any(environ.get(name) for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")):
        return {}
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(gpu) for gpu in range(gpus)]
    return {"CUDA_VISIBLE_DEVICES": ",".join(names[number * share : (number + 1) * share])}


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} (cut)"
