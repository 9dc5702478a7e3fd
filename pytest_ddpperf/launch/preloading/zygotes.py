"""Copies of the ranks' fork server that import modules once for all ranks, and end if an import has side effects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.launch.environment import MARK
from pytest_ddpperf.launch.messages import Preload, Preloaded, SeenImport
from pytest_ddpperf.launch.zygote_process import ZygoteProcess

_CHANGING = frozenset({"PYTEST_CURRENT_TEST", MARK})  # variables that no import depends on


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """The modules to import before ranks are forked; ``seen`` are modules that earlier ranks imported."""

    asked: tuple[SeenImport, ...]  # by the user
    seen: tuple[SeenImport, ...]
    ranks: int  # the number of copies for modules that read RANK

    @property
    def modules(self) -> tuple[SeenImport, ...]:
        """Returns all wanted modules."""
        return (*self.asked, *self.seen)


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """The modules for which a single import for all ranks is unsafe, with the reasons that earlier imports showed."""

    refused: dict[str, str] = field(default_factory=dict)  # module -> why ranks import it themselves
    of_rank: set[str] = field(default_factory=set)  # modules that read RANK or LOCAL_RANK
    inner: dict[str, tuple[SeenImport, ...]] = field(default_factory=dict)  # imports to preload in place of a module

    def note(self, module: str, answer: Preloaded) -> None:
        """Records why a single import of a module for all ranks is unsafe."""
        self.inner.setdefault(module, answer.inner)
        if answer.own_rank:
            self.of_rank.add(module)
        else:
            self.of_rank.discard(module)
            self.refused[module] = answer.reason

    def per_rank(self, wanted: Wanted) -> list[SeenImport]:
        """Returns the wanted modules that read RANK or LOCAL_RANK, so that each rank needs its own fork server."""
        return [one for one in wanted.modules if one.module in self.of_rank]

    def copies(self, wanted: Wanted) -> int:
        """Returns how many copies of a fork server are needed to import the wanted modules."""
        return bool(wanted.modules) + (wanted.ranks if self.per_rank(wanted) else 0)

    def common(self, wanted: Iterable[SeenImport]) -> list[SeenImport]:
        """Returns the modules to import once for all ranks, and replaces an unsafe module by its safe imports."""
        found: dict[str, SeenImport] = {}
        replaced: set[str] = set()  # modules whose inner imports were added
        waiting = list(wanted)
        while waiting:
            one = waiting.pop(0)
            if one.module not in self.inner:
                found[one.module] = one
            elif one.module not in replaced:
                replaced.add(one.module)
                waiting[:0] = self.inner[one.module]
        return list(found.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class PreloadedZygotes:
    """The fork servers that have imported modules: ``base``, and one for each rank if modules read RANK."""

    wanted: Wanted
    base: ZygoteProcess
    of_ranks: tuple[ZygoteProcess, ...]
    variables: Mapping[str, str | None]  # that the imports have read, with their values

    @property
    def all(self) -> tuple[ZygoteProcess, ...]:
        """Returns all these fork servers."""
        return (*self.of_ranks, self.base)

    def serve(self, wanted: Wanted) -> bool:
        """Returns whether these fork servers have imported the wanted modules, and are enough for all ranks."""
        return self.wanted.modules == wanted.modules and (not self.of_ranks or len(self.of_ranks) >= wanted.ranks)

    def fits(self, environ: Mapping[str, str]) -> bool:
        """Returns whether the fork servers run, and ``environ`` still has the variables that their imports read."""
        read = self.variables.items()
        same = all(environ.get(name) == value for name, value in read if name not in _CHANGING)
        return same and all(zygote.usable for zygote in self.all)

    def of(self, number: int) -> list[ZygoteProcess]:
        """Returns a list with the fork server of each of the first ``number`` ranks."""
        return [*self.of_ranks, *[self.base] * number][:number]

    def duplicate(self) -> PreloadedZygotes:
        """Returns copies of these fork servers, for another launcher."""
        with ExitStack() as closing:
            *of_ranks, base = (_copied(zygote, closing) for zygote in self.all)
            closing.pop_all()
            return replace(self, base=base, of_ranks=tuple(of_ranks))


def preloaded(zygote: ZygoteProcess, request: Preload, wanted: Wanted, judged: Judged) -> PreloadedZygotes:
    """Copies a fork server and imports the wanted modules in the copy, with the environment in ``request``.

    If an import fails or has side effects, the copy ends, and a new copy imports the other modules. ``judged`` records
    such failures, and has the modules that failed before. Raises SettingError if a module that the user named fails.
    """
    while True:
        for one in wanted.asked:
            if (why := judged.refused.get(one.module)) is not None:
                raise SettingError(f"preload={one.module}: its import {why}; remove this module from the list")
        with ExitStack() as closing:
            base = _copied(zygote, closing)
            variables: dict[str, str | None] = {}
            wrong = _imported([base], [request], judged.common(wanted.modules), variables)
            late = judged.per_rank(wanted) if wrong is None else []
            zygotes = tuple(_copied(base, closing) for _ in range(wanted.ranks if late else 0))
            numbers = ({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(len(zygotes)))
            requests = [replace(request, environ={**request.environ, **own}, of_rank=True) for own in numbers]
            wrong = wrong or _imported(zygotes, requests, late, variables)
            if wrong is None:
                closing.pop_all()
                return PreloadedZygotes(wanted=wanted, base=base, of_ranks=zygotes, variables=variables)
        judged.note(*wrong)


def _copied(original: ZygoteProcess, closing: ExitStack) -> ZygoteProcess:
    copy = original.duplicate()
    closing.push(partial(_end, copy))
    return copy


def _end(copy: ZygoteProcess, error: object, *_: object) -> None:
    if error is not None:  # the copy may be in the middle of an import
        copy.kill()
    copy.close()


def _imported(
    zygotes: Sequence[ZygoteProcess],
    requests: Sequence[Preload],
    modules: Sequence[SeenImport],
    variables: dict[str, str | None],
) -> tuple[str, Preloaded] | None:
    """Imports modules in all fork servers and returns the first failure; ``variables`` collects the variables read."""
    for one in modules:
        asked = [replace(request, module=one.module, file=one.file) for request in requests]
        waits = [zygote.preload(request) for zygote, request in zip(zygotes, asked, strict=True)]
        for answer in [wait() for wait in waits]:
            if answer.reason:
                return one.module, answer
            variables.update(answer.variables)
    return None
