"""Functions, arguments and results as bytes: importable objects are pickled by name, others by value."""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import io
import marshal
import pickle
import sys
import threading
from concurrent.futures import Future
from itertools import accumulate
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.errors import PayloadError, in_a_line
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.instruments.deadlines import late
from pytest_ddpperf.launch import redirection, unpicklable
from pytest_ddpperf.launch.messages import Call, Finished

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_ddpperf.launch.faults.failures import RankEnd

StandIn = tuple["Callable[..., Any]", tuple[object, ...]]
"""A function and its arguments: unpickling calls the function, whose value replaces the pickled object."""
_REWRITER = "AssertionRewritingHook"
_TO_RANKS = ("cannot be sent to the ranks", "create this object inside the function")
_PACKAGE = f"{Path(__file__).parents[1]}/"
_MIN_LOAD_SECONDS = 2.0
_registry = threading.Lock()  # cloudpickle has one list of modules to send by value for the whole process


def dump_call(call: Call, stand_in: Callable[[Any], StandIn | None] = lambda _: None) -> bytes:
    """Pickles a call for the ranks; ``stand_in`` returns a replacement for an object in the call, or None."""
    with _by_value():
        return _dump(call, call.function, *_TO_RANKS, stand_in=stand_in)


def dump_result(value: object, rank: int) -> bytes:
    """Pickles a function's result for the controller."""
    return _dump(value, value, f"returned by rank {rank} cannot be sent back", "return plain data")


def values_of(ends: Sequence[RankEnd], seconds: float) -> tuple[Any, ...]:
    """Unpickles the values that ranks returned; raises PayloadError if this takes more than ``max(seconds, 2)`` s."""
    deadline = time.monotonic() + max(seconds, _MIN_LOAD_SECONDS)
    return tuple(_value_of(end, deadline) for end in ends)


def _value_of(end: RankEnd, deadline: float) -> Any:
    """Unpickles a rank's value in a thread, because an import or a __setstate__ may never return."""
    if not isinstance(end.report, Finished):
        raise TypeError(end.report)
    loading: Future[Any] = Future()
    pickled = end.report.value

    def load() -> None:
        try:
            loading.set_result(pickle.loads(pickled))
        except BaseException as error:  # noqa: BLE001  also SystemExit, which must not end the session
            loading.set_exception(error)

    thread = threading.Thread(target=load, name="ddpperf-load", daemon=True)
    thread.start()
    thread.join(max(0.0, deadline - time.monotonic()))
    if not loading.done():
        reason = "was not read by the test session before the deadline of the launch"
        raise late(PayloadError(f"the result of rank {end.rank} {reason}; return plain data"))
    error = loading.exception()
    if error is not None:
        raise PayloadError(
            f"the result of rank {end.rank} cannot be read by the test session: {in_a_line(error)}; return plain data"
        ) from error
    return loading.result()


def _dump(
    value: object, named: object, problem: str, cure: str, stand_in: Callable[[Any], StandIn | None] = lambda _: None
) -> bytes:
    """Pickles ``value``, or raises a PayloadError that says which part of ``value`` cannot be pickled."""
    import cloudpickle  # type: ignore[import-untyped]  # it has no annotations

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no annotations
        def reducer_override(self, obj: Any) -> Any:
            return stand_in(obj) or _kept(obj) or super().reducer_override(obj)

    try:
        with io.BytesIO() as file:
            Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
            return file.getvalue()
    except Exception as error:  # an object's own __reduce__ may raise anything
        raise PayloadError(unpicklable.explain(value, named, error, problem, cure)) from error


def _kept(obj: Any) -> StandIn | None:
    """Returns a replacement for an object that cloudpickle cannot send completely; None for any other object."""
    if isinstance(obj, CodeType):  # cloudpickle 3.1.3 leaves out the file, which tracebacks and stacks name
        return marshal.loads, (marshal.dumps(obj),)
    # Such as torch.backends.cudnn, whose class is not ModuleType.
    if isinstance(obj, ModuleType) and type(obj) is not ModuleType and sys.modules.get(obj.__name__) is obj:
        return importlib.import_module, (obj.__name__,)
    return None


@contextlib.contextmanager
def _by_value() -> Iterator[None]:
    """Makes cloudpickle, in this context, pickle the contents of modules that a rank could not import."""
    import cloudpickle

    with _registry:
        known = set(cloudpickle.list_registry_pickle_by_value())
        modules = [m for name, m in list(sys.modules.items()) if name not in known and travels_by_value(name, m)]
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)


def travels_by_value(name: str, module: object) -> bool:
    """Returns whether a module is sent by value, because ranks could not import the same module by its name.

    Test modules and conftests are sent by value even if ranks could import them, because an import would lose the
    asserts that pytest has rewritten. cloudpickle itself handles ``__main__``.
    """
    if not isinstance(module, ModuleType) or name == "__main__" or module.__dict__.get("__name__") != name:
        return False
    file = module.__dict__.get("__file__")
    spec = module.__dict__.get("__spec__")
    loader = getattr(spec, "loader", None)
    if not isinstance(file, str):
        # A module without a file may hold functions and classes; one that stands for a folder does not.
        named = [each for each in [*module.__dict__.values()] if isinstance(getattr(each, "__qualname__", None), str)]
        defines = any(getattr(each, "__module__", None) == name for each in named)
        return loader is None and name not in sys.builtin_module_names and defines
    if file.startswith((*redirection.installed_folders(), _PACKAGE)):
        return False
    return type(loader).__name__ == _REWRITER or not _importable(name, file)


def _importable(name: str, file: str) -> bool:
    search: list[str] | None = None
    *packages, _ = accumulate(name.split("."), "{}.{}".format)
    for package in packages:
        spec = _find(package, search)
        search = None if spec is None else spec.submodule_search_locations
        if search is None:
            return False
    spec = _find(name, search)
    if spec is None or spec.origin is None:
        return False
    return spec.origin == file or Path(spec.origin).resolve() == Path(file).resolve()


def _find(name: str, search: Any) -> importlib.machinery.ModuleSpec | None:
    for finder in list(sys.meta_path):
        if type(finder).__name__ != _REWRITER:
            with contextlib.suppress(Exception):  # a finder that fails here fails on the ranks too
                spec = finder.find_spec(name, search)
                if spec is not None:
                    return spec
    return None
