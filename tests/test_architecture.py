"""The house keeps its plan: who may import what, how large a layer's files are, and where a verdict is made."""

from __future__ import annotations

import ast
import functools
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.judge import decision
from pytest_ddpperf.records.verdict import Verdict
from tests.factories import git

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pytest_ddpperf"

MAX_FOLDERS, MAX_FILES = 15, 8  # at the top level
MAX_CHAIN = 13  # layers, from the one that imports to the last one imported
MAX_LINES = 51_620
FALLS_FROM = 57_800  # once it is set to this or less, MAX_LINES never rises again
MAX_FILE = 320
LONGER = {
    "fixture.py": 621,  # the public docstrings of all verbs
    "judge/decision.py": 331,  # the only place that makes a verdict
    "launch/launcher.py": 348,  # the docstring of run
    "settings.py": 538,  # one row a knob
}
LOOKING = {"count", "decisive", "frozenset"}  # functions that are given verdicts to look for
MAX_DEALING = 3  # files beside run/budget that have to do with how the time is dealt out
MAX_OF_SESSION = 13  # methods and properties
MAX_UNUSED = 11  # modules in pytest's process, by a session without a benchmark
MAX_CALLS = 14  # from a check to a verdict of its, both counted
MAX_LOADED = 102  # modules in pytest's process, by a plain measure
MAX_TAKING_PART = 98  # files of which a function runs in a plain measure, in any process


def modules_after(statement: str) -> set[str]:
    """Top-level names of the modules that a fresh interpreter holds after ``statement``."""
    code = f"{statement}; import sys; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_loading_the_plugin_imports_neither_torch_nor_numpy() -> None:
    assert not {"torch", "numpy", "scipy", "tabulate", "cloudpickle", "msgspec"} & modules_after(
        "import pytest_ddpperf.plugin"
    )


def test_the_controller_never_imports_torch() -> None:
    modules = "pytest_ddpperf.plugin, pytest_ddpperf.fixture, pytest_ddpperf.cli.command, pytest_ddpperf.training.loop"
    statement = f"import {modules}; from pytest_ddpperf import *"
    assert not {"torch", "numpy"} & modules_after(statement)


@pytest.mark.slow  # a contract says the same of what we import ourselves
def test_the_ranks_never_import_pytest() -> None:
    modules = "pytest_ddpperf.launch.zygote, pytest_ddpperf.launch.rank, pytest_ddpperf.training.step"
    assert {"torch", "pytest", "_pytest"} & modules_after(f"import {modules}") == {"torch"}


def contracts(root: Path) -> set[str]:
    """The names of the contracts in pyproject.toml."""
    text = (root / "pyproject.toml").read_text().partition("[tool.importlinter]")[2]
    return set(re.findall('^name = "(.*)"$', text, re.MULTILINE))


def contracts_broken(root: Path) -> set[str]:
    """The names of the contracts of pyproject.toml that a copy of the project breaks, and what the tool said."""
    lint = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as lint; lint()"]
    done = subprocess.run([*lint, "--no-cache"], capture_output=True, text=True, cwd=root, check=False)
    text = " ".join(done.stdout.split())
    broken = {name for name in contracts(root) if f"{name} BROKEN" in text}
    assert bool(broken) == bool(done.returncode), done.stdout + done.stderr
    return broken


def test_imports_keep_the_contracts() -> None:
    """The contracts are in pyproject.toml, under tool.importlinter; each says what it forbids and why."""
    assert not contracts_broken(ROOT)


PLANTED = (
    ("records/verdict.py", "from pytest_ddpperf.metrics import table", "Imports run downward"),
    ("run/session/sides.py", "from pytest_ddpperf.run.call import variant", "A call uses its session"),
    ("stats/launches.py", "from pytest_ddpperf.stats import intervals", "No circle"),
    ("plugin.py", "from pytest_ddpperf.planner import predicting", "The planner is a separate layer"),
    ("judge/decision.py", "import torch", "The controller has no process group"),
    ("metrics/table.py", "import pytest", "Only what fails or skips a test knows pytest"),
    ("records/verdict.py", "import msgspec", "Ranks need torch"),
    ("strategies/fsdp1.py", "from pytest_ddpperf.strategies import fsdp2", "Torch's strategies"),
    ("metrics/phases.py", "from pytest_ddpperf.metrics import memory", "Metrics of one kind"),
    ("instruments/health.py", "from pytest_ddpperf.instruments.profile import events", "Instruments are used"),
    ("reports/progress.py", "from pytest_ddpperf.reports import failure", "A report is one renderer"),
    ("reports/formats/latex.py", "from pytest_ddpperf.reports.formats import flat", "A kind of file"),
)
"""Imports, each of which breaks one contract."""


def test_each_contract_is_broken_by_an_import_that_is_planted(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "pytest_ddpperf", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for file, line, _ in PLANTED:
        planted = tmp_path / "pytest_ddpperf" / file
        planted.write_text(planted.read_text() + f"\n{line}\n")
    broken = contracts_broken(tmp_path)
    assert broken == contracts(tmp_path)
    assert all(name.startswith(tuple(contract for _, _, contract in PLANTED)) for name in broken), "one has no import"


@functools.cache
def trees() -> dict[str, ast.Module]:
    """The syntax tree of each file of the package, by its path inside it."""
    files = sorted(PACKAGE.rglob("*.py"))
    return {str(file.relative_to(PACKAGE)): ast.parse(file.read_text()) for file in files}


def imported(tree: ast.AST) -> Iterator[str]:
    """The layers that a module imports from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pytest_ddpperf."):
            yield str(node.module).split(".")[1]


def longest_chain(arrows: dict[str, set[str]]) -> int:
    """The number of layers on the longest way along imports."""

    @functools.cache
    def length(room: str) -> int:
        return 1 + max((length(other) for other in arrows.get(room, ())), default=0)

    return max(map(length, arrows))


def test_a_chain_of_imports_is_short() -> None:
    arrows: dict[str, set[str]] = {}
    for path, tree in trees().items():
        room = path.partition("/")[0].removesuffix(".py")
        if room != "__init__":  # names what users import, from wherever it is
            arrows.setdefault(room, set()).update(set(imported(tree)) - {room})
    assert longest_chain({"a": {"b"}, "b": {"c"}, "c": set()}) == 3
    assert longest_chain(arrows) <= MAX_CHAIN


def test_the_package_has_few_folders_and_files_at_its_top() -> None:
    folders = [path for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"]
    files = list(PACKAGE.glob("*.py"))
    assert len(folders) <= MAX_FOLDERS
    assert len(files) <= MAX_FILES


def test_files_and_the_package_have_a_readable_size() -> None:
    lines = {str(file.relative_to(PACKAGE)): len(file.read_text().splitlines()) for file in PACKAGE.rglob("*.py")}
    assert {path: number for path, number in lines.items() if number > LONGER.get(path, MAX_FILE)} == {}
    assert sum(lines.values()) <= MAX_LINES


def ceilings(root: Path) -> list[int]:
    """The ceiling on lines in each commit that set it, the oldest first; skips a test if git does not tell them."""
    try:
        if git(root, "rev-parse", "--is-shallow-repository") == "true":
            pytest.skip("the clone is shallow: its history does not tell the ceilings of before")
        changed = ("log", "--reverse", "--first-parent", "-m", "--format=", "-p", "-U0", "-G^MAX_LINES = ")
        patches = git(root, *changed, "--", "tests/test_architecture.py")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"git does not tell the history: {error}")
    return [int(number) for number in re.findall(r"^\+MAX_LINES = ([0-9_]+)", patches, re.MULTILINE)]


def raised(values: Sequence[int]) -> list[tuple[int, int]]:
    """Where a ceiling rises after it was first lowered to ``FALLS_FROM`` or below: from what, to what."""
    pairs = list(pairwise(values))
    lowered = next((i for i, (before, after) in enumerate(pairs) if after <= FALLS_FROM < before), len(pairs))
    return [(before, after) for before, after in pairs[lowered:] if after > before]


def test_the_ceiling_on_lines_only_falls() -> None:
    assert raised([*ceilings(ROOT), MAX_LINES]) == []


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([34_000, 56_000, 58_000], []),
        ([34_000, 58_000, 57_800, 57_800, 57_000], []),
        ([58_000, 57_500, 57_600, 57_000, 58_000], [(57_500, 57_600), (57_000, 58_000)]),
    ],
)
def test_a_ceiling_that_rises_is_found(values: list[int], found: list[tuple[int, int]]) -> None:
    assert raised(values) == found


def test_ceilings_are_read_from_each_commit_of_a_whole_clone(tmp_path: Path) -> None:
    root, clone = tmp_path / "whole", tmp_path / "clone"
    file = root / "tests/test_architecture.py"
    file.parent.mkdir(parents=True)
    git(root, "init", "--quiet")
    for number in ("58_000", "57_500", "57_400"):
        file.write_text(f"MAX_FILE = 320\nMAX_LINES = {number}\n")
        git(root, "add", ".")
        git(root, "commit", "--quiet", "--message", number)
    assert ceilings(root) == [58_000, 57_500, 57_400]
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{root}", str(clone))
    with pytest.raises(pytest.skip.Exception, match="the clone is shallow"):
        ceilings(clone)
    with pytest.raises(pytest.skip.Exception, match="git does not tell the history"):
        ceilings(tmp_path)


def test_each_class_name_is_unique() -> None:
    names = Counter(
        node.name
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, number in names.items() if number > 1] == []


def last_name(node: ast.AST) -> str:
    """The name that a chain of attributes ends with."""
    return str(getattr(node, "attr", getattr(node, "id", "")))


def looked_at(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes in which a verdict is only compared with, looked for, or has words in a table."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            yield from (part for part in (node.left, *node.comparators) if not isinstance(part, ast.NamedExpr))
        elif isinstance(node, ast.match_case):
            yield node.pattern
        elif isinstance(node, ast.Set):  # of verdicts to look for
            yield node
        elif isinstance(node, ast.Call) and last_name(node.func) in LOOKING:
            yield from node.args
    for statement in getattr(tree, "body", ()):
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and isinstance(statement.value, (ast.Dict, ast.Tuple)):
            yield statement.value


def verdicts_made(tree: ast.AST) -> list[int]:
    """The lines in which a verdict is made: named other than to look for it, or put into a record of another."""
    harmless = {id(inner) for node in looked_at(tree) for inner in ast.walk(node)}
    lines = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and last_name(node.value).endswith("Verdict") and id(node) not in harmless:
            lines.add(node.lineno)
        called = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
        if called == "replace":
            lines |= {node.lineno for keyword in node.keywords if keyword.arg == "verdict"}  # type: ignore[attr-defined]
        if called == "Verdict":
            lines.add(getattr(node, "lineno", 0))
    return sorted(lines)


def test_a_verdict_is_made_in_one_module() -> None:
    made = {path: verdicts_made(tree) for path, tree in trees().items()}
    assert {path for path, lines in made.items() if lines} == {"judge/decision.py"}


@pytest.mark.parametrize(
    "code",
    [
        "def f(): return Verdict.REGRESSED",
        "x = Verdict.NEW if y else z",
        "replace(comparison, verdict=other)",
        "Result(verdict=Verdict.BROKEN)",
        "Verdict('new')",
        "x = max(v, Verdict.INCOMPATIBLE, key=k)",
        "def f(): return {True: Verdict.REGRESSED}[x]",
        "def f(): return (Verdict.NEW, Verdict.BROKEN)[w]",
        "replace(c, **{'verdict': Verdict.NEW})",
        "x = verdict.Verdict.NEW",
        "if (x := Verdict.NEW) is y: pass",
    ],
)
def test_a_planted_verdict_is_found(code: str) -> None:
    assert verdicts_made(ast.parse(code)) == [1]


@pytest.mark.parametrize("code", ["if x is Verdict.NEW: pass", "WORDS = {Verdict.NEW: 'new'}", "y.count(Verdict.NEW)"])
def test_code_that_only_reads_verdicts_makes_none(code: str) -> None:
    assert verdicts_made(ast.parse(code)) == []


def deals_out_time(tree: ast.AST) -> bool:
    """Whether a module imports what deals out the time, or reads a setting of how much there is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute):
            read = node.attr == "budget" and "settings" in ast.unparse(node.value).lower()
            names = ["pytest_ddpperf.run.budget"] if read or node.attr == "max_time" else []
        else:
            continue
        if any(f"{name}.".startswith("pytest_ddpperf.run.budget.") for name in names):
            return True
    return False


def test_time_is_allocated_in_one_place() -> None:
    others = {path: tree for path, tree in trees().items() if not path.startswith("run/budget/")}
    dealing = {path for path, tree in others.items() if deals_out_time(tree)}
    assert "run/session/session.py" in dealing
    assert len(dealing) <= MAX_DEALING, dealing


def test_a_session_has_few_methods() -> None:
    (session,) = (node for node in trees()["run/session/session.py"].body if isinstance(node, ast.ClassDef))
    methods = [node.name for node in session.body if isinstance(node, ast.FunctionDef)]
    assert "environment" in methods
    assert len(methods) <= MAX_OF_SESSION, methods


def reads_clocks(tree: ast.AST) -> bool:
    """Whether a module reads clocks that users' code may freeze or mock."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    names = {alias.name for node in imports for alias in node.names}
    return "time" in names | {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


def test_clocks_are_read_in_one_module() -> None:
    """In ``instruments/clock.py``, which has clocks that nobody else can freeze. The other one only sleeps."""
    assert {path for path, tree in trees().items() if reads_clocks(tree)} == {"against/guard.py"}
    assert "time.monotonic" not in (PACKAGE / "against/guard.py").read_text()


@pytest.mark.parametrize("code", ["import time", "import os, time as t", "from time import monotonic"])
def test_a_planted_clock_is_found(code: str) -> None:
    assert reads_clocks(ast.parse(code))
    assert not reads_clocks(ast.parse("from pytest_ddpperf.instruments.clock import system_time as time"))


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("from pytest_ddpperf.run.budget.allocation import allocate", True),
        ("from pytest_ddpperf.run import budget", True),
        ("import pytest_ddpperf.run.budget.session_budget", True),
        ("x = self._call.settings.max_time / 2", True),
        ("if config.stash[SETTINGS].budget is None: pass", True),
        ("from pytest_ddpperf.run.session.passes import Passes", False),
        ("x = session.budget.left + context.max_time_for(3)", False),
    ],
)
def test_a_planted_read_of_the_remaining_time_is_found(code: str, *, found: bool) -> None:
    assert deals_out_time(ast.parse(code)) is found


# Their launch has a deadline.
ON_RANKS = ("instruments/", "launch/rank.py", "planner/simulate/", "strategies/", "training/")
ENDLESS = {"acquire", "get", "join", "poll", "receive", "result", "select", "wait"}  # without arguments
LIMITED = {  # a pattern of what has to be among the arguments
    "communicate": "timeout",
    "create_connection": "(?i)seconds",
    "flock": "LOCK_(NB|UN)",
    "readable": "",
    "run": "timeout",
    "waitpid": "WNOHANG",
}
NEVER_LIMITED = {"accept", "getaddrinfo", "input", "recv", "recv_fds"}  # a socket may have a limit of its own
WAITS = {
    "launch/preloading/imports.py threads": "for a child that was killed",
    "launch/interleaving.py hear": "reads what has come",
    "launch/interleaving.py run_interleaved": "for launches, which have deadlines",
    "launch/interleaving.py wait": "on a rank",
    "launch/nodes/agent.py get_ready": "Launcher.wait",
    "launch/nodes/agent.py run": "the controller's end ends the link",
    "launch/nodes/agent.py serve": "the controller's end ends the link",
    "launch/nodes/cluster.py _welcome": "our own function, whose socket has a limit",
    "launch/nodes/joining.py follow": "the controller's end ends the link",
    "launch/link.py _part": "its socket has a limit",
    "launch/link.py accepted": "in a thread that the end of the run or launch ends",
    "launch/nodes/network.py own_address": "the resolver has a limit of its own",
    "launch/nodes/network.py splice": "in a thread that the end of the launch ends",
    "launch/own_files.py _own": "on a rank, for another that copies",
    "launch/payload.py _value_of": "it is there",
    "launch/streams.py asked": "on a rank",
    "launch/streams.py received": "reads what has come",
    "launch/zygote.py _hear_signals": "reads what has come",
    "launch/zygote.py serve": "the controller's end ends the socket; reads what has come",
    "launch/zygote_process.py usable": "Popen.poll, which does not wait",
    "launch/zygote_process.py events": "reads what has come",
}


def waits(tree: ast.AST) -> Iterator[str]:
    """The names of the functions that may wait for ever for somebody else, as far as a call shows it."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
            yield from {function.name for call in calls if may_be_endless(call)}


def may_be_endless(call: ast.Call) -> bool:
    """Whether a call waits and names no limit."""
    name, given = last_name(call.func).lstrip("_"), [*call.args, *call.keywords]
    if name in NEVER_LIMITED or (name == "read" and ast.unparse(call) == "sys.stdin.read()"):
        return True
    if name not in ENDLESS | LIMITED.keys() or ast.unparse(call.func) == "select.poll":
        return False
    if name in ENDLESS:
        return isinstance(call.func, ast.Attribute) and not given
    if name == "run" and ast.unparse(call.func) != "subprocess.run":
        return False
    text = " ".join(map(ast.unparse, given))
    return not re.search(LIMITED[name], text) or text.endswith("None")


def controller() -> dict[str, ast.Module]:
    """The modules of the package that do not run on ranks alone."""
    return {path: tree for path, tree in trees().items() if not path.startswith(ON_RANKS)}


def test_each_wait_of_the_controller_has_a_deadline_or_a_reason_why_it_ends() -> None:
    assert {f"{path} {function}" for path, tree in controller().items() for function in waits(tree)} == set(WAITS)


LIMITED_WAITS = LIMITED.keys() | {"import_module", "poll", "select", "settimeout", "sleep", "wait", "wait_for"}
LOCK = re.compile(r"_(lock|asking|news|sending|registry)$")
SHOWING = {"late", "watched"}
A_LOOK = "a look: its loop or its caller has the deadline"
A_LOCK = "a lock of threads, whose holder waits for nobody"
NO_CONTROLLER = "on a rank, in a fork server or in a guard, for which the controller waits"
A_STRANGER = "a thread of its own, for a peer that need not belong to the run"
OWN = "our own function, which shows them"
UNSHOWN = {  # waits that end, in functions that show no stacks when the deadline passes
    **dict.fromkeys(
        (
            "launch/launch_run.py _wait",  # the launch shows them, after all of its deadlines
            "launch/link.py _readable",
            "launch/link.py accepted",
            "launch/nodes/agent.py _serve",
            "launch/processes.py _ended",
            "launch/rank_processes.py calls",
            "launch/rank_processes.py _told",
            "launch/streams.py readable",
            "launch/streams.py received",
            "launch/zygote_process.py _stack",
            "launch/zygote_process.py events",
            "launch/zygote_process.py usable",
            "run/session/leases.py release",  # of a lock, which waits for nobody
            "run/session/leases.py take",
        ),
        A_LOOK,
    ),
    **dict.fromkeys(
        (
            "against/paired_launches.py _noted",
            "against/paired_launches.py _run_reference",
            "launch/interleaving.py hear",
            "launch/interleaving.py leave",
            "launch/launchers.py __getitem__",
            "launch/launchers.py parents",
            "launch/nodes/cluster.py _taken",
            "launch/nodes/cluster.py lost",
            "launch/payload.py _by_value",
            "reports/progress.py echo",
        ),
        A_LOCK,
    ),
    **dict.fromkeys(
        (
            "against/guard.py _end_others",
            "against/guard.py await_end",
            "launch/interleaving.py rest",
            "launch/nodes/meeting.py exchange",
            "launch/own_files.py _own",
            "launch/preloading/imports.py preload",
            "launch/preloading/imports.py threads",
            "launch/redirection.py _loaded",
            "launch/zygote.py _reap",
            "launch/zygote.py main",
            "launch/zygote.py preload",
            "launch/zygote.py serve",
            "launch/zygote.py sweep",
        ),
        NO_CONTROLLER,
    ),
    **dict.fromkeys(
        (
            "launch/link.py _give_up_a_silent_peer",
            "launch/link.py _greeted",
            "launch/link.py _part",
            "launch/link.py connect",
            "launch/nodes/network.py lead_to_store",
            "launch/nodes/network.py splice",
        ),
        A_STRANGER,
    ),
    **dict.fromkeys(
        (
            "launch/launchers.py wait",
            "launch/preloading/zygotes.py _imported",
            "launch/nodes/agent.py get_ready",
            "launch/nodes/cluster.py ended",
            "launch/nodes/cluster.py opened",
            "launch/zygote_process.py __init__",
            "run/call/benchmark_launches.py ready",
            "run/session/passes.py pytest_runtestloop",
            "run/session/rank_group.py _launch",
        ),
        OWN,
    ),
    **dict.fromkeys(
        (f"launch/launcher.py {name}" for name in ("close", "duplicate_preloaded", "preload", "ranks", "wait")),
        "a launch of another thread, which shows them, and ends, after all of its deadlines",
    ),
    **dict.fromkeys(
        ("against/revision_side.py check_out", "against/revision_side.py redirection"),
        "a checkout and a setup command of another thread, which show them",
    ),
    **dict.fromkeys(
        ("launch/nodes/agent.py keep", "launch/nodes/agent.py provide"),
        "a checkout of another thread, which shows them",
    ),
    "__init__.py __getattr__": "of our own module",
    "launch/nodes/agent.py close": "the controller shows them, which waits for the agent",
    "launch/streams.py send_bytes": "for another thread, which shows them",
    "settings.py parse": "of our own module",
}


def own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions inside of it."""
    waiting: list[ast.AST] = [*function.body]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, ast.FunctionDef):
            yield node
            waiting += ast.iter_child_nodes(node)


def may_wait(node: ast.AST) -> bool:
    """Whether a call waits, with or without a limit, or a ``with`` statement takes a lock."""
    if isinstance(node, ast.With):
        return any(LOCK.search(last_name(item.context_expr)) for item in node.items)
    if not isinstance(node, ast.Call):
        return False
    name, text = last_name(node.func), ast.unparse(node.func)
    if name == "join" and text.startswith(("'", '"')):
        return False
    if name == "join":
        return re.search("(?i)seconds|deadline|max_wait", " ".join(map(ast.unparse, node.args))) is not None
    return name in LIMITED_WAITS and (name != "run" or text == "subprocess.run")


def unshown(tree: ast.AST) -> Iterator[str]:
    """The names of the functions that wait, and show no stacks if the wait takes too long."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            nodes = [*own_nodes(function)]
            called = {last_name(node.func) for node in nodes if isinstance(node, ast.Call)}
            if not called & SHOWING and any(map(may_wait, nodes)):
                yield function.name


def test_each_wait_of_the_controller_shows_its_stacks_or_has_a_reason_why_not() -> None:
    found = {f"{path} {name}" for path, tree in controller().items() for name in unshown(tree)}
    assert found == set(UNSHOWN), found ^ set(UNSHOWN)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("process.wait(_SECONDS)", True),
        ("thread.join(_SECONDS)", True),
        ("', '.join(names)", False),
        ("with self._lock: pass", True),
        ("with open(file): pass", False),
        ("if not thread.join(_SECONDS): raise late(error)", False),
        ("with watched('late', 5): importlib.import_module(name)", False),
        ("importlib.import_module(name)", True),
        ("subprocess.run(command, timeout=5)", True),
        ("launcher.run(function)", False),
    ],
)
def test_a_planted_wait_that_shows_no_stacks_is_found(code: str, *, found: bool) -> None:
    assert list(unshown(ast.parse(f"def f():\n {code}"))) == ["f"] * found


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("thread.join()", True),
        ("','.join(names)", False),
        ("process.wait()", True),
        ("process.wait(_SECONDS)", False),
        ("subprocess.run(command, check=True)", True),
        ("subprocess.run(command, timeout=5)", False),
        ("launcher.run(function)", False),
        ("fcntl.flock(lock, fcntl.LOCK_EX)", True),
        ("fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)", False),
        ("readable([control], None)", True),
        ("readable([control], 5.0)", False),
        ("self._lock.acquire(blocking=False)", False),
        ("sys.stdin.read()", True),
    ],
)
def test_a_planted_wait_is_found(code: str, *, found: bool) -> None:
    assert list(waits(ast.parse(f"def f(): {code}"))) == ["f"] * found


def test_no_code_reads_attributes_from_dict() -> None:
    looked = [
        path
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "__dict__" and ast.unparse(node.value) == "self"
    ]
    assert looked == []


MEASURE = """
import torch
from torch import nn
from pytest_ddpperf import Workload

workload = Workload(
    model=lambda: nn.Linear(8, 4),
    batch=lambda: (torch.randn(6, 8), torch.randn(6, 4)),
    loss=nn.functional.mse_loss,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    samples_per_step=6,
)


def test_it(ddpperf):
    ddpperf.measure(workload, world_size=2, max_time=1, launches=2, steps=5, warmup=1, device="cpu", backend="gloo")
"""
COUNT = """
import sys


def pytest_unconfigure():
    names = [name for name in sys.modules if name.partition(".")[0] == "pytest_ddpperf"]
    print(f"modules of pytest_ddpperf: {len(names)}")
"""


def modules_loaded(pytester: pytest.Pytester) -> int:
    """The modules of the package in pytest's own process at its end; ranks import what runs on them."""
    pytester.makeconftest(COUNT)
    run = pytester.runpytest_subprocess("-q", "-s")
    run.assert_outcomes(passed=1)
    (line,) = [line for line in run.outlines if line.startswith("modules of pytest_ddpperf: ")]
    return int(line.rpartition(" ")[2])


@pytest.mark.parametrize(("setting", "more"), [("", 0), ("ddpperf_max_time = 5", 1)])
def test_a_session_without_a_benchmark_imports_hardly_anything(
    pytester: pytest.Pytester, setting: str, more: int
) -> None:
    """A setting that is given is held against the others, by a module of its own."""
    pytester.makepyfile("@__import__('pytest').mark.other\ndef test_it(): pass")
    pytester.makeini(f"[pytest]\nmarkers = other\n{setting}")
    assert modules_loaded(pytester) <= MAX_UNUSED + more


@pytest.mark.slow
def test_a_plain_measure_imports_few_modules(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_measure=MEASURE)
    assert modules_loaded(pytester) <= MAX_LOADED


@pytest.mark.slow
def test_a_check_comes_to_a_verdict_in_few_calls(inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a real check is inside of when it decides, beside another revision, with and without a diagnosis."""
    decide, found = decision.decide, set[tuple[str, ...]]()

    def counted(*given: Any, **more: Any) -> Verdict:
        frame, calls = sys._getframe(1), ["decide"]
        while frame.f_code.co_name != "check":
            calls.append(frame.f_code.co_name)
            assert frame.f_back is not None
            frame = frame.f_back
        found.add((*calls, "check"))
        return decide(*given, **more)

    monkeypatch.setattr(decision, "decide", counted)
    inner.makepyfile(test_measure=MEASURE.replace("ddpperf.measure(", "ddpperf.check("))
    git(inner.path, "init", "--quiet")
    git(inner.path, "add", ".")
    git(inner.path, "commit", "--quiet", "--message", "a check")
    inner.runpytest("-q", "--ddpperf-against=HEAD", "--ddpperf-fail-on=broken").assert_outcomes(passed=1)
    assert any("_diagnosed" in calls for calls in found)
    assert max(map(len, found)) <= MAX_CALLS, max(found, key=len)


WATCH = """
import os
import sys
import threading

PACKAGE, LOG = os.environ["WATCHED_PACKAGE"], os.environ["WATCHED_LOG"]
seen = set()


def watch(frame, event, _):
    code = frame.f_code
    path = code.co_filename
    if event != "call" or path in seen or not path.startswith(PACKAGE) or code.co_name == "<module>":
        return
    if not getattr(frame.f_globals.get("__spec__"), "_initializing", False):
        seen.add(path)
        with open(LOG, "a") as log:
            log.write(path + "\\n")


sys.setprofile(watch)
threading.setprofile(watch)
"""


@pytest.mark.slow
def test_a_plain_measure_takes_part_in_few_files(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """On both sides: in pytest's own process and in all that it starts. A file that is only imported does not count."""
    pytester.makepyfile(test_measure=MEASURE, sitecustomize=WATCH)
    log = pytester.path / "log"
    monkeypatch.setenv("WATCHED_PACKAGE", str(PACKAGE))
    monkeypatch.setenv("WATCHED_LOG", str(log))
    monkeypatch.setenv("PYTHONPATH", f"{pytester.path}:{ROOT}")
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=1)
    paths = [line.partition(" (as ")[0] for line in log.read_text().splitlines()]  # code that warnings do not name
    files = sorted({str(Path(path).relative_to(PACKAGE)) for path in paths})
    assert {"fixture.py", "training/loop.py"} <= set(files), "processes are not watched"
    assert len(files) <= MAX_TAKING_PART, "\n".join(files)
