"""``ddpperf init``: looks at a project, and writes a first test file and a CI job."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_ddpperf.cli.init.project import look_at
from pytest_ddpperf.cli.init.texts import CI_FILES, ci_text, found_text, test_text
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.reports.document import write_text

TEST_FILE = "test_training.py"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what ``ddpperf init`` takes."""
    parser.add_argument(
        "--tests", type=Path, default=Path("perf"), metavar="DIR", help="folder of the tests (default: %(default)s)"
    )
    parser.add_argument("--ci", choices=[*CI_FILES], help="write a job for this CI, too")
    parser.add_argument("--force", action="store_true", help="replace files that are there")


def run(options: argparse.Namespace) -> int:
    """Writes the files and says what comes next; nothing is written where a file is in the way."""
    project = look_at(Path.cwd())
    tests = Path(options.tests)
    if not (project.root / tests).resolve().is_relative_to(project.root.resolve()):
        raise SettingError(f"--tests {tests} is outside of the project {project.root}: name a folder in it")
    texts = {tests / TEST_FILE: test_text(project, tests)}
    if options.ci is not None:
        texts[CI_FILES[options.ci]] = ci_text(options.ci, project, tests)
    there = [str(file) for file in texts if (project.root / file).exists()]
    if there and not options.force:
        raise SettingError(f"{' and '.join(there)} would be replaced: give --force, or another folder with --tests")
    print(found_text(project))
    for file, text in texts.items():
        write_text(project.root / file, text, "ddpperf init")
        print(f"wrote {file}")
    if options.ci == "gitlab":
        print(f"add to .gitlab-ci.yml:  include: {CI_FILES['gitlab']}")
    print(
        f"\npytest {tests} --ddpperf-quick     a first look, in seconds"
        f"\npytest {tests} --ddpperf-save      store a baseline; commit it"
        f"\npytest {tests}                     compare with it"
    )
    return 0
