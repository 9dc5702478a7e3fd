"""``ddpperf init``: inspects a project, and writes a first test file or a CI job from a template in this folder."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import distribution
from itertools import takewhile
from pathlib import Path
from textwrap import wrap
from types import MappingProxyType

from pytest_ddpperf.against.git import GitError, git, top_folder
from pytest_ddpperf.cli.init.project import Project, TrainingScript, look_at
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.reports.files import write_text
from pytest_ddpperf.reports.lines import printable

TEST_FILE = "test_training.py"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``ddpperf init``."""
    text = "the script that trains (default: the likeliest one)"
    parser.add_argument("script", type=Path, nargs="?", metavar="FILE", help=text)
    text = "folder of the tests, relative to the root of the project (default: %(default)s)"
    parser.add_argument("--tests", type=Path, default=Path("perf"), metavar="DIR", help=text)
    parser.add_argument("--ci", choices=[*CI_FOLDERS], help="write only a job for this CI, no test")
    parser.add_argument("--force", action="store_true", help="replace the file that is there")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Writes the test or the job, and prints the next steps; replaces an existing file only with --force."""
    project = look_at(Path.cwd(), options.script)
    tests = _folder(Path(options.tests), project.root)
    test = project.root / tests / TEST_FILE
    file, text = job(options.ci, project, tests, test) if options.ci else (test, test_text(project, tests))
    if file.exists() and not options.force:
        another = ", or another folder with --tests" * (file == test)
        raise SettingError(f"{from_here(file)} exists already: give --force to replace it{another}")
    write_text(file, text, "ddpperf init")
    lines = [*([] if options.ci else found_lines(project)), f"wrote {from_here(file)}"]
    if options.ci == "gitlab":
        lines.append(f"add to .gitlab-ci.yml:  include: {CI_FOLDERS['gitlab']}/{file.name}")
    if UNKNOWN in text:
        lines.append(f"put the address of the repository of pytest-ddpperf in place of {UNKNOWN} in {from_here(file)}")
    if not test.exists():
        lines.append(f"there is no {from_here(test)} yet: ddpperf init writes it")
    named = shlex.quote(from_here(test.parent))
    lines += [
        "",
        f"pytest {named} --ddpperf-quick     a first check, in seconds",
        f"pytest {named} --ddpperf-save      commit first; then store a baseline, and commit it",
        f"pytest {named}                     compare with it",
    ]
    print("\n".join(map(printable, lines)))
    return 0


def _folder(tests: Path, root: Path) -> Path:
    """Returns the tests' folder, relative to the root; raises SettingError for a name unsafe in a shell or in YAML."""
    whole = (root / tests).resolve()
    if not whole.is_relative_to(root.resolve()):
        raise SettingError(f"--tests {tests} is not inside the project {root}: name a folder inside it")
    folder = whole.relative_to(root.resolve())
    if not PLAIN.fullmatch(folder.as_posix()):
        reason = f"--tests {tests} has a character that a shell or YAML may change, or begins with -"
        raise SettingError(f"{reason}: name a folder of letters, digits and ._-/ that does not begin with -")
    return folder


WIDTH = 110  # of a comment
STEPS = 20  # of a launch, if it is unknown how long a script trains
CI_FOLDERS: Mapping[str, str] = MappingProxyType({"github": ".github/workflows", "gitlab": ".gitlab"})
_NAMES = {"trl": "TRL", "fabric": "Fabric", "lightning": "Lightning", "accelerate": "Accelerate"}  # of frameworks
_LIGHTNING = {"lightning", "fabric"}
UNKNOWN = "URL-OF-THE-REPOSITORY"
PLAIN = re.compile(r"(?!-)[\w./-]+")  # a name that a shell and YAML take as it is
_NUMBER = re.compile("0|[1-9][0-9]*")
_LISTED = 5  # other scripts that are named, at most
_HEAD = '"""Is training as fast as it was? Written by ddpperf init: change it as you like."""\n'
_SCRIPT = """
from pytest_ddpperf import Script


def test_training(ddpperf):
{remarks}    ddpperf.check({call})
"""
_WORKLOAD = """
import torch
from torch import nn

from pytest_ddpperf import Workload

# Put your own model, batch, loss and optimizer in place of these.
workload = Workload(
    model=lambda: nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)),
    batch=lambda: (torch.randn(32, 64), torch.randint(10, (32,))),
    loss=nn.functional.cross_entropy,
    optimizer=lambda parameters: torch.optim.AdamW(parameters),
    samples_per_step=32,
)


def test_training(ddpperf):
    ddpperf.check(workload, strategy="ddp")
"""


def from_here(file: Path) -> str:
    """Returns a file's path relative to the current folder."""
    return Path(os.path.relpath(file)).as_posix()


def found_lines(project: Project) -> list[str]:
    """Returns messages about the training script that was found in a project, and about other scripts that train."""
    if not project.scripts:
        return [f"no training script in {project.root}: the test trains a small model; replace it by your own"]
    script, (file, *others) = project.scripts[0], [from_here(project.root / each.file) for each in project.scripts]
    needs = ", ".join(script.needs) * (not script.given)
    lines = [f"{file} trains with {_NAMES.get(script.framework, script.framework)}: the test runs it unchanged"]
    if needs:
        lines = [f"{file} needs {needs} to run: add these arguments after the file name in the test"]
    lines += [script.command] * bool(script.command)
    if script.starts:
        lines.append(f"{file} can start processes itself, whose steps the plugin does not see: run it under torchrun")
    if others:
        more = f" and {len(others) - _LISTED} more" * (len(others) > _LISTED)
        lines.append(f"other scripts that train: {', '.join(others[:_LISTED])}{more}; ddpperf init FILE uses another")
    return lines


def test_text(project: Project, folder: Path) -> str:
    """Returns the text of a project's test file; ``folder`` is the test file's folder, relative to the root."""
    if not project.scripts:
        return _HEAD + _WORKLOAD
    script = project.scripts[0]
    lines = (line for remark in _script_remarks(script) for line in wrap(printable(remark), WIDTH))
    remarks = "".join(f"    # {line}\n" for line in lines)
    return _HEAD + _SCRIPT.format(remarks=remarks, call=", ".join(_arguments(script, project, folder)))


def job(kind: str, project: Project, folder: Path, test: Path) -> tuple[Path, str]:
    """Returns the path and the text of a CI job for the tests in ``folder``; ``kind`` is a key of ``CI_FOLDERS``."""
    top, branch = project.root, "main, master"
    with suppress(GitError):  # without a repository the project is the whole of one to be
        top = top_folder(project.root)
        of_remote = "refs/remotes/origin/"
        branch = json.dumps(git(top, "symbolic-ref", f"{of_remote}HEAD").removeprefix(of_remote))
    own = project.root.resolve().relative_to(top.resolve())
    if not PLAIN.fullmatch(own.as_posix()):
        raise SettingError(f"{own}: a CI job cannot name this folder: rename it, with letters, digits and ._-/ only")
    name = "-".join(("performance", *own.parts))
    packages = ["-r requirements.txt"] * project.requirements + ["-e ."] * project.installable
    framework = project.scripts[0].framework if project.scripts else "torch"
    if not packages and framework != "torch":
        packages = [{"fabric": "lightning"}.get(framework, framework)]
    # A model that the test itself defines is that of the reference only by the tests of the reference.
    of_tests = test.is_file() and "Workload(" in test.read_text(encoding="utf-8", errors="replace")
    words = {
        "JOB": name,
        "DEFAULT-BRANCH": branch,
        "FOLDER/": f"{own.as_posix()}/" if own.parts else "",
        "FOLDER": own.as_posix(),
        "PACKAGES": " ".join([*packages, shlex.quote(requirement())]),
        "TESTS": folder.as_posix(),
        " OPTIONS": " --ddpperf-against-tests" * of_tests,
    }
    text = (Path(__file__).parent / f"{kind}.yml").read_text(encoding="utf-8")
    text = re.sub("|".join(map(re.escape, words)), lambda found: words[found[0]], text)  # "FOLDER/" before "FOLDER"
    return top / CI_FOLDERS[kind] / f"{name}.yml", text


def requirement() -> str:
    """Returns the argument with which ``pip install`` installs this version or commit of the plugin."""
    installed = distribution("pytest-ddpperf")
    origin = json.loads(installed.read_text("direct_url.json") or "{}")  # PEP 610: not of what an index had
    if not origin:
        return f"pytest-ddpperf=={installed.version}"
    commit = origin.get("vcs_info", {}).get("commit_id")
    address = f"{origin['url']}@{commit}" if commit and not origin["url"].startswith("file:") else UNKNOWN
    return f"pytest-ddpperf @ git+{address}"


def _script_remarks(script: TrainingScript) -> list[str]:
    own_loop = script.framework in {"torch", "accelerate", "fabric"}
    steps = "a step ends when the first optimizer has stepped" if own_loop else f"{script.framework} makes the steps"
    lines = [f"Each rank runs the script with the environment of torchrun; {steps}."]
    if script.longer:
        lines.append("Arguments after the file become sys.argv. A launch stops the script when it has enough steps.")
    else:
        lines.append(f"A launch times {STEPS} steps. For more, remove steps= and let the script train for longer.")
    if script.framework in _LIGHTNING and not script.devices:
        lines.append("Keep world_size equal to the processes of Trainer(devices=..., num_nodes=...) or Fabric.")
    lines += [script.command] * bool(script.command)
    if not script.joins:
        lines.append("world_size=1: the script joins no process group; if a library joins one, remove world_size.")
    return lines


def _arguments(script: TrainingScript, project: Project, folder: Path) -> list[str]:
    path = (script.file if project.rooted else Path(os.path.relpath(script.file, folder))).as_posix()
    literal = json.dumps(path, ensure_ascii=False) if path.isprintable() else repr(path)
    single = script.framework in _LIGHTNING
    devices = (script.devices, "2") if single and script.devices else ()
    given = list(script.given)
    for option in {*script.longer[:1], *devices[:1]} & {*given}:
        place = given.index(option)
        more = len([*takewhile(_NUMBER.fullmatch, given[place + 2 :])])  # as of nargs="+"
        del given[place : place + 2 + more]
    arguments = (*given, *script.longer, *devices)
    words = [literal, *(word if _NUMBER.fullmatch(word) else json.dumps(word) for word in arguments)]
    ranks = [f"world_size={2 if devices else script.processes}"] * (single or not script.joins)
    return [f"Script({', '.join(words)})", *ranks, *([] if script.longer else [f"steps={STEPS}"])]
