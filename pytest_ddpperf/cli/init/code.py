"""Finds the functions that Python code reaches when it runs, and their calls, by the names in the source code."""

from __future__ import annotations

import ast
import functools
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

_RUNNING = {"backward", "fit", "main", "train"}  # calls by which an assignment trains
_NESTED = re.compile(r"\b[A-Z][^\Wa-z]*[a-z]\w*\.[A-Z]")  # Trainer.Config, whose use makes no Trainer
_TEXTS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "ddp_spawn")  # that say how a script trains
# A framework's repository has scripts that use the framework; the framework's own code says nothing about them.
_FRAMEWORKS = {"torch", "accelerate", "lightning", "pytorch_lightning", "transformers", "trl"}


@dataclass(slots=True)
class Code:
    """The names, calls and options in source code; the code's syntax tree would take 500 times as much memory."""

    uses: set[str] = field(default_factory=set)  # dotted names, each as its module is called
    words: set[str] = field(default_factory=set)  # the last parts of what it calls, and texts that say how it trains
    options: list[tuple[tuple[str, ...], bool]] = field(default_factory=list)  # and whether one has to be given
    processes: int = 1  # that a Trainer of Lightning names

    def add(self, other: Code) -> None:
        """Adds the names, calls and options of ``other`` code."""
        self.uses |= other.uses
        self.words |= other.words
        self.options += other.options
        self.processes = max(self.processes, other.processes)


Module: TypeAlias = Mapping[str, Code]
"""The code of a file's functions, classes, methods and variables by name; "" is the name of module-level code."""


def read(file: Path, text: bytes) -> Module | None:
    """Parses a Python file, whose path ``file`` is relative to the project's root; returns None for other text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's warnings on suspicious code
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last of code that is nested too deep
        return None
    imports = _imports(tree, file)
    tops = {target.partition(".")[0] for target in imports.values()}
    parts = {name: Code(uses={target}) for name, target in imports.items()} | {"": Code(uses=set(tops))}
    conditions = (node.test for node in tree.body if isinstance(node, ast.If))
    guarded = any(getattr(each, "value", "") == "__main__" for test in conditions for each in ast.walk(test))
    for node in tree.body:
        later: frozenset[ast.AST] = frozenset()
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))]
            called = {each.name: each for each in methods if not each.name.startswith("__")}
            parts |= {f"{node.name}.{name}": _code_of(each, imports) for name, each in called.items()}
            later = frozenset(called.values())
        found, names = _code_of(node, imports, later), _names(node)
        for name in names:
            parts.setdefault(name, Code(uses=set(tops))).add(found)
        # A command of click or typer is called by its name; a variable does nothing until it is used.
        commands = guarded and bool(getattr(node, "decorator_list", ()))
        if commands or not names or (isinstance(node, ast.Assign) and _RUNNING & found.words):
            parts[""].add(found)
    if not any(name.startswith("*") for name in parts):  # else any name may be one of another module
        for code in parts.values():
            code.uses = {used for used in code.uses if (top := used.partition(".")[0]) in tops or top in parts}
    return parts


def _imports(tree: ast.Module, file: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {each.asname: each.name for each in node.names if each.asname}
            found |= {top: top for each in node.names if not each.asname and (top := each.name.partition(".")[0])}
        elif isinstance(node, ast.ImportFrom):
            package = file.parts[: len(file.parts) - node.level] if node.level else ()
            base = ".".join([*package, *([node.module] if node.module else [])])
            found |= {
                each.asname or (each.name if each.name != "*" else f"*{base}"): f"{base}.{each.name}"
                for each in node.names
            }
    return found


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]


def _code_of(node: ast.AST, imports: Mapping[str, str], apart: frozenset[ast.AST] = frozenset()) -> Code:
    """Returns the names, calls and options in a node of the syntax tree; does not look into the nodes ``apart``."""
    found, left, names, arguments = Code(), [node], set[str](), set[str]()
    while left:
        dotted, here = _dotted(left.pop())
        if dotted:
            names.add(dotted)
            continue
        left += [each for each in ast.iter_child_nodes(here) if each not in apart]
        if isinstance(here, ast.arg):
            arguments.add(here.arg)
        elif isinstance(here, ast.Constant) and here.value in _TEXTS:
            found.words.add(str(here.value))
        elif isinstance(here, ast.Call):
            called = getattr(here.func, "attr", getattr(here.func, "id", ""))
            found.words.add(called)
            words = tuple(str(each.value) for each in here.args if isinstance(each, ast.Constant))
            if called == "add_argument" and words:
                found.options.insert(0, (words, _is_needed(words, here)))
            elif called in {"Trainer", "Fabric"}:
                values = [word.value for word in here.keywords if word.arg in {"devices", "num_nodes"}]
                numbers = [each.value for each in values if isinstance(each, ast.Constant)]
                named = math.prod(number for number in numbers if isinstance(number, int))
                found.processes = max(found.processes, named)
    for top, dot, more in (name.partition(".") for name in names):
        used = imports.get(top, top) + dot + more
        if top not in arguments and not _NESTED.search(used):
            found.uses.add(used)
    return found


def _dotted(node: ast.AST) -> tuple[str, ast.AST]:
    """Returns a dotted name, such as ``kit.loop.train``, and its first node; the name is "" if the node is no name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    top = node.id if isinstance(node, ast.Name) else "self"
    return "" if top == "self" else ".".join([top, *reversed(parts)]), node


def _is_needed(names: Sequence[str], call: ast.Call) -> bool:
    words = {word.arg: word.value for word in call.keywords}
    if names[-1].startswith("-"):
        return getattr(words.get("required"), "value", False) is True
    nargs = words.get("nargs")
    return getattr(nargs, "attr", getattr(nargs, "value", None)) not in {"?", "*", "...", "REMAINDER"}


class Program:
    """The modules of a project, in which ``reached`` finds the code that a script uses."""

    def __init__(self, modules: Mapping[Path, Module]) -> None:
        self._modules = modules
        self._files = {".".join(file.with_suffix("").parts).removesuffix(".__init__"): file for file in modules}
        self._deepest = max((name.count(".") + 1 for name in self._files), default=0)
        self._stars = functools.cache(lambda file: [name[1:] for name in modules[file] if name.startswith("*")])
        self._methods: dict[tuple[Path, str], set[tuple[Path, str]]] = {}  # by class
        for place in ((file, name) for file, module in modules.items() for name in module if "." in name):
            self._methods.setdefault((place[0], place[1].partition(".")[0]), set()).add(place)
        self._place = functools.cache(self._find)

    def reached(self, file: Path) -> Code:
        """Returns all code that a script reaches: its own code, and the code of other modules that it uses.

        Types are unknown, so a method of a reached class counts as reached if reached code contains the method's name.
        """
        folder = ".".join([*file.parent.parts, ""])
        found, seen, left = Code(), {(file, "")}, [(file, "")]
        methods: dict[str, set[tuple[Path, str]]] = {}  # that are not reached, by their names
        words: set[str] = set()  # names of methods that may be reached now
        while left:
            here, name = left.pop()
            code = self._modules[here][name]
            words |= code.words - found.words
            found.add(code)
            for each in self._methods.get((here, name), ()):
                methods.setdefault(method := each[1].partition(".")[2], set()).add(each)
                words |= {method} & found.words
            new = {place for used in code.uses if (place := self._place(used, here, folder)) is not None} - seen
            if not left and not new:
                new = {each for word in words for each in methods.pop(word, ())} - seen
                words.clear()
            left += sorted(new)
            seen |= new
        return found

    def _find(self, used: str, here: Path, folder: str) -> tuple[Path, str] | None:
        """Finds the definition of a dotted name that the file ``here`` uses; returns the definition's file and name."""
        parts, own = used.split("."), self._modules[here]
        # As Python looks them up for a script of a project that is installed; frameworks are read by nobody.
        bases = (folder,) if parts[0] in _FRAMEWORKS - {*here.parts} else (folder, "", "src.")
        for number in range(min(len(parts) - 1, self._deepest), 0, -1):
            for base in bases:
                other = self._files.get(base + ".".join(parts[:number]))
                if other is not None and parts[number] in self._modules[other]:
                    return other, parts[number]
        if parts[0] in own:
            return here, parts[0]
        stars = self._stars(here) if len(parts) == 1 else ()
        return next(filter(None, (self._place(f"{star}.{used}", here, folder) for star in stars)), None)
