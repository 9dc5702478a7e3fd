"""Training code that sets itself up and loops: a script or a function. Importable without torch."""

from __future__ import annotations

import ast
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from pytest_ddpperf.errors import SettingError, WorkloadError
from pytest_ddpperf.launch.environment import current_folder
from pytest_ddpperf.launch.redirection import own, told
from pytest_ddpperf.training.workload import Workload, located, unfit


@dataclass(frozen=True, init=False)
class Script:
    """Training code for torchrun: a script, or a function that trains. Its optimizer steps are measured.

    Every rank runs the code from the start: a file as ``__main__``, a function without arguments. A file that is named
    ``__main__.py`` or has relative imports runs as by ``python -m``. The code has the environment that torchrun sets,
    and makes and destroys its own process group. A step ends when the optimizer that stepped first has stepped again;
    validation, printing and saving in between are part of the step. When enough steps are measured, a
    ``BaseException`` stops the code: its ``finally`` blocks run, and code after its loop does not.

    Each launch works on a copy of the project's files, with the working folder and the script in it. The copy is
    removed before the next launch and at the end of the run, so that no launch resumes from another launch's files.

    Attributes:
        target: the path of the file, from the folder of the test or else from pytest's rootdir; or a function.
        arguments: the rest of ``sys.argv``, after the name of the file.
        keep_files: whether launches work on the project's own files, so that later launches find files of earlier ones.

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
            problem = f"{located(target)} takes arguments, but values after a function go to sys.argv"
        if problem is not None:
            given = ", ".join(map(repr, arguments)) or "..."
            name = getattr(target, "__name__", "function")
            raise WorkloadError(f"Script(function): {problem}; give Script(lambda: {name}({given}))")

    @property
    def name(self) -> str:
        """Returns the name of the file, or the function's name with file and line."""
        return located(self.target) if callable(self.target) else Path(self.target).name

    def found_in(self, folders: Iterable[Path]) -> Script:
        """Returns the script with the path of its file in the first of these folders that has it.

        Raises a SettingError if none of them has the file.
        """
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
        """Returns the folders that each launch copies: the current folder, the script's, and git's top folder."""
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
