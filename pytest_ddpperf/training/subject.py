"""The subjects of training: factories (Workload), or code with its own loop (Script). Importable without torch."""

from __future__ import annotations

import ast
import functools
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from pytest_ddpperf.errors import SettingError, WorkloadError
from pytest_ddpperf.instruments.host import from_here
from pytest_ddpperf.launch.environment import current_folder
from pytest_ddpperf.launch.redirection import own, told

if TYPE_CHECKING:
    import torch
    from torch import nn

_ARGUMENTS = {
    "model": (),
    "batch": (),
    "loader": ("rank", "world_size"),
    "loss": ("outputs", "targets"),
    "forward": ("model", "batch"),
    "optimizer": ("parameters",),
    "scheduler": ("optimizer",),
    "evaluate": ("model", "device"),
    "blocks": ("model",),
}
_FORMS = {name: f"{name}=lambda{' ' if names else ''}{', '.join(names)}: ..." for name, names in _ARGUMENTS.items()}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A training job as factories: every rank of every launch builds its own job, from the same seeds.

    A step zeroes the gradients, computes ``outputs = model(inputs)`` and ``loss(outputs, targets)``, runs backward,
    synchronises the gradients and calls ``optimizer.step()``. The data come from either ``batch`` or ``loader``.
    ``forward`` takes the place of ``loss`` if batches are no pairs or the model has several inputs.

    Attributes:
        model: returns the module, which is then moved to the rank's device.
        batch: returns one rank's ``(inputs, targets)``, nested structures of tensors, which every step uses. Called
            once; the tensors are moved to the rank's device.
        loader: ``loader(rank, world_size)`` returns an iterable of such batches, such as a DataLoader, which is
            iterated again and again. Waiting for a batch and moving it to the device are part of the step.
        loss: returns a scalar from ``(outputs, targets)``.
        forward: returns the loss, a scalar, from ``(model, batch)``. A batch may then be anything, such as a dict:
            ``forward=lambda model, batch: model(**batch).loss``.
        optimizer: returns the optimizer for the given parameters.
        scheduler: returns a scheduler of torch for that optimizer; its ``step()`` follows each optimizer step. None to
            keep the learning rate.
        evaluate: ``evaluate(model, device)`` returns the model's quality, for ``converge``: a number, or numbers by
            name, such as ``{"accuracy": 0.9}``. Every rank calls it, in evaluation mode without gradients, and the
            mean over ranks counts.
        samples_per_step: how many samples one rank's batch has. In strong mode, how many samples the global batch has,
            of which every rank takes an equal slice.
        tokens_per_step: how many tokens one rank's batch (in strong mode, the global batch) has; None without tokens.
        blocks: returns the modules that FSDP shards one by one; None to take the layers that repeat.

    Raises:
        WorkloadError: a field has a wrong value; the message names the field and the cure.
    """

    model: Callable[[], nn.Module]
    batch: Callable[[], Any] | None = None
    loss: Callable[[Any, Any], torch.Tensor] | None = None
    forward: Callable[[nn.Module, Any], torch.Tensor] | None = None
    optimizer: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]
    samples_per_step: float
    tokens_per_step: float | None = None
    loader: Callable[[int, int], Iterable[Any]] | None = None
    blocks: Callable[[nn.Module], Iterable[nn.Module]] | None = None
    scheduler: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler] | None = None
    evaluate: Callable[[nn.Module, torch.device], float | Mapping[str, float]] | None = None

    def __post_init__(self) -> None:
        if (self.batch is None) == (self.loader is None):
            raise WorkloadError(
                f"Workload has {'neither batch nor' if self.batch is None else 'both batch and'} loader: give one, "
                "either batch() for the same data in every step, or loader(rank, world_size) for an iterable of batches"
            )
        if (self.loss is None) == (self.forward is None):
            reason = f"Workload has {'neither loss nor' if self.loss is None else 'both loss and'} forward"
            cure = "give one, either loss(outputs, targets), or forward(model, batch), which returns the loss"
            raise WorkloadError(f"{reason}: {cure}")
        for name in _ARGUMENTS:
            value = getattr(self, name)
            required = name in {"model", "optimizer"}
            if not callable(value) and (required or value is not None):
                raise WorkloadError(f"Workload({name}=...) is {_short(value)}, not a function: give {_FORMS[name]}")
        _require_count("samples_per_step", self.samples_per_step)
        if self.tokens_per_step is not None:
            _require_count("tokens_per_step", self.tokens_per_step)
        self._refuse_modules()
        for name, form in _FORMS.items():
            value = getattr(self, name)
            problem = None if value is None else unfit(value, *_ARGUMENTS[name])
            if problem is not None:
                raise WorkloadError(f"Workload({name}=...): {problem}; give {form}")

    def _refuse_modules(self) -> None:
        torch = sys.modules.get("torch")
        if torch is None:
            return
        if isinstance(self.model, torch.nn.Module):
            reason = f"Workload(model=...) is a {type(self.model).__name__} module"
            cure = "give a function that builds it, so that every rank has its own (model=lambda: ...)"
            raise WorkloadError(f"{reason}: {cure}")
        if isinstance(self.loss, type) and issubclass(self.loss, torch.nn.Module):
            name = self.loss.__name__
            raise WorkloadError(f"Workload(loss=...) is the class {name}: give an instance, loss={name}()")


def _require_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise WorkloadError(f"Workload({name}={_short(value)}): give a finite number above 0")


def _short(value: object, limit: int = 60) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= limit else f"{text[:limit]}..."


def unfit(function: Callable[..., object], *names: str, **options: object) -> str | None:
    """Returns an error text if a function cannot be called with these positional and keyword arguments, else None."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None  # some functions in C have no signature
    try:
        signature.bind(*names, **options)
    except TypeError as error:
        if hasattr(function, "__wrapped__") and _takes(function, *names, **options):
            return None  # a decorator gives the rest
        call = ", ".join([*names, *(f"{name}={value!r}" for name, value in options.items())])
        plain = [found.replace(annotation=found.empty) for found in signature.parameters.values()]
        takes = signature.replace(parameters=plain, return_annotation=signature.empty)
        return f"{located(function)} takes {takes} and is called as {_name(function)}({call}): {error}"
    return None


def _takes(function: Callable[..., object], *names: str, **options: object) -> bool:
    """Returns whether a function accepts these arguments; for a decorated function, whether its wrapper does."""
    try:
        inspect.signature(function, follow_wrapped=False).bind(*names, **options)
    except TypeError:
        return False
    return True


def require_same_names(workload: Workload, names: Iterable[str], others: Iterable[str], where: str) -> None:
    """Raises an error if ``names`` and ``others``, the metrics of two calls of ``evaluate``, are not the same."""
    odd = sorted({*names} ^ {*others})
    if odd:
        assert workload.evaluate is not None  # noqa: S101  the loss alone has one name
        raise WorkloadError(
            f"{located(workload.evaluate)}: evaluate(model, device) must return the same names on every rank and in "
            f"every call, but these names differ {where}: {', '.join(odd)}"
        )


def located(function: Callable[..., object]) -> str:
    """Returns a function's name with file and line, for messages: ``build (perf_tests/test_x.py:12)``."""
    name = _name(function)
    code = getattr(inspect.unwrap(_without_partial(function)), "__code__", None)
    if code is None:
        return name
    return f"{name} ({from_here(code.co_filename)}:{code.co_firstlineno})"


def _name(function: Callable[..., object]) -> str:
    function = _without_partial(function)
    return getattr(function, "__name__", type(function).__name__)


def _without_partial(function: Callable[..., object]) -> Callable[..., object]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


@dataclass(frozen=True, init=False)
class Script:
    """Training code for torchrun, whose optimizer steps are measured: a script, or a function that trains.

    Every rank runs the code from the start. A file runs as ``__main__``, and a function is called without arguments. A
    file that is named ``__main__.py`` or has relative imports runs as if by ``python -m``. The code has the environment
    that torchrun sets, and makes and destroys its own process group. A step lasts until the optimizer that stepped
    first has stepped again, so it includes validation, printing and saving. When enough steps are measured, a
    ``BaseException`` stops the code: ``finally`` blocks run, but not the code after the training loop.

    Each launch works on a new copy of the project's files, so that no launch resumes from another launch's files.

    Attributes:
        target: the path of the file, or a function. A path starts at the test's folder, or else at pytest's rootdir.
        arguments: the arguments of the script on its command line.
        keep_files: whether all launches work on the project's own files instead of a copy.

    Raises:
        WorkloadError: the function takes arguments.
    """

    target: str | Callable[[], object]
    arguments: tuple[str, ...]
    keep_files: bool

    def __init__(
        self, target: str | os.PathLike[str] | Callable[[], object], *arguments: object, keep_files: bool = False
    ) -> None:
        object.__setattr__(self, "target", target if callable(target) else os.fspath(target))
        object.__setattr__(self, "arguments", tuple(map(str, arguments)))
        object.__setattr__(self, "keep_files", keep_files)
        if not callable(target):
            return
        # Arguments after a function go to ``sys.argv``, where it might miss them; a decorator such as Hydra's does not.
        problem = unfit(target)
        passes_on = getattr(target, "__code__", self.run.__code__).co_flags & inspect.CO_VARARGS
        completed = not passes_on and unfit(inspect.unwrap(target))
        if arguments and not (problem or completed or unfit(target, *map(str, arguments))):
            problem = f"{located(target)} takes arguments, but Script puts the values after the function into sys.argv"
        if problem is not None:
            given = ", ".join(map(repr, arguments)) or "..."
            name = getattr(target, "__name__", "function")
            raise WorkloadError(f"Script(function): {problem}; give Script(lambda: {name}({given}))")

    @property
    def name(self) -> str:
        """Returns the name of the file, or the function's name with file and line."""
        return located(self.target) if callable(self.target) else Path(self.target).name

    def found_in(self, folders: Iterable[Path]) -> Script:
        """Returns the script with its full path in the first folder that has it, or raises a SettingError."""
        if callable(self.target):
            return self
        places = dict.fromkeys(Path(os.path.abspath(folder / self.target)) for folder in folders)  # noqa: PTH100  links stay
        path = next((place for place in places if place.is_file()), None)
        if path is None:
            raise SettingError(
                f"Script({self.target!r}) does not exist; these files were tried: {', '.join(map(str, places))}"
            )
        return Script(path, *self.arguments, keep_files=self.keep_files)

    def projects(self, root: Path) -> tuple[str, ...]:
        """Returns the folders that each launch copies: git's top folder, the current folder and the script's folder."""
        top = next((folder for folder in (root, *root.parents) if (folder / ".git").exists()), root)
        others = {Path(current_folder()), top if callable(self.target) else Path(self.target).parent}
        folders = () if self.keep_files else dict.fromkeys((top, *sorted(others)))
        return tuple(str(folder) for folder in folders if folder != folder.parent)

    def run(self) -> None:
        """Runs the script in this process, from start to end."""
        arguments = ["=".join(map(own, text.split("="))) for text in self.arguments]
        if callable(self.target):
            of_module = getattr(self.target, "__globals__", {})  # of a module that may have travelled by value
            of_module["__file__"] = own(of_module.get("__file__", ""))
            sys.argv = [sys.argv[0], *arguments]
            self.target()
            return
        file = Path(own(self.target, code=True))  # that of the reference's checkout, or of the launch's own files
        if not file.is_file():
            raise WorkloadError(f"the script {file} does not exist on this node")
        code = compile(source := file.read_bytes(), told(str(file)), "exec", dont_inherit=True)
        module = ModuleType("__main__")
        module.__file__ = str(file)
        sys.modules["__main__"] = module  # for good: pickle, dataclasses and workers look up what it defines
        sys.argv = [str(file), *arguments]
        nodes = ast.walk(ast.parse(source))
        packaged = file.name == "__main__.py" or any(isinstance(node, ast.ImportFrom) and node.level for node in nodes)
        folder, names = file.parent, list[str]()
        while packaged and (not names or (folder / "__init__.py").exists()):
            folder, names = folder.parent, [folder.name, *names]
        sys.path.insert(0, str(folder))
        if names:  # as with python -m: relative imports work, also in spawned workers
            module.__package__ = ".".join(names)
            module.__spec__ = ModuleSpec(f"{module.__package__}.{file.stem}", None, origin=str(file))
            if not (file.parent / "__init__.py").exists():  # as with python FOLDER
                sys.path.insert(0, str(file.parent))
        exec(code, module.__dict__)  # noqa: S102  it is what was asked for


Subject: TypeAlias = "Workload | Script | Callable[[Any], Any]"
"""The measured subject: factories, training code as it is, or a function ``build(ctx)`` that returns one step."""
