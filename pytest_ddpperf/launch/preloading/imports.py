"""Records the imports of ranks and fork servers: their durations, side effects and the variables that they read."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import sysconfig
import threading
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.errors import in_a_line
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.launch import processes
from pytest_ddpperf.launch.environment import LAUNCHER_VARIABLES, MARK
from pytest_ddpperf.launch.messages import Preload, Preloaded, SeenImport
from pytest_ddpperf.launch.redirection import TOOL, Redirection, installed_folders, within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from typing_extensions import Self

_BOOTSTRAP: Any = sys.modules["_frozen_importlib"]
_FIND = "_find_and_load"  # each import of a new module calls it
_LEAST_SECONDS = 1e-3  # of an import that is worth a report
_OWN_RANK = frozenset({"RANK", "LOCAL_RANK"})
_of_project: list[str] = []  # folders and files of installed packages that are the project under test
_DISTRIBUTED = "torch.distributed"


@dataclass(slots=True)
class _Import:
    """An import of a module that was not yet in ``sys.modules``."""

    module: str
    installed_outside: bool  # whether an installed module imports it
    seconds: float = 0.0
    inner: list[_Import] = field(default_factory=list)
    variables: set[str] = field(default_factory=set)  # environment variables that its own lines read
    changed: set[str] = field(default_factory=set)  # those whose value had changed since the watch began

    def flat(self) -> Iterator[_Import]:
        """Yields this import and all imports inside it, in the order of their starts."""
        yield self
        for inner in self.inner:
            yield from inner.flat()

    def seen(self) -> SeenImport:
        """Returns this import as a record that a rank can send."""
        changed, refused = sorted({name for one in self.flat() for name in one.changed}), None
        if changed or any(one.variables & LAUNCHER_VARIABLES for one in self.flat()):
            reason = f"reads {', '.join(changed)}, which ranks change before this import" if changed else ""
            refused = Preloaded(reason=reason, own_rank=not changed, inner=tuple(_harmless([self])))
        return SeenImport(self.module, _file(self.module), self.seconds, refused=refused)


class ImportWatch:
    """A context that records this thread's imports."""

    def __init__(self) -> None:
        self.outer: list[_Import] = []
        self.open: list[_Import] = []
        self.around: Callable[[], Callable[[], None]] | None = None  # called before an import; its result, after it
        self._failed: set[str] = set()
        self._environ = dict(os.environ)
        self._thread = threading.get_ident()
        self._original: Any = None

    def __enter__(self) -> Self:
        sysconfig.get_config_vars()  # imports a module, which would be noted, unless torch has done so
        self._original = getattr(_BOOTSTRAP, _FIND)
        setattr(_BOOTSTRAP, _FIND, self._find)
        return self

    def __exit__(self, *_: object) -> None:
        if getattr(_BOOTSTRAP, _FIND) == self._find:  # it may have ended before
            setattr(_BOOTSTRAP, _FIND, self._original)

    def _find(self, module: str, import_: Any) -> Any:
        if threading.get_ident() != self._thread:
            return self._original(module, import_)
        outside = self.open[-1] if self.open else None
        found = _Import(module, outside is not None and (outside.installed_outside or _is_installed(outside.module)))
        (self.outer if outside is None else outside.inner).append(found)
        self.open.append(found)
        end = None if self.around is None or found.installed_outside else self.around()
        begun = time.perf_counter()
        try:
            with _looking(self.open, self._environ) if outside is None else nullcontext():
                return self._original(module, import_)
        except BaseException:
            if outside is None and module in self._failed:  # code may try in each step
                self.outer[-1:] = [one for one in found.inner if one.module in sys.modules]
            self._failed.add(module)
            raise
        finally:
            found.seconds = time.perf_counter() - begun
            self.open.pop()
            if outside is None:
                everything = set(os.environ)
                for one in found.flat():
                    if everything <= one.variables:  # it read all variables in a loop, and looked for none
                        one.variables -= everything
                        one.changed -= everything
            if end is not None and _is_installed(module):
                end()

    def seen(self) -> tuple[SeenImport, ...]:
        """Returns imports of at least 1 ms: outermost imports, and installed modules that the user's code imports."""
        seen = []
        for outermost in self.outer:
            of_installed = [one for one in outermost.flat() if not one.installed_outside and _is_installed(one.module)]
            seen += [one.seen() for one in of_installed]
            if outermost not in of_installed:
                own = outermost.seconds - sum(one.seconds for one in of_installed)
                seen.append(SeenImport(outermost.module, _file(outermost.module), own, installed=False))
        tool = (TOOL, f"{TOOL}.")
        return tuple(one for one in seen if one.seconds >= _LEAST_SECONDS and not f"{one.module}.".startswith(tool))


def end_watch() -> None:
    """Stops watching imports in this process, because the watch must not disturb timed steps."""
    watch = getattr(getattr(_BOOTSTRAP, _FIND), "__self__", None)
    if isinstance(watch, ImportWatch):
        watch.__exit__()


def keep_with_ranks(redirection: Redirection) -> None:
    """Makes each rank itself import the modules of the reference revision; they are not imported before the fork."""
    _of_project.extend(filter(None, (redirection.environment, *redirection.copies)))


def _file(module: str) -> str:
    file = getattr(sys.modules.get(module), "__file__", None)
    return file if isinstance(file, str) else ""


def _is_installed(module: str) -> bool:
    """Returns whether a module's file lies in a folder of installed packages, but not in an editable install."""
    file = _file(module)
    if not Path(file).is_absolute():
        return False
    real = str(Path(file).resolve())
    return real.startswith(installed_folders()) and not any(within(real, folder) for folder in _of_project)


@contextmanager
def _looking(imports: list[_Import], known: Mapping[str, str]) -> Iterator[None]:
    """Records which environment variables the innermost import reads, and which values differ from ``known``."""
    kind: Any = type(os.environ)
    original = kind.__getitem__

    def look_up(environ: Any, name: Any) -> Any:
        value = None
        try:
            value = original(environ, name)
            return value
        finally:
            decoded = os.fsdecode(name) if isinstance(name, str if environ is os.environ else bytes) else ""
            for one in imports[-1:] if decoded else ():  # if another thread reads, the import may have ended
                one.variables.add(decoded)
                if known.get(decoded) != (None if value is None else os.fsdecode(value)):
                    one.changed.add(decoded)

    kind.__getitem__ = look_up
    try:
        yield
    finally:
        kind.__getitem__ = original


def threads() -> int:
    """Returns the number of this process's threads that survive a fork (OpenBLAS ends its threads at a fork)."""
    if len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208  only their number
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.kill(pid, signal.SIGKILL)  # what libraries do in a child may hang it; its fork is enough
        os.waitpid(pid, 0)
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208  the same


_TRACES: dict[str, Callable[[], object]] = {
    "starts a thread": threads,
    "starts a process": processes.children,
    "changes the environment variables": lambda: dict(os.environ),
    "changes a signal handler": lambda: [signal.getsignal(number) for number in sorted(signal.valid_signals())],
    "opens a file or a socket": processes.open_files,  # ranks close it
    "changes the search path": lambda: list(sys.path),
    "changes the current folder": os.getcwd,
    "changes the number of threads of torch": lambda: sys.modules["torch"].get_num_threads(),  # noqa: PLW0108  imported later
    "uses a GPU": processes.touches_gpu,
    "initialises torch.distributed": lambda: _DISTRIBUTED in sys.modules and sys.modules[_DISTRIBUTED].is_initialized(),
}
"""The side effects that forbid an import before ranks are forked, with functions that read the changed state."""


def preload(request: Preload) -> Preloaded:
    """Imports a module as a rank would; if the result has a ``reason``, this process must not fork ranks."""
    sys.path[:] = request.path
    os.chdir(request.directory)
    for name in set(os.environ) - set(request.environ):
        del os.environ[name]
    os.environ.update({name: value for name, value in request.environ.items() if name != MARK})
    if request.module in sys.modules:
        return Preloaded()
    known, before = set(sys.modules), {trace: read() for trace, read in _TRACES.items()}
    watch, reason = ImportWatch(), ""
    with watch:
        try:
            importlib.import_module(request.module)
        except BaseException as error:  # noqa: BLE001  such as SystemExit; the controller reports it
            reason = f"raises {in_a_line(error)}"
    changed = [trace for trace, read in _TRACES.items() if read() != before[trace]]
    variables = {name for outermost in watch.outer for one in outermost.flat() for name in one.variables}
    reason = reason or ", ".join(changed) or _foreign(set(sys.modules) - known, request)
    of_rank = variables & LAUNCHER_VARIABLES
    if not reason and of_rank - (_OWN_RANK if request.of_rank else frozenset()):
        reason = f"reads {', '.join(sorted(of_rank))}"
    gc.freeze()
    return Preloaded(
        reason=reason,
        own_rank=not request.of_rank and of_rank <= _OWN_RANK and reason.startswith("reads "),
        inner=tuple(_harmless(watch.outer)) if reason else (),
        variables={name: os.environ.get(name) for name in variables - LAUNCHER_VARIABLES},
    )


def _foreign(modules: set[str], request: Preload) -> str:
    """Returns why ``modules``, which an import loaded, cannot be preloaded; empty if they can."""
    if request.file and _file(request.module) != request.file:
        return f"comes from {_file(request.module)} in the process that forks ranks, but from {request.file} on ranks"
    for module in sorted(modules):
        if Path(_file(module)).is_absolute() and module.partition(".")[0] != TOOL and not _is_installed(module):
            return f"imports {module}, which is not installed"
    return ""


def _harmless(imports: list[_Import]) -> Iterator[SeenImport]:
    """Yields the nested imports that can be preloaded, because they do not read variables such as RANK."""
    refused = {
        one.module.partition(".")[0]
        for outermost in imports
        for one in outermost.flat()
        if one is outermost or one.changed or one.variables & LAUNCHER_VARIABLES
    }

    def parts(one: _Import) -> Iterator[SeenImport]:
        tops = {part.module.partition(".")[0] for part in one.flat()}
        if not tops & refused and one.seconds >= _LEAST_SECONDS and _is_installed(one.module):
            yield SeenImport(one.module, _file(one.module), one.seconds)
            return
        for inner in one.inner:
            yield from parts(inner)

    for outermost in imports:
        yield from parts(outermost)
