"""The facts about a project that its files show; none of the project's code is imported or run."""

from __future__ import annotations

import itertools
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_ddpperf.cli.init.code import Code, Module, Program, read
from pytest_ddpperf.cli.options import project
from pytest_ddpperf.errors import SettingError

MOST_FILES = 5000  # that are looked at
MOST_BYTES = 1_000_000  # of a file that is looked at
MOST_BYTES_OF_ALL = 10_000_000  # of all of them: a million takes up to some seconds
MOST_IN_FOLDER = 20_000  # entries of a folder that are looked at: what has more is data
MOST_ENTRIES = 200_000  # of all folders
FAR = (99, 0)  # stands for the place of a file that no README names
_NOT_CODE = re.compile(r"\..*|__pycache__|build|dist|docs|node_modules|perf|perf_tests|site-packages|tests?")  # folders
_LONGER = {  # options that let a script train for longer than any launch, without - and _, and a value for each
    **dict.fromkeys(("epochs", "numepochs", "nepochs", "maxepochs", "numtrainepochs", "epoch", "niter"), "1000"),
    **dict.fromkeys(("maxsteps", "maxtrainsteps", "trainsteps", "maxiters", "totaltimesteps"), "100000"),
    # Of some scripts these are of something else.
    **dict.fromkeys(("iterations", "numiterations", "iters", "numiters", "steps", "numsteps"), "100000"),
}
_LIGHTNING = {"lightning", "pytorch_lightning"}
_DEVICES = {"--devices", "--num_devices", "--num-devices"}  # options for the number of processes
# Whose arguments the code does not show, or that need the name of a command.
_PARSERS = {"HfArgumentParser", "TrlParser", "LightningCLI", "CLI", "auto_cli", "add_subparsers", "add_subcommands"}
_PARSERS |= {"Fire", "Typer", "click.group"}
# By these calls, or by the variables that they read, scripts say that they train on several ranks.
_JOINING = re.compile(
    "init_process_group|init_distributed|init_device_mesh|DDP|FSDP|(Fully|Distributed).*Parallel|fully_shard|"
    "Accelerator|Fabric|auto_model|init_dist|RANK|LOCAL_RANK|WORLD_SIZE"
)
# Calls that start processes, whose steps the plugin does not see; the last one is submitit's.
_STARTING = {"spawn", "start_processes", "notebook_launcher", "ddp_spawn", "AutoExecutor"}
_OTHER_PURPOSE = re.compile(  # by a word of a script's name
    r"(?:.*[\W_])?(?:(?:eval|convert|export|infer|generat|sampl|predict|bench|visual)[a-z]*|tests?|demo|megatron|tpu|"
    r"single_(?:device|gpu))(?:[\W_].*)?"
)
_NO_TRAINING = re.compile(r"(?:.*_)?(?:convert|export|infer|inference|generate|sample|predict|tests?)(?:_.*)?")
# Code, and what names scripts.
_LOOKED_AT = re.compile(r".*\.(?:md|py|sh|slurm|sbatch)|README.*|Makefile|justfile|pyproject\.toml", re.DOTALL)
# A file, a module that Python runs, or the function of a command. Here and below no letter is read twice.
_NAMED = re.compile(r"(?<![\w./-])([\w./-]+\.py)\b|(?:-m|--module)[ =]+(\w+(?:\.\w+)*)|= *[\"'](\w+(?:\.\w+)+)")
_RUN = r"(?:(?:uv|poetry|pdm|pixi|pipenv) run )?"
_STARTER = r"(?:python3?|torchrun|accelerate launch|deepspeed|srun|fabric run|lightning run model)"
_OTHER = r"(?![^`\n]* --(?:help|eval|test)\b)"
_COMMAND = re.compile(rf"(?:^|`)[ $]*((?:\w+=[^\s`]+ +)*{_RUN}{_STARTER} {_OTHER}[^`\n]+)", re.MULTILINE)
MOST_OF_COMMAND = 300  # letters that are shown
_CONTINUED = re.compile(r"(?<![ \t])[ \t]*\\[ \t]*\n\s*")  # a line of a shell that the next one continues
_FENCE = re.compile(r"^[ \t]*```[^`\n]*$", re.MULTILINE)
_PROSE = re.compile(r"(?<!\s)\s{2,}(?![-\s]|\S*\.py\b).*")  # that explains a command, at a distance from it
_WORD = re.compile(r"(?!.*path/to)(?=.*\w)[\w./:=,@+-]+", re.ASCII)  # a shell and Python take it as it is


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingScript:
    """A file that trains when it is run."""

    file: Path  # from the root of the project
    framework: str = ""  # torch, accelerate, fabric, transformers, trl or lightning
    longer: tuple[str, ...] = ()  # arguments with which it trains for longer than any launch
    devices: str = ""  # the option for the number of Lightning's processes
    processes: int = 1  # of Lightning, if its Trainer names a number
    needs: tuple[str, ...] = ()  # arguments that it requires
    joins: bool = False  # whether it trains on several ranks, as far as its code says
    starts: bool = False  # whether it starts processes of its own
    # Parts of the path of the README or run script next to the root that names it, and its place in that file.
    named: tuple[int, int] = FAR
    command: str = ""  # that starts it in a README or run script, behind the name of that file
    given: tuple[str, ...] = ()  # the arguments of that command


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """A folder with code that trains."""

    root: Path  # as pytest finds it from here
    rooted: bool  # whether pytest finds it from a folder of tests, too
    scripts: tuple[TrainingScript, ...]  # the likeliest first
    installable: bool
    requirements: bool  # whether it has a requirements.txt


def look_at(folder: Path, chosen: Path | None = None) -> Project:
    """Finds the training scripts of the project around a folder; if ``chosen`` is given, looks only at this script."""
    root, _ = project(folder)
    here = Path(os.path.relpath(folder, root))
    named: defaultdict[Path, tuple[int, int]] = defaultdict(lambda: FAR)
    commands: defaultdict[Path, dict[str, Any]] = defaultdict(dict)
    modules = dict(_modules(root, named, commands))
    # Others call nothing when they are run.
    files = [file for file, module in modules.items() if module[""].words]
    if chosen is not None:
        files = [Path(os.path.relpath(folder / chosen, root))]
        is_file = chosen.suffix == ".py" and (root / files[0]).is_file()
        module = (modules.get(files[0]) or read(files[0], _code(root / files[0]))) if is_file else None
        if module is None:
            raise SettingError(f"{chosen} is not a Python file: name a training script")
        modules[files[0]] = module
    program = Program(modules)
    scripts = [
        replace(each, framework=each.framework or "torch", named=named[each.file], **commands[each.file])
        for each in (_script(file, program.reached(file)) for file in files)
        if each.framework or chosen
    ]
    likely = [each for each in scripts if "train" in each.file.stem or not _NO_TRAINING.fullmatch(each.file.stem)]
    return Project(
        root=root,
        rooted=project(root / "tests")[0] == root,
        scripts=tuple(sorted(likely or scripts, key=lambda each: _likely(each, here))),
        installable=any((root / name).is_file() for name in ("pyproject.toml", "setup.py")),
        requirements=(root / "requirements.txt").is_file(),
    )


def _modules(
    root: Path, named: dict[Path, tuple[int, int]], commands: dict[Path, dict[str, Any]]
) -> Iterator[tuple[Path, Module]]:
    """Yields the modules of a project with their files, until ``MOST_BYTES_OF_ALL`` bytes have been read.

    Also fills two dicts. The keys of ``named`` are the files that a README or a shell script mentions; a value is the
    depth of the README or script in the project, and the number of files that it mentions earlier. ``commands`` maps
    each file that a command starts to the command and its arguments.
    """
    left, files = MOST_BYTES_OF_ALL, [*_files(root)]
    known = {str(file.relative_to(root)) for file in files}
    for path in files:
        code = _code(path)
        left -= len(code)
        if left < 0:
            return
        if path.suffix != ".py":
            where, text = path.relative_to(root), _CONTINUED.sub(" ", code.decode(errors="replace"))
            readme, markdown = path.stem == "README", path.suffix == ".md"
            for place, each in enumerate(_named(text, where.parent, known) if readme or not markdown else ()):
                named.setdefault(each, (len(where.parts), place))  # the former grows from file to file
            for command, marked in _commands(text, prose=readme or markdown):
                for each in _named(command, where.parent, known):
                    told = f"{where} starts it by: {command[:MOST_OF_COMMAND].strip()}"
                    given = _arguments(command, each, marked=marked)
                    devices = {word.partition("=")[0] for word in given} & _DEVICES
                    found = {"command": told, "given": given, **({"devices": min(devices)} if devices else {})}
                    commands.setdefault(each, found)
        elif (module := read(path.relative_to(root), code)) is not None:
            yield path.relative_to(root), module


def _commands(text: str, *, prose: bool) -> Iterator[tuple[str, bool]]:
    """Yields each command in a text, and whether the command is surely code: in a script, a fenced block or backticks.

    ``prose``: whether the text is a page such as a README, and not a script.
    """
    for number, part in enumerate(_FENCE.split(text)):
        for found in _COMMAND.finditer(part):
            marked = not prose or number % 2 == 1 or found[0].startswith("`")
            yield _PROSE.sub("", found[1]) if prose else found[1], marked


def _arguments(command: str, file: Path, *, marked: bool) -> tuple[str, ...]:
    """Returns the arguments of a script in a command; none if a shell would change them, or if they may be prose.

    They may be prose if the command is not ``marked`` as code, and no word looks like an option, a setting or a file.
    """
    module = ".".join(file.with_suffix("").parts).removeprefix("src.").removesuffix(".__main__")
    words = re.split(r"\s(?:[|;&>#]|\d>)", command)[0].split()
    places = [i for i, word in enumerate(words, 1) if Path(word).name == file.name or word == module]
    found = words[places[0] :] if places else []
    code = marked or any(re.match(r"-|.*(?:[=/]|\w\.\w)", word) for word in found)
    return tuple(found) if code and all(map(_WORD.fullmatch, found)) else ()


def _named(text: str, folder: Path, known: Collection[str]) -> Iterator[Path]:
    """Yields the ``known`` files that a text in ``folder`` may name; all paths are relative to the same root."""
    for file, run, called in dict.fromkeys(_NAMED.findall(text)):
        module = (run or called).replace(".", "/")
        names = [f"{module}.py", f"{module}/__main__.py"] if module else [file]
        paths = (os.path.normpath(f"{base}/{name}") for base in (folder, ".", "src") for name in names)
        yield from (Path(path) for path in paths if path in known)


def _files(root: Path) -> Iterator[Path]:
    """Yields a folder's files, then its subfolders'; omits environments, tests and hidden folders."""
    folders, files, left = [root], MOST_FILES, MOST_ENTRIES
    while folders and files > 0 and left > 0:
        entries = _entries(folders.pop(0), min(left, MOST_IN_FOLDER))
        left -= len(entries)
        found = [Path(entry) for entry in entries if _LOOKED_AT.fullmatch(entry.name) and os.path.isfile(entry)][:files]  # noqa: PTH113
        files -= len(found)
        yield from (file for file in found if not file.name.startswith("test_"))
        folders += [
            Path(entry)
            for entry in entries
            if entry.is_dir(follow_symlinks=False)
            and not _NOT_CODE.fullmatch(entry.name)
            and not os.path.isfile(f"{entry.path}/pyvenv.cfg")  # noqa: PTH113 - a Path raises if nobody may look
        ]


def _entries(folder: Path, most: int) -> list[os.DirEntry[str]]:
    """Returns up to ``most`` entries of a folder, in order; none if the folder cannot be read."""
    with suppress(OSError), os.scandir(folder) as entries:
        return sorted(itertools.islice(entries, most), key=lambda entry: entry.name)
    return []


def _code(file: Path) -> bytes:
    """Returns the code in a file; empty if the file cannot be read, or is so large that it must be data."""
    code = b""
    with suppress(OSError), file.open("rb") as opened:
        code = opened.read(MOST_BYTES + 1)
    return code if len(code) <= MOST_BYTES else b""


def _framework(code: Code) -> str:
    """Returns the framework that code trains with, judged by its names and calls; empty if it does not train."""
    tops, called = {name.partition(".")[0] for name in code.uses}, code.words
    trainers = {top for name in code.uses if name.endswith("Trainer") and (top := name.partition(".")[0])}
    fits = "fit" in called and ("Fabric" not in called or trainers & _LIGHTNING)  # or it is a function of their own
    if "LightningCLI" in called or (tops & _LIGHTNING and fits):
        return "lightning"
    for library in ("trl", "transformers"):
        if library in trainers and "train" in called:
            return library
    if not {"backward", "step"} <= called and "NativeScaler" not in called:  # timm's scaler does both
        return ""
    uses = {"fabric": "Fabric" in called, "accelerate": "accelerate" in tops, "torch": "torch" in tops}
    return next((name for name, used in uses.items() if used), "")


def _script(file: Path, code: Code) -> TrainingScript:
    """Returns the description of a script that runs ``code``; ``framework`` is "" if the code does not train."""
    framework = _framework(code)
    longer: dict[str, str] = {}  # an option by its name without - and _
    devices, needs = "", [f"the arguments of {name}" for name in sorted(_PARSERS & (code.words | code.uses))]
    for words, needed in code.options:
        long = next((word for word in reversed(words) if word.startswith("-")), "")
        word = long.replace("-", "").replace("_", "").lower()
        if word in _LONGER:
            longer.setdefault(word, long)
        elif long in _DEVICES:
            devices = long
        elif needed:
            needs.append(long or words[0])
    return TrainingScript(
        file=file,
        framework=framework,
        longer=next(((longer[word], value) for word, value in _LONGER.items() if word in longer), ()),
        devices=devices,
        processes=code.processes,
        needs=tuple(needs),
        joins=framework not in {"", "torch"} or any(map(_JOINING.fullmatch, code.words)),
        starts=bool(code.words & _STARTING),
    )


def _likely(script: TrainingScript, here: Path) -> tuple[bool | int | str, ...]:
    """Returns a sort key: likely scripts are first, such as scripts below ``here`` and scripts that a README starts."""
    stem = script.file.stem.lower()
    name = 0 if stem == "train" else 1 if "train" in stem else 2 if stem in {"main", "run", "__main__"} else 3
    odd = any(map(_OTHER_PURPOSE.fullmatch, script.file.with_suffix("").parts))
    started = bool(script.command) and script.named[0] == 1 and not script.starts  # by a file at the root
    far, lacks = not script.file.is_relative_to(here), bool(script.needs and not script.given)
    facts = (far, odd, not started, not script.joins, script.starts, lacks)
    depth, place = script.named
    unstarted = not script.command or script.named == FAR
    return *facts, depth, name, unstarted, place, len(script.file.parts), len(str(script.file)), str(script.file)
