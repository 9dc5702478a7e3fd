"""The recipes for CI do what they say: their commands run in a project that stands in for a user's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.baselines.history.database import record
from pytest_ddpperf.settings import KNOBS
from tests.factories import git, make_environment, make_history_run, make_new_result, make_series
from tests.shell import ROOT, make_worse, run_shell, write_suite

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

RECIPES = dict(
    re.findall(r"<!-- recipe: (\w+) -->\n```(?:yaml|sh)\n(.*?)```", (ROOT / "docs" / "ci.md").read_text(), re.DOTALL)
)
COUNTED = ("--ddpperf-device=cpu", "--ddpperf-world-size=4", "--ddpperf-counts=only")


def statuses(commands: Iterable[str], folder: Path, **variables: str) -> list[int]:
    """The statuses of the commands of a job, until one fails."""
    found: list[int] = []
    for command in commands:
        done = run_shell(command, folder, **variables)
        print(done.stdout, done.stderr)
        found.append(done.returncode)
        if done.returncode:
            break
    return found


def commands_of(job: Mapping[str, Any]) -> list[str]:
    """The commands of a job of GitHub."""
    return [step["run"] for step in job["steps"] if "run" in step]


def commit_worse(project: Path) -> None:
    make_worse(project / "perf")
    git(project, "commit", "-a", "-m", "worse")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A clone of a project whose main branch has baselines of counts."""
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    write_suite(origin / "perf")
    (origin / "pytest.ini").write_text("[pytest]\n")
    (origin / ".gitignore").write_text(".pytest_cache\n__pycache__\n")
    saved = run_shell(f"pytest perf {' '.join(COUNTED)} --ddpperf-save", origin)
    assert saved.returncode == 0, saved.stdout
    for command in ("init", "add .", "commit -m main"):
        git(origin, *command.split())
    git(tmp_path, "clone", "-q", str(origin), str(clone))
    return clone


def test_recipes_are_whole() -> None:
    assert set(RECIPES) == {"github", "gitlab", "slurm", "nightly"}
    workflows = {name: yaml.safe_load(RECIPES[name]) for name in set(RECIPES) - {"slurm"}}
    for name in ("github", "nightly"):
        for job in workflows[name]["jobs"].values():
            assert job["runs-on"]
            assert all(("run" in step) != ("uses" in step) for step in job["steps"])
            used = [step["uses"] for step in job["steps"] if "uses" in step]
            assert all(re.fullmatch(r"actions/[\w-]+@v\d+|[\w/-]+@[0-9a-f]{40}", name) for name in used)
            assert "timeout-minutes" in job
        assert workflows[name]["permissions"] == {"contents": "read"}
    assert {job.get("extends") for name, job in workflows["gitlab"].items() if name[0] != "."} == {".benchmarks"}
    options = set(re.findall(r"--ddpperf-[a-z-]+", "".join(RECIPES.values())))
    assert options <= {knob.option for knob in KNOBS.values() if knob.given == "option"}


def test_no_text_of_others_becomes_code() -> None:
    """Not in a shell, which knows a branch as a variable, and not in the summary, whose tables of text are escaped."""
    for name in ("github", "nightly"):
        for job in yaml.safe_load(RECIPES[name])["jobs"].values():
            assert not [command for command in commands_of(job) if "${{" in command]
    (escaping,) = {*re.findall(r"sed '.*?'", RECIPES["nightly"])}
    done = run_shell(f"echo '</pre><b>&lt;' | {escaping}", ROOT)
    assert done.stdout == "&lt;/pre>&lt;b>&amp;lt;\n"


@pytest.mark.slow
def test_jobs_of_github_are_red_if_a_branch_is_worse(project: Path, tmp_path: Path) -> None:
    jobs = yaml.safe_load(RECIPES["github"])["jobs"]
    summary = tmp_path / "summary.md"
    given = {"GITHUB_STEP_SUMMARY": str(summary), "GITHUB_BASE_REF": "main"}
    for job, number in (("counts", 3), ("times", 2)):
        found = statuses(commands_of(jobs[job]), project, **given)
        assert found == [0] * number
        assert "## ddpperf: PASSED: 1 " in (project / "comment.md").read_text()
    commit_worse(project)
    for job, number in (("counts", 3), ("times", 2)):
        (project / "comment.md").unlink()
        found = statuses(commands_of(jobs[job]), project, **given)
        assert found == [0] * (number - 1) + [1]
        comment = (project / "comment.md").read_text()
        assert "all_reduce 1 -> 2 calls per step" in comment
        assert summary.read_text().endswith(comment)
    uploaded = [step["with"]["path"] for step in jobs["times"]["steps"] if "upload-artifact" in step.get("uses", "")]
    assert all((project / file).is_file() for file in uploaded)


@pytest.mark.slow
def test_jobs_of_gitlab_are_red_if_a_branch_is_worse(project: Path) -> None:
    jobs = yaml.safe_load(RECIPES["gitlab"])
    base = git(project, "rev-parse", "origin/main")
    commit_worse(project)
    for job, number in (("counts", 3), ("times", 2)):
        found = statuses(jobs[job]["script"], project, CI_MERGE_REQUEST_DIFF_BASE_SHA=base)
        assert found == [0] * (number - 1) + [1]
        for file in (jobs[".benchmarks"]["artifacts"]["reports"]["junit"], *jobs[".benchmarks"]["artifacts"]["paths"]):
            assert "all_reduce 1 -&gt; 2 calls" in (project / file).read_text().replace("1 -> 2", "1 -&gt; 2")
            (project / file).unlink()


@pytest.mark.slow
@pytest.mark.parametrize("worse", [False, True])
def test_a_job_of_slurm_has_the_status_of_its_suite(project: Path, worse: bool) -> None:  # noqa: FBT001
    (project / ".venv" / "bin").mkdir(parents=True)
    (project / ".venv" / "bin" / "activate").write_text("")
    if worse:
        commit_worse(project)
    script = RECIPES["slurm"]
    assert "#SBATCH --ntasks-per-node=1\n" in script
    options = f"{' '.join(COUNTED)} --ddpperf-require-baseline"
    done = run_shell(
        script.replace("pytest perf", f"pytest perf {options}"), project.parent, SLURM_SUBMIT_DIR=str(project)
    )
    assert done.returncode == worse, done.stdout + done.stderr
    assert "ddpperf: 2 processes of srun on 1 node" in done.stdout
    assert ("all_reduce 1 -> 2 calls per step" in done.stdout) is worse
    assert (project / "run.json").is_file()
    assert not [*project.glob("rendezvous-*")]


@pytest.mark.slow
@pytest.mark.parametrize("worse", [False, True])
def test_a_nightly_run_is_red_if_its_trend_is_worse(project: Path, tmp_path: Path, worse: bool) -> None:  # noqa: FBT001
    history, environment = tmp_path / "kept" / "runs.sqlite", make_environment(cpu_model="AMD EPYC", cores=2)
    for number in range(8):
        series = make_series("step_time", 0.05 if worse and number >= 4 else 0.04)
        record(history, make_history_run(number), [make_new_result("t.py::test_a", series, environment=environment)])
    summary = tmp_path / "summary.md"
    summary.write_text("")
    found = statuses(
        commands_of(yaml.safe_load(RECIPES["nightly"])["jobs"]["trend"]),
        project,
        HISTORY=str(history),
        GITHUB_STEP_SUMMARY=str(summary),
    )
    assert found == [0, 0, 0, int(worse)]
    assert (", worse" in summary.read_text()) is worse
    with_run = run_shell(f"ddpperf trend test_suite --metric collective_calls --history {history}", project)
    assert "test_suite.py::test_step: custom" in with_run.stdout


def test_a_nightly_torch_is_compared_with_the_release() -> None:
    """The release is in an environment of its own, and the nightly build in the one that pytest runs in."""
    released, ours, nightly, run_both = commands_of(yaml.safe_load(RECIPES["nightly"])["jobs"]["torch"])
    assert released.startswith("python -m venv release && release/bin/pip install ")
    assert ours == released.partition("release/bin/")[2]
    assert nightly.startswith("pip install --pre --upgrade torch ")
    assert "--ddpperf-against-python=release/bin/python " in run_both


@pytest.mark.slow
@pytest.mark.parametrize("worse", [False, True])
def test_a_red_nightly_run_names_the_first_bad_commit(project: Path, tmp_path: Path, worse: bool) -> None:  # noqa: FBT001
    green, summary = tmp_path / "green", tmp_path / "summary.md"
    good = git(project, "rev-parse", "HEAD")
    green.write_text(f"{good}\n")
    if worse:
        commit_worse(project)
    bad = git(project, "rev-parse", "HEAD")
    git(project, "commit", "--allow-empty", "-m", "later")
    commands = commands_of(yaml.safe_load(RECIPES["nightly"])["jobs"]["culprit"])
    found = statuses(commands, project, GREEN=str(green), GITHUB_STEP_SUMMARY=str(summary))
    assert found == [0, int(worse)]
    if worse:
        assert f"{bad} is the first bad commit" in summary.read_text()
        assert green.read_text().strip() == good
    else:
        assert green.read_text().strip() == git(project, "rev-parse", "HEAD")
