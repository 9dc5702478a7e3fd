"""The launches of a benchmark that compares two revisions: the candidate, usually this checkout, and the reference."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, TypeVar

from pytest_ddpperf.against.interpreter import differing, own_interpreter
from pytest_ddpperf.against.revision_side import RevisionSide, alike, modules_of_tests, other_tests
from pytest_ddpperf.errors import DdpperfError, LaunchError, ReferenceFailed, SameCode
from pytest_ddpperf.launch.environment import Variables
from pytest_ddpperf.launch.launch_run import LaunchResult
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.launchers import Launchers
from pytest_ddpperf.launch.messages import Call
from pytest_ddpperf.launch.payload import StandIn, dump_call
from pytest_ddpperf.launch.redirection import TOOL, Redirection, look_up, observed, run_packed, within
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.results import PairedRevision, Result, StoredBaseline
from pytest_ddpperf.settings import KNOBS
from pytest_ddpperf.training.subject import Workload

T = TypeVar("T")


class PairedLaunches:
    """Runs the launches of candidate and reference, and records which modules of the project they import."""

    def __init__(
        self,
        reference: RevisionSide,
        sections: list[tuple[str, str]],
        candidate: RevisionSide | None = None,
        *,
        strict: bool = False,
    ) -> None:
        self.reference = reference
        self._candidate = candidate
        self._sections = sections
        self._of_candidate: dict[str, str] = {}
        self._of_reference: dict[str, str] = {}
        # Functions of test modules that both sides take from this checkout, with their files.
        self._shared: dict[str, str] = {}
        self.failures: list[tuple[str, str]] = []  # of the reference, as sections of the test's report
        self._strict = strict  # whether code of test modules that both sides would share is refused if it has changed
        self._lock = threading.Lock()  # launches of several variants end in threads of their own

    def run(
        self,
        launchers: Launchers,
        number: int,
        *call: Any,
        benchmark: tuple[str, int],
        reference: bool,
        variables: Variables = (),
        **group: Any,
    ) -> LaunchResult[Any]:
        """Calls ``Launcher.run(*call, **group)`` for the candidate, or for the reference if ``reference`` is true.

        ``number`` is the index of the candidate's launcher in ``launchers``, or of the reference's launcher. Only the
        reference's ranks get the environment ``variables``. If they fail, raises ReferenceFailed with ``benchmark``.
        """
        __tracebackhide__ = True
        if not reference:
            side = self._candidate or self.reference
            named = "" if self._candidate is None else side.revision.label
            return self._noted(
                self._of_candidate, launchers[number].run(observed, side.redirection, named, *call, **group)
            )
        try:
            of_reference = self.reference.launchers.with_variables(variables)[number]
            result = self._run_reference(of_reference, *call, **group)
        except (LaunchError, SameCode):
            raise
        except DdpperfError as error:
            self.failures.append((f"{benchmark[0]}, revision {self.reference.revision.label}", str(error)))
            self._sections.append(self.failures[-1])
            raise ReferenceFailed(str(error), benchmark=benchmark) from error
        return self._noted(self._of_reference, result)

    def _run_reference(self, launcher: Launcher, *call: Any, **group: Any) -> LaunchResult[Any]:
        redirection, named, run = self.reference.redirection, self.reference.revision.label, launcher.run
        with self._lock:
            packed_call = _reference_call(call, redirection)
        # Without tests of its own, the reference has this checkout's test modules, and nothing else of it.
        by_value = {**(packed_call.kept if self._strict else {}), **packed_call.inner}
        changed = [name for name, file in by_value.items() if not alike(file, redirection.path(file))]
        if changed:
            raise SameCode(
                f"{', '.join(changed)}: the file has changed, but both sides would run this checkout's code, because "
                "ranks cannot look up a function inside another function by name; move inner functions to the top level"
            )
        if not self.reference.tests:
            return run(observed, redirection, named, *call, **group)
        with self._lock:
            self._of_candidate.update(packed_call.modules)
            self._shared.update(packed_call.kept)
        return run(observed, redirection, named, run_packed, packed_call.packed, **group)

    def _noted(self, files: dict[str, str], result: LaunchResult[tuple[T, dict[str, str]]]) -> LaunchResult[T]:
        """Moves the ranks' recorded imports from a launch's result to ``files``; returns the rest of the result."""
        with self._lock:
            for _, imported in result.values:
                files.update(imported)
        values = tuple(value for value, _ in result.values)
        return LaunchResult(values, result.outputs, result.seconds, result.imports)

    @property
    def imports(self) -> tuple[dict[str, str], ...]:
        """Returns three mappings from module to file: of the candidate, the reference, and shared test modules."""
        return self._of_candidate, self._of_reference, self._shared

    def learn(self, earlier: PairedLaunches | None) -> None:
        """Copies the recorded imports and the reference's failures from an earlier run of the same call, if any."""
        if earlier is not None:
            self._sections += earlier.failures
            self.failures += earlier.failures
            for known, found in zip(self.imports, earlier.imports, strict=True):
                known.update(found)

    @property
    def modules(self) -> Mapping[str, tuple[str | None, str | None]]:
        """Returns the candidate's file and the reference's file for each module of the project."""
        tree = self.reference.redirection.target
        names = {*self._of_candidate, *(name for name, file in self._of_reference.items() if within(file, tree))}
        return {name: (self._of_candidate.get(name), self._of_reference.get(name)) for name in sorted(names)}

    def with_imports(self, result: Result) -> Result:
        """Adds the imported modules to a comparison's result, and a finding if both revisions ran the same code."""
        pair = result.pair
        if pair is None:
            return result
        named, modules, findings = self._named(pair), self.modules, list(result.findings)
        if pair.lacking:
            lacks = self.reference.lacks_submodules
            told = Finding("cannot_run", {"revision": named.named, "reason": pair.lacking, "submodules": lacks})
            findings.append(told)
        if self._shared and not self._strict:  # else they are the same on both sides
            option = KNOBS["against_tests"].option
            findings.append(Finding("no_name_to_look_up", {"option": option, "names": tuple(self._shared)}))
        if not self.reference.tests and (files := other_tests(result.test, self.reference.redirection)):
            findings.append(Finding("tests_differ", {"files": files}))
        if self.reference.revision.here:
            pass  # both sides run the same code
        elif within(str(Path(__file__).resolve().parent), self.reference.redirection.root):
            findings.append(Finding("tool_measured", {"tool": TOOL}))
        elif not modules and not pair.lacking:
            findings.append(Finding("same_code"))
        named = replace(named, modules=modules)
        stored = result.reference
        reference = replace(stored, pair=named) if isinstance(stored, StoredBaseline) else named
        return replace(result, findings=tuple(findings), reference=reference)

    def _named(self, paired: PairedRevision) -> PairedRevision:
        """Adds interpreter and differing packages to ``paired``, if the reference runs on another interpreter."""
        python = self.reference.revision.python
        if python is None:
            return paired
        of_candidate = None if self._candidate is None else self._candidate.revision.python
        here = (of_candidate or own_interpreter()).packages
        return replace(paired, python=python.given, packages=differing(python.packages, here))


class _ReferenceCall(NamedTuple):
    """A function and its arguments, pickled for the reference's ranks."""

    packed: bytes
    modules: Mapping[str, str]  # the test modules that the ranks look names up in, with their files here
    # Functions of test modules that have no name to look up, with their files: they stay this checkout's.
    kept: Mapping[str, str]
    inner: Mapping[str, str]  # the same of other modules of the project


def _reference_call(call: tuple[Any, ...], redirection: Redirection) -> _ReferenceCall:
    """Pickles a call for the reference's ranks, which look up objects of test modules in the other checkout."""
    modules = modules_of_tests(redirection)
    by_object = {
        id(value): (module, name)
        for module in modules
        for name, value in vars(sys.modules[module]).items()
        if _found_in(value, module, modules)
    }
    used: dict[str, str] = {}
    kept: dict[str, str] = {}
    inner: dict[str, str] = {}

    def stand_in(value: Any) -> StandIn | None:
        name = _name_of(value, modules) or by_object.get(id(value))
        if name is not None:
            module, path = name
            used[module] = modules[module]
            return look_up, (module, redirection.path(modules[module]), path)
        if isinstance(value, FunctionType) and value.__module__ in modules:
            kept[_place_of(value)] = modules[value.__module__]
        elif isinstance(value, FunctionType) and _travels_from(value, redirection):
            inner[_place_of(value)] = os.path.realpath(value.__code__.co_filename)
        return None

    return _ReferenceCall(dump_call(Call(call[0], call[1:]), stand_in), used, kept, inner)


def _place_of(function: FunctionType) -> str:
    code = function.__code__
    return f"{function.__qualname__} ({Path(code.co_filename).name}:{code.co_firstlineno})"


def _travels_from(function: FunctionType, redirection: Redirection) -> bool:
    """Returns whether a function of the project must be pickled with its code: ranks cannot import it by name."""
    found: Any = sys.modules.get(function.__module__)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    file = os.path.realpath(function.__code__.co_filename)
    return (
        found is not function
        and Path(file).is_file()
        and within(file, redirection.root)
        and not any(within(file, one) for one in redirection.kept)
    )


def _found_in(value: Any, module: str, test_modules: Mapping[str, str]) -> bool:
    """Returns True for ``module``'s functions and classes, any Workload or partial, and instances of tests' classes."""
    if isinstance(value, FunctionType) or inspect.isclass(value):
        return bool(value.__module__ == module)
    return isinstance(value, (Workload, functools.partial)) or type(value).__module__ in test_modules


def _name_of(value: Any, modules: Mapping[str, str]) -> tuple[str, str] | None:
    """Returns the module and the dotted name of a function, class or module in ``modules``; None for other values."""
    if isinstance(value, ModuleType):
        return (value.__name__, "") if value.__name__ in modules else None
    if not (isinstance(value, FunctionType) or inspect.isclass(value)) or value.__module__ not in modules:
        return None
    found: Any = sys.modules[value.__module__]
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return (value.__module__, value.__qualname__) if found is value else None
