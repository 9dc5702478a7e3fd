"""What GitHub runs: with no more rights than it needs, within a limit, and by scripts that are there."""

from __future__ import annotations

import io
import os
import re
import runpy
import tarfile
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def loaded(path: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(path.read_text())
    return found


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in loaded(path)["jobs"].values() for step in job["steps"]]


def test_a_push_a_pull_request_and_each_night_are_tested() -> None:
    triggers = {path.stem: set(loaded(path)[True]) for path in WORKFLOWS}  # YAML 1.1 reads "on" as true
    assert triggers == {
        "ci": {"push", "pull_request"},
        "nightly": {"schedule", "workflow_dispatch"},
        "release": {"push"},
    }


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_reads_the_repository_and_no_more(path: Path) -> None:
    """To publish, PyPI has to know the workflow: it takes a token that names it."""
    workflow = loaded(path)
    assert workflow["permissions"] == {"contents": "read"}
    more = {name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job}
    assert more == ({"publish": {"id-token": "write"}} if path.stem == "release" else {})
    assert all(0 < job["timeout-minutes"] <= 120 for job in workflow["jobs"].values())


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_their_major_version(path: Path) -> None:
    for action in (step["uses"] for step in steps(path) if "uses" in step):
        assert re.fullmatch(r"(actions/[\w-]+@v\d+|pypa/gh-action-pypi-publish@release/v1)", action)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_scripts_exist_and_caches_of_packages_depend_on_the_requirement_files(path: Path) -> None:
    for step in steps(path):
        command = step.get("run", "")
        if command.startswith(".ci/"):
            assert os.access(ROOT / command.split()[0], os.X_OK)
        if step.get("uses", "").startswith("actions/setup-python"):
            assert step["with"]["cache"] == "pip"
            assert all((ROOT / name).is_file() for name in step["with"]["cache-dependency-path"].split())


def test_both_ends_of_torch_are_environments_of_tox() -> None:
    named = loaded(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["torch"]["strategy"]["matrix"]["environment"]
    assert named == ["oldest", "py311-pytest9"]
    assert "torch==2.6.0" in (ROOT / "tox.ini").read_text().partition("[testenv:oldest]")[2].partition("[testenv:")[0]


@pytest.mark.parametrize(
    ("shipped", "licence", "missing"),
    [
        (["LICENSE", "tests/test_a.py"], "licenses/LICENSE", []),
        (["tests/test_a.py"], "licenses/LICENSE", ["a-1.tar.gz lacks LICENSE"]),
        (["LICENSE"], "METADATA", ["a-1.tar.gz lacks tests/test_a.py", "a-1-py3-none-any.whl lacks LICENSE"]),
    ],
)
def test_a_release_without_its_licence_or_a_file_of_the_repository_is_refused(
    tmp_path: Path, shipped: list[str], licence: str, missing: list[str]
) -> None:
    with tarfile.open(tmp_path / "a-1.tar.gz", "w:gz") as sdist:
        for name in shipped:
            sdist.addfile(tarfile.TarInfo(f"a-1/{name}"), io.BytesIO())
    with ZipFile(tmp_path / "a-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"a-1.dist-info/{licence}", "")
    lacking = runpy.run_path(str(ROOT / ".ci" / "complete.py"))["lacking"]
    assert lacking(tmp_path, ["tests/test_a.py"]) == missing
