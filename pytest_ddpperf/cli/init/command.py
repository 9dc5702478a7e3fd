"""``ddpperf init``: looks at a project, and writes a first test file and a CI job."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

from pytest_ddpperf.cli.init.project import look_at
from pytest_ddpperf.cli.init.texts import CI_FILES, ci_text, found_text, from_here, test_text
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.reports.document import write_text
from pytest_ddpperf.reports.lines import printable

TEST_FILE = "test_training.py"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what ``ddpperf init`` takes."""
    parser.add_argument(
        "--tests",
        type=Path,
        default=Path("perf"),
        metavar="DIR",
        help="folder of the tests, from the root of the project (default: %(default)s)",
    )
    parser.add_argument("--ci", choices=[*CI_FILES], help="write a job for this CI, too")
    parser.add_argument("--force", action="store_true", help="replace files that are there")


def run(options: argparse.Namespace) -> int:
    """Writes the files and says what comes next; nothing is written where a file is in the way."""
    project = look_at(Path.cwd())
    tests = _folder(Path(options.tests), project.root)
    texts = {tests / TEST_FILE: test_text(project, tests)}
    if options.ci is not None:
        if (project.root / tests / TEST_FILE).exists() and not options.force:
            texts.clear()  # a job for the test that is there
        texts[CI_FILES[options.ci]] = ci_text(options.ci, project, tests)
    there = [from_here(project.root / file) for file in texts if (project.root / file).exists()]
    if there and not options.force:
        raise SettingError(f"{' and '.join(there)} would be replaced: give --force, or another folder with --tests")
    print(printable(found_text(project)))
    for file, text in texts.items():
        write_text(project.root / file, text, "ddpperf init")
        print(f"wrote {from_here(project.root / file)}")
    if options.ci == "gitlab":
        print(f"add to .gitlab-ci.yml:  include: {CI_FILES['gitlab']}")
    named = shlex.quote(from_here(project.root / tests))
    print(
        f"\npytest {named} --ddpperf-quick     a first look, in seconds"
        f"\npytest {named} --ddpperf-save      store a baseline; commit it"
        f"\npytest {named}                     compare with it"
    )
    return 0


def _folder(tests: Path, root: Path) -> Path:
    """A folder from the root of the project, by a name that a shell and YAML take as it is."""
    whole = (root / tests).resolve()
    if not whole.is_relative_to(root.resolve()):
        raise SettingError(f"--tests {tests} is outside of the project {root}: name a folder in it")
    folder = whole.relative_to(root.resolve())
    if not re.fullmatch(r"(?!-)[\w./-]+", folder.as_posix()):
        raise SettingError(
            f"--tests {tests}: name a folder of letters, digits and ._-/ that does not begin with -, "
            "as it becomes an argument of pytest in a CI job"
        )
    return folder
