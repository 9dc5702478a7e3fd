"""What a project is made of, as its files say: nothing of it is imported or run."""

from __future__ import annotations

import ast
import itertools
import keyword
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_ddpperf.cli.inifile import project_root

MOST_FILES = 5000  # that are looked at
MOST_BYTES = 1_000_000  # of a file that is looked at
MOST_BYTES_OF_ALL = 10_000_000  # of all of them: a million takes up to some seconds
MOST_IN_FOLDER = 20_000  # entries of a folder that are looked at: what has more is data
MOST_ENTRIES = 200_000  # of all folders
_NOT_CODE = {
    "__pycache__",
    "build",
    "dist",
    "docs",
    "node_modules",
    "perf",
    "perf_tests",
    "site-packages",
    "test",
    "tests",
}
_LONGER = {  # options that let a script train for longer than any launch, without - and _, each with a value
    **dict.fromkeys(("epochs", "numepochs", "nepochs", "maxepochs", "numtrainepochs", "epoch"), "1000"),
    **dict.fromkeys(
        ("steps", "maxsteps", "numsteps", "trainsteps", "iters", "maxiters", "numiters", "iterations"), "100000"
    ),
}
_LIGHTNING = {"lightning", "pytorch_lightning"}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingScript:
    """A file that trains when it is run."""

    file: Path  # from the root of the project
    framework: str = ""  # torch, accelerate, transformers or lightning
    longer: tuple[str, ...] = ()  # arguments with which it trains for longer than any launch
    devices: str = ""  # the option for the number of Lightning's processes
    processes: int = 1  # of Lightning, where its Trainer names a number
    needs: tuple[str, ...] = ()  # arguments that it does not run without


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """A folder with code that trains."""

    root: Path  # as pytest finds it from here
    rooted: bool  # whether pytest finds it from a folder of tests, too
    scripts: tuple[TrainingScript, ...]  # the likeliest first
    models: tuple[tuple[str, str], ...]  # module and class of what looks like a model
    installable: bool
    requirements: bool  # whether it has a requirements.txt


@dataclass(frozen=True, kw_only=True, slots=True)
class _Seen:
    """What is kept of a module: its syntax tree may take 500 times its bytes."""

    imported: frozenset[str]
    framework: str  # as of ``_framework``
    runs: bool
    script: TrainingScript  # what it is if it trains
    models: tuple[str, ...]


def look_at(folder: Path) -> Project:
    """The project that holds a folder; files that are no Python are left out."""
    root = project_root(folder)
    modules = dict(_modules(root))
    named = {_module(file): file for file in modules}
    scripts = [
        replace(seen.script, framework=framework)
        for file, seen in modules.items()
        if seen.runs and (framework := _framework_of(file, modules, named))
    ]
    models = [(_module(file), name) for file, seen in modules.items() if _importable(file) for name in seen.models]
    return Project(
        root=root,
        rooted=project_root(root / "tests") == root,
        scripts=tuple(sorted(scripts, key=_likely)),
        models=tuple(models),
        installable=any((root / name).is_file() for name in ("pyproject.toml", "setup.py")),
        requirements=(root / "requirements.txt").is_file(),
    )


def _modules(root: Path) -> Iterator[tuple[Path, _Seen]]:
    """Each module of a project by its file, until those that were looked at have ``MOST_BYTES_OF_ALL``."""
    left = MOST_BYTES_OF_ALL
    for path in _files(root):
        file, code = path.relative_to(root), _code(path)
        left -= len(code)
        if left < 0:
            return
        tree = _parsed(code)
        if tree is not None:
            imported, calls = _imported(tree), tuple(_calls(tree))
            seen = _Seen(
                imported=imported,
                framework=_framework(imported, {name for name, _ in calls}),
                runs=_runs(tree),
                script=_script(file, calls),
                models=tuple(_models(tree)),
            )
            yield file, seen


def _files(root: Path) -> Iterator[Path]:
    """The project's own code, the files of a folder before those below it; no environments, tests or hidden folders."""
    folders, files, left = [root], MOST_FILES, MOST_ENTRIES
    while folders and files > 0 and left > 0:
        entries = _entries(folders.pop(0), min(left, MOST_IN_FOLDER))
        left -= len(entries)
        found = [Path(entry) for entry in entries if entry.name.endswith(".py") and _is_file(entry.path)][:files]
        files -= len(found)
        yield from (file for file in found if not file.name.startswith("test_"))
        folders += [
            Path(entry)
            for entry in entries
            if entry.is_dir(follow_symlinks=False)
            and not entry.name.startswith(".")
            and entry.name not in _NOT_CODE
            and not _is_file(f"{entry.path}/pyvenv.cfg")
        ]


def _entries(folder: Path, most: int) -> list[os.DirEntry[str]]:
    """The entries of a folder in order, of a very large one some; none where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(itertools.islice(entries, most), key=lambda entry: entry.name)
    except OSError:
        return []


def _is_file(path: str) -> bool:
    """Whether there is such a file; False where nobody may look, too."""
    return os.path.isfile(path)  # noqa: PTH113 - which raises


def _code(file: Path) -> bytes:
    """The code in a file; none of one that cannot be read, or that is so large that it is data."""
    try:
        with file.open("rb") as opened:
            code = opened.read(MOST_BYTES + 1)
    except OSError:
        return b""
    return code if len(code) <= MOST_BYTES else b""


def _parsed(code: bytes) -> ast.Module | None:
    """The syntax tree of code; None of what is no Python, and no word on what only looks wrong."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last of code that is nested too deep
        return None


def _module(file: Path) -> str:
    parts = file.with_suffix("").parts
    return ".".join(parts[1:] if parts[0] == "src" else parts).removesuffix(".__init__")


def _importable(file: Path) -> bool:
    """Whether an import statement can name a module; a name may hold anything, such as a newline and code."""
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in file.with_suffix("").parts)


def _imported(tree: ast.Module) -> frozenset[str]:
    """The dotted names that a module imports, and those that it imports from modules."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


def _calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """The calls in a tree, each by the last part of its name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                yield node.func.attr, node
            elif isinstance(node.func, ast.Name):
                yield node.func.id, node


def _framework(imported: AbstractSet[str], called: AbstractSet[str]) -> str:
    """What a module trains with, by what it imports and calls; empty where it does not train."""
    tops = {name.partition(".")[0] for name in imported}
    if tops & _LIGHTNING and "fit" in called:
        return "lightning"
    if any(name.startswith("transformers.") and name.endswith("Trainer") for name in imported) and "train" in called:
        return "transformers"
    if "backward" in called and "step" in called:
        return "accelerate" if "accelerate" in tops else "torch" * ("torch" in tops)
    return ""


def _framework_of(file: Path, modules: Mapping[Path, _Seen], named: Mapping[str, Path]) -> str:
    """What a module, or one of the project's that it imports, trains with."""
    seen, left = {file}, [file]
    while left:
        here = left.pop(0)
        if modules[here].framework:
            return modules[here].framework
        new = {named[name] for name in modules[here].imported if name in named} - seen
        seen |= new
        left += sorted(new)
    return ""


def _runs(tree: ast.Module) -> bool:
    """Whether a module does something when it is run: by its guard, or by a loop or a call of training of its own."""
    for node in tree.body:
        if isinstance(node, ast.If) and any(getattr(each, "value", "") == "__main__" for each in ast.walk(node.test)):
            return True
        own = not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        if own and {"backward", "fit", "train", "main"} & {name for name, _ in _calls(node)}:
            return True
    return False


def _script(file: Path, calls: Sequence[tuple[str, ast.Call]]) -> TrainingScript:
    options = [
        (names, call)
        for called, call in calls
        if called == "add_argument" and (names := [arg.value for arg in call.args if isinstance(arg, ast.Constant)])
    ]
    longer: tuple[str, ...] = ()
    devices, needs = ("", ["the arguments of HfArgumentParser"] * any(name == "HfArgumentParser" for name, _ in calls))
    for names, call in options:
        long = next((name for name in reversed(names) if str(name).startswith("-")), None)
        word = str(long).replace("-", "").replace("_", "").lower()
        if long is not None and word in _LONGER and not longer:
            longer = (str(long), _LONGER[word])
        elif word in {"devices", "numdevices"}:
            devices = str(long)
        elif _needed(long, call):
            needs.append(str(long or names[0]))
    return TrainingScript(
        file=file,
        longer=longer,
        devices=devices,
        processes=max((_processes(call) for called, call in calls if called == "Trainer"), default=1),
        needs=tuple(needs),
    )


def _processes(call: ast.Call) -> int:
    """The number of processes that a Trainer of Lightning names; 1 where it names none."""
    values = [word.value for word in call.keywords if word.arg in {"devices", "num_nodes"}]
    numbers = [each.value for each in values if isinstance(each, ast.Constant) and isinstance(each.value, int)]
    return math.prod(numbers)


def _needed(option: object, call: ast.Call) -> bool:
    """Whether an argument has to be given."""
    words = {word.arg: word.value for word in call.keywords}
    if option is not None:
        return getattr(words.get("required"), "value", False) is True
    return getattr(words.get("nargs"), "value", None) not in {"?", "*"}


def _likely(script: TrainingScript) -> tuple[bool, int, int, str]:
    stem = script.file.stem.lower()
    name = 0 if stem == "train" else 1 if "train" in stem else 2 if stem in {"main", "run", "__main__"} else 3
    return bool(script.needs), name, len(script.file.parts), str(script.file)


def _models(tree: ast.Module) -> Iterable[str]:
    """The classes whose base is called Module, and those that say how they are trained."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            bases = {getattr(base, "attr", getattr(base, "id", "")) for base in node.bases}
            if bases & {"Module", "LightningModule", "PreTrainedModel"}:
                yield node.name
