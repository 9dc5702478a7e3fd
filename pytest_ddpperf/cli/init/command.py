"""``ddpperf init``: inspects a project, and writes a first test file or a CI job."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from pytest_ddpperf.cli.init.project import look_at
from pytest_ddpperf.cli.init.texts import CI_FOLDERS, PLAIN, UNKNOWN, found_lines, from_here, job, test_text
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.reports.files import write_text
from pytest_ddpperf.reports.lines import printable

TEST_FILE = "test_training.py"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``ddpperf init``."""
    parser.add_argument(
        "script", type=Path, nargs="?", metavar="FILE", help="the script that trains (default: the likeliest one)"
    )
    parser.add_argument(
        "--tests",
        type=Path,
        default=Path("perf"),
        metavar="DIR",
        help="folder of the tests, relative to the root of the project (default: %(default)s)",
    )
    parser.add_argument("--ci", choices=[*CI_FOLDERS], help="write only a job for this CI, no test")
    parser.add_argument("--force", action="store_true", help="replace the file that is there")


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
        f"pytest {named} --ddpperf-quick     a first look, in seconds",
        f"pytest {named} --ddpperf-save      commit first; then store a baseline, and commit it",
        f"pytest {named}                     compare with it",
    ]
    print("\n".join(map(printable, lines)))
    return 0


def _folder(tests: Path, root: Path) -> Path:
    """Returns the folder of tests, relative to the root; its name must be safe in a shell and in YAML."""
    whole = (root / tests).resolve()
    if not whole.is_relative_to(root.resolve()):
        raise SettingError(f"--tests {tests} is not inside the project {root}: name a folder inside it")
    folder = whole.relative_to(root.resolve())
    if not PLAIN.fullmatch(folder.as_posix()):
        raise SettingError(
            f"--tests {tests} cannot become an argument of pytest in a CI job: name a folder of letters, digits and "
            "._-/ that does not begin with -"
        )
    return folder
