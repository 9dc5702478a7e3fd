"""Functions, arguments and results as bytes: what each process can import travels by name, the rest by value."""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import io
import pickle
import sys
import sysconfig
import threading
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.errors import PayloadError
from pytest_ddpperf.launch.unpicklable import explain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_ddpperf.launch.messages import Call

StandIn = tuple["Callable[..., Any]", tuple[object, ...]]
_REWRITER = "AssertionRewritingHook"
_TO_RANKS = ("cannot be sent to the ranks", "make it inside the function")
_registry = threading.Lock()  # cloudpickle's list of modules by value is one for the whole process


def dump_call(call: Call) -> bytes:
    """A call, to be loaded on a rank.

    Raises:
        PayloadError: something in them cannot be pickled; the message names the way to it.
    """
    with _by_value():
        return _dump(call, call.function, *_TO_RANKS)


def dump_result(value: object, rank: int) -> bytes:
    """What a rank's function returned, to be loaded by the controller.

    Raises:
        PayloadError: something in it cannot be pickled; the message names the way to it.
    """
    return _dump(value, value, f"returned by rank {rank} cannot be sent back", "return plain data")


def dump_standing_in(value: object, named: object, stand_in: Callable[[Any], StandIn | None]) -> bytes:
    """A value in which some objects are replaced, wherever they are in it.

    Args:
        value: what to dump.
        named: what an error is about.
        stand_in: gives, for an object, a function and its arguments: what it returns where the value is loaded is what
            stands there for the object; None for the object as it is.

    Raises:
        PayloadError: as of ``dump_call``.
    """
    import cloudpickle  # type: ignore[import-untyped]  # it has no annotations

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no annotations
        def reducer_override(self, one: Any) -> Any:
            return stand_in(one) or super().reducer_override(one)

    def dumps(value: object, protocol: int) -> bytes:
        with io.BytesIO() as file:
            Pickler(file, protocol=protocol).dump(value)
            return file.getvalue()

    with _by_value():
        return _dump(value, named, *_TO_RANKS, dumps=dumps)


def loads(data: bytes) -> Any:
    """What was dumped.

    Raises:
        Exception: whatever the import of a module or a class's own ``__setstate__`` raises.
    """
    return pickle.loads(data)


def _dump(
    value: object, named: object, problem: str, cure: str, dumps: Callable[[object, int], bytes] | None = None
) -> bytes:
    import cloudpickle

    try:
        return bytes((dumps or cloudpickle.dumps)(value, pickle.HIGHEST_PROTOCOL))
    except Exception as error:  # a __reduce__ of anybody's may raise anything
        raise PayloadError(explain(value, named, error, problem, cure)) from error


@contextlib.contextmanager
def _by_value() -> Iterator[None]:
    """Have cloudpickle send the contents of modules that a rank could not import, for the time of one dump."""
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
    """Whether a fresh interpreter with this ``sys.path`` would not get this very module by importing ``name``.

    Test modules and conftests go by value even where they could be imported: pytest has rewritten their asserts, and
    importing them would run them without it. ``__main__`` is cloudpickle's own business.
    """
    if not isinstance(module, ModuleType) or name == "__main__" or module.__dict__.get("__name__") != name:
        return False
    file = module.__dict__.get("__file__")
    spec = module.__dict__.get("__spec__")
    loader = getattr(spec, "loader", None)
    if not isinstance(file, str):
        return loader is None and name not in sys.builtin_module_names and _defines_something(name, module)
    if file.startswith(_installed()):
        return False
    return type(loader).__name__ == _REWRITER or not _importable(name, file)


def _defines_something(name: str, module: ModuleType) -> bool:
    """Whether a module made by hand holds functions or classes; those that only stand for a folder do not."""
    return any(
        isinstance(getattr(value, "__qualname__", None), str) and getattr(value, "__module__", None) == name
        for value in list(module.__dict__.values())
    )


@functools.cache
def _installed() -> tuple[str, ...]:
    """Folders whose modules every interpreter of this environment imports alike; this package among them."""
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {entry for entry in sys.path if Path(entry).name in {"site-packages", "dist-packages"}}
    folders.add(str(Path(__file__).parent.parent))
    return tuple(f"{folder}/" for folder in folders)


def _importable(name: str, file: str) -> bool:
    search: Any = None
    spec: importlib.machinery.ModuleSpec | None = None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        spec = _find(".".join(parts[:depth]), search)
        if spec is None:
            return False
        search = spec.submodule_search_locations
        if search is None and depth < len(parts):
            return False
    return spec is not None and spec.origin is not None and _same_file(spec.origin, file)


def _find(name: str, search: Any) -> importlib.machinery.ModuleSpec | None:
    for finder in list(sys.meta_path):
        if type(finder).__name__ != _REWRITER:
            with contextlib.suppress(Exception):  # a finder that cannot answer here will not answer there
                spec = finder.find_spec(name, search)
                if spec is not None:
                    return spec
    return None


def _same_file(one: str, other: str) -> bool:
    return one == other or Path(one).resolve() == Path(other).resolve()
