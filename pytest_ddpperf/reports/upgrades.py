"""The words in which a reference in another environment differs, and why one cannot run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_ddpperf.records.counts import quantity_texts

_PACKAGES = 8  # that are named of those that differ


def other_environment(python: str, differ: Sequence[str], packages: Mapping[str, tuple[str | None, str | None]]) -> str:
    """Returns how the environment of the reference differs from this one, a package at a time."""
    few = len(packages) <= _PACKAGES
    named = [(name, *pair) for name, pair in packages.items() if few or None not in pair]
    told = [f"{name} {there or 'none'} -> {here or 'none'}" for name, there, here in named]
    alone = len(packages) - len(named)
    more = [f"{len(told) - _PACKAGES} more"] if len(told) > _PACKAGES else []
    more += [f"{alone} that one side alone has"] if alone else []
    words = ", ".join([*told[:_PACKAGES], *more])
    facts = ", ".join(differ) or "no fact of the environment differs"
    return f"{python} -> this environment: {facts}; packages: {words or 'all are the same'}"


def told_counts(differs: Sequence[str], changed: Sequence[tuple[str, float, float]], number: int) -> str:
    """Counts beside another torch."""
    why = f"counts gate nothing, for another torch may do the same work otherwise ({', '.join(differs)})"
    texts = [f"{metric} {' -> '.join(quantity_texts(metric, [then, now]))}" for metric, then, now in changed]
    return f"{why}: {', '.join(texts) or f'all {number} are the same'}"


def cannot_run(revision: str, reason: str, submodules: bool) -> str:  # noqa: FBT001 - a fact
    """Returns why the reference has no measurement."""
    cure = "; its submodules are not checked out, which --ddpperf-against-setup='git submodule update --init' does"
    lacks = submodules and any(words in reason for words in ("ModuleNotFound", "ImportError", "No such file"))
    return f"{revision} cannot run it: {reason}" + cure * lacks


def tests_differ(files: Sequence[str]) -> str:
    """Tests of which both sides run those of this checkout."""
    named = ", ".join(files)
    return (
        f"{named}: the reference has another one, and both sides run this checkout's: what it defines is compared with "
        "itself; --ddpperf-against-tests runs each side's own"
    )
