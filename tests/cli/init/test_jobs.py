"""The jobs that ddpperf init --ci writes: each is where its CI looks, and compares with the right commit."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddpperf.against.worktree import resolve
from pytest_ddpperf.cli.command import main
from pytest_ddpperf.cli.init import command
from tests.cli.init.test_command import PLAIN, TRAIN
from tests.cli.running import Run
from tests.factories import commit_all, git
from tests.shell import make_worse, run_shell, write_suite


def job_of(here: Path, kind: str, name: str = "performance") -> dict[Any, Any]:
    """The job that ``ddpperf init --ci`` writes, as its CI reads it."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    assert main(["init", "--ci", kind, "--force"]) == 0
    file = {"github": f".github/workflows/{name}.yml", "gitlab": f".gitlab/{name}.yml"}[kind]
    read: dict[Any, Any] = yaml.safe_load((here / file).read_text())
    return read


def commands_of(job: dict[str, Any]) -> list[str]:
    """The commands of a job of either kind."""
    (found,) = job["jobs"].values() if "jobs" in job else job.values()
    return found["script"] if "script" in found else [step["run"] for step in found["steps"] if "run" in step]


@pytest.mark.parametrize(("kind", "name"), [("github", ""), ("github", "packages/alpha"), ("gitlab", "packages/alpha")])
def test_a_job_is_in_the_file_that_its_ci_reads_and_has_no_more_rights_than_it_needs(
    here: Path, kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(here, "init")
    project = here / name
    project.mkdir(parents=True, exist_ok=True)
    (project / "pyproject.toml").write_text("")
    monkeypatch.chdir(project)
    job = job_of(here, kind, "-".join(["performance", *Path(name).parts]))
    *_, install, measure = commands_of(job)
    assert install.startswith("pip install -e . 'pytest-ddpperf @ git+")
    assert measure.startswith('pytest perf --ddpperf-against="$REFERENCE" --')
    (found,) = job["jobs"].values() if kind == "github" else job.values()
    report = f"{name}/comment.md".lstrip("/")
    if kind == "github":
        assert found["defaults"]["run"]["working-directory"] == (name or ".")
        assert found["steps"][-1]["with"]["path"] == report
        assert job["permissions"] == {"contents": "read"}
        assert all(step["uses"].startswith("actions/") for step in found["steps"] if "uses" in step)
        assert {"timeout-minutes", "runs-on"} <= set(found)
        settings = {each["uses"].partition("@")[0]: each.get("with", {}) for each in found["steps"] if "uses" in each}
        assert settings["actions/checkout"]["fetch-depth"] == 0
        assert settings["actions/setup-python"]["cache"] == "pip"
    else:
        assert found["script"][0] == f"cd {name or '.'}"
        assert found["artifacts"]["paths"] == [report]
        assert found["artifacts"]["reports"]["junit"] == report.replace("comment.md", "junit.xml")
        assert found["variables"]["GIT_DEPTH"] == 0


@pytest.mark.parametrize(
    ("origin", "named"),
    [
        (None, "pytest-ddpperf==1.2"),
        (
            '{"url": "https://git.example/ddpperf", "vcs_info": {"vcs": "git", "commit_id": "abc123"}}',
            "'pytest-ddpperf @ git+https://git.example/ddpperf@abc123'",
        ),
        (
            '{"url": "file:///home/me/ddpperf", "vcs_info": {"vcs": "git", "commit_id": "abc123"}}',
            f"'pytest-ddpperf @ git+{command.UNKNOWN}'",
        ),
    ],
)
def test_a_job_installs_this_package_from_the_same_origin_as_here(
    here: Path, monkeypatch: pytest.MonkeyPatch, printed: Run, origin: str | None, named: str
) -> None:
    installed = SimpleNamespace(version="1.2", read_text=lambda _: origin)
    monkeypatch.setattr(command, "distribution", lambda _: installed)
    out = printed("init", "--ci=github", "--force")
    assert f"pip install {named}\n" in (here / ".github/workflows/performance.yml").read_text()
    asked = f"in place of {command.UNKNOWN} in .github/workflows/performance.yml"
    assert (asked in out) is (command.UNKNOWN in named)


def test_a_folder_that_a_job_cannot_name_is_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch, complaint: Run
) -> None:
    git(here, "init")
    project = here / "my models"
    project.mkdir()
    (project / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(project)
    assert complaint("init", "--ci=github") == (
        "ddpperf: error: my models: a CI job cannot name this folder: rename it, with letters, digits and ._-/ only\n"
    )


@pytest.mark.parametrize("train", [TRAIN, None])
def test_a_job_compares_tests_too_that_define_the_model(here: Path, train: str | None) -> None:
    if train is not None:
        (here / "train.py").write_text(train)
    assert main(["init"]) == 0
    assert (" --ddpperf-against-tests " in commands_of(job_of(here, "github"))[-1]) is (train is None)


@pytest.mark.parametrize(
    ("files", "packages"),
    [
        ({"pyproject.toml": "", "requirements.txt": ""}, "-r requirements.txt -e . '"),
        ({"train.py": "from transformers import Trainer\nTrainer().train()"}, "transformers '"),
        ({"train.py": PLAIN}, "'"),
    ],
)
def test_a_job_installs_what_the_project_needs_as_far_as_it_says(
    here: Path, files: dict[str, str], packages: str
) -> None:
    for name, text in files.items():
        (here / name).write_text(text)
    assert commands_of(job_of(here, "github"))[-2].startswith(f"pip install {packages}")


class Context:
    """What GitHub knows of an event: what is not there is null."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.facts = facts

    def __getattr__(self, name: str) -> Any:
        found = self.facts.get(name)
        return Context(found) if isinstance(found, Mapping) else found


def filled(text: str, github: Mapping[str, Any]) -> str:
    """The text with the values of its expressions, of which it has those of the job."""

    def value(found: re.Match[str]) -> str:
        code = found[1].replace("&&", " and ").replace("||", " or ").replace("!", " not ")
        names = {"github": Context(github), "format": lambda words, *given: words.format(*given)}
        return str(eval(code.strip(), names))  # noqa: S307 - of our own file

    return re.sub(r"\$\{\{(.*?)\}\}", value, text)


Done = subprocess.CompletedProcess[str]
SAYS = 'pytest() { echo "measured: $*"; }\n'


def on_github(work: Path, folder: Path, github: Mapping[str, Any], first: str = "") -> Done | None:
    """Runs the commands of the job for an event; None if the job is skipped."""
    (job,) = job_of(work, "github")["jobs"].values()
    if filled(job["if"], github) != "True":
        return None
    steps = [each["run"] for each in job["steps"] if "run" in each and holds(each, github)]
    environ = {name: filled(text, github) for name, text in job["env"].items()}
    return run_shell(first + "\n".join(steps), folder, **environ)


def holds(step: Mapping[str, Any], github: Mapping[str, Any]) -> bool:
    return "if" not in step or filled(f"${{{{ {step['if']} }}}}", github) == "True"


def on_gitlab(work: Path, folder: Path, given: Mapping[str, str], first: str = "") -> Done | None:
    """Runs the commands of the job in a pipeline with these variables; None if no rule has the job in it."""
    (job,) = job_of(work, "gitlab").values()
    for rule in job["rules"]:
        code = re.sub(r"(\$\w+) !~ /(.*?)/", r"not re.search(r'\2', \1 or '')", rule["if"]).replace("&&", " and ")
        if eval(re.sub(r"\$(\w+)", r"given.get('\1')", code), {"given": given, "re": re}):  # noqa: S307 - the same
            return run_shell(first + "\n".join(job["script"]), folder, **given)
    return None


def pushed(kind: str, before: str, after: str, *, created: bool = False) -> dict[str, Any]:
    """What a CI knows of a push to the branch main."""
    if kind == "github":
        event = {"before": before, "created": created}
        return {"event_name": "push", "sha": after, "ref": "refs/heads/main", "base_ref": "", "event": event}
    names = {"CI_COMMIT_BEFORE_SHA": before, "CI_COMMIT_BRANCH": "main", "CI_DEFAULT_BRANCH": "main"}
    return {"CI_PIPELINE_SOURCE": "push", **names}


ON: Mapping[str, Callable[..., Done | None]] = {"github": on_github, "gitlab": on_gitlab}


@pytest.fixture
def work(here: Path) -> Path:
    """A clone of a bare repository whose branch main has one commit, with a suite; ``here`` has both."""
    git(here, "init", "-q", "--bare", "-b", "main", "remote")
    git(here, "clone", "-q", f"file://{here}/remote", "work")
    made = here / "work"
    git(made, "checkout", "-q", "-b", "main")
    write_suite(made / "perf")
    (made / "pytest.ini").write_text("[pytest]\n")
    (made / ".gitignore").write_text(".pytest_cache\n__pycache__\n.git*/\ncomment.md\njunit.xml\n")
    commit_all(made)
    git(made, "push", "-q", "-u", "origin", "main")
    return made


def three_commits(work: Path) -> tuple[str, str]:
    """Pushes three commits at once, of which the first makes training worse; the commits before and after it."""
    before = git(work, "rev-parse", "HEAD")
    make_worse(work / "perf")
    git(work, "commit", "-q", "-a", "-m", "worse")
    for words in ("2", "3"):
        git(work, "commit", "-q", "--allow-empty", "-m", words)
    git(work, "push", "-q", "--force", "origin", "main")
    return before, git(work, "rev-parse", "HEAD")


def checked_out(work: Path, commit: str, *options: str, ref: str = "refs/heads/*") -> Path:
    """A new clone as a runner makes it: of all branches, without one of its own."""
    runner = work.parent / "runner"
    runner.mkdir()
    git(runner, "init", "-q")
    git(runner, "remote", "add", "origin", f"file://{work.parent}/remote")
    into = {"refs/heads/*": "refs/remotes/origin/*"}
    for each in {"refs/heads/*", ref}:
        git(runner, "fetch", "-q", "--no-tags", *options, "origin", f"+{each}:{into.get(each, 'refs/remotes/pull')}")
    git(runner, "checkout", "-q", "--detach", commit)
    return runner


def reference(done: Done | None, folder: Path) -> str | None:
    """The commit that the job has compared with."""
    assert done is not None
    assert done.returncode == 0, done.stderr
    (given,) = re.findall(r"^measured: perf --ddpperf-against=(\S+) --", done.stdout, re.MULTILINE)
    return resolve(given, folder, folder).commit


@pytest.mark.parametrize("kind", ["github", "gitlab"])
@pytest.mark.parametrize("how", ["whole", "shallow", "forced"])
def test_a_push_of_several_commits_is_compared_with_the_commit_before_it(
    work: Path, monkeypatch: pytest.MonkeyPatch, kind: str, how: str
) -> None:
    """Also in a shallow clone, and if the push was forced, so that no branch has the commit before it any more."""
    monkeypatch.chdir(work)
    if how == "forced":
        gone, _ = three_commits(work)
        git(work, "reset", "-q", "--hard", gone)
        git(work, "commit", "-q", "--amend", "-m", "1 again")
        gone = git(work, "rev-parse", "origin/main")
        _, after = three_commits(work)
        before = gone
    else:
        before, after = three_commits(work)
    runner = checked_out(work, after, *(["--depth=1"] if how == "shallow" else []))
    assert (git(runner, "rev-list", "--all").count(before) == 1) is (how == "whole")
    assert reference(ON[kind](work, runner, pushed(kind, before, after), SAYS), runner) == before


@pytest.mark.parametrize("kind", ["github", "gitlab"])
def test_the_first_push_of_a_branch_and_pushes_to_other_branches_are_not_compared(
    work: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(work)
    head = git(work, "rev-parse", "HEAD")
    assert ON[kind](work, work, pushed(kind, "0" * 40, head, created=True), SAYS) is None
    if kind == "github":
        assert job_of(work, kind)[True]["push"] == {"branches": ["main", "master"]}  # YAML 1.1 reads "on" as true
    else:
        assert on_gitlab(work, work, {**pushed(kind, head, head), "CI_COMMIT_BRANCH": "feature"}, SAYS) is None


@pytest.mark.parametrize("kind", ["github", "gitlab"])
def test_a_pull_request_of_a_fork_is_compared_with_the_merge_base(
    work: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A later push to it is an event with a commit before it, too, which another run has compared."""
    monkeypatch.chdir(work)
    base = git(work, "rev-parse", "HEAD")
    git(work.parent, "clone", "-q", f"file://{work.parent}/remote", "fork")
    fork = work.parent / "fork"
    before, _ = three_commits(work)  # meanwhile
    for words in ("one", "another"):
        git(fork, "commit", "-q", "--allow-empty", "-m", words)
    git(fork, "push", "-q", "origin", "HEAD:refs/pull/7/merge")
    head = git(fork, "rev-parse", "HEAD")
    runner = checked_out(work, head, ref="refs/pull/7/merge")
    event = {"before": git(fork, "rev-parse", "HEAD~1")}
    given = {"CI_PIPELINE_SOURCE": "merge_request_event", "CI_MERGE_REQUEST_DIFF_BASE_SHA": base}
    if kind == "github":
        given = {"event_name": "pull_request", "sha": head, "ref": "refs/pull/7/merge", "base_ref": "main"}
        given |= {"event": event}  # type: ignore[dict-item]
    else:
        given["CI_COMMIT_BEFORE_SHA"] = "0" * 40
    assert reference(ON[kind](work, runner, given, SAYS), runner) == base == before


def test_a_later_push_ends_the_job_of_a_pull_request_and_none_of_the_main_branch(here: Path) -> None:
    """The commits of a push whose job was ended would be compared with nothing."""
    group = job_of(here, "github")["concurrency"]["group"]
    pull = {"event_name": "pull_request", "ref": "refs/pull/7/merge"}
    assert len({filled(group, {**pull, "sha": sha}) for sha in "ab"}) == 1
    assert len({filled(group, pushed("github", "0", sha)) for sha in "ab"}) == 2
    (job,) = job_of(here, "gitlab").values()
    assert [rule.get("interruptible", job.get("interruptible", False)) for rule in job["rules"]] == [True, False]


@pytest.mark.parametrize("name", ["trunk", '"],x'])
def test_pushes_are_those_to_the_default_branch_of_the_remote(
    work: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(work)
    git(work, "symbolic-ref", "refs/remotes/origin/HEAD", f"refs/remotes/origin/{name}")
    git(work, "update-ref", f"refs/heads/origin/{name}", "HEAD")  # then a short name of the remote's would be ambiguous
    assert job_of(work, "github")[True] == {"pull_request": None, "push": {"branches": [name]}}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["github", "gitlab"])
def test_a_push_whose_first_commit_is_worse_is_red(work: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.chdir(work)
    before, after = three_commits(work)
    runner = checked_out(work, after)
    done = ON[kind](work, runner, pushed(kind, before, after))
    assert done is not None
    assert done.returncode == 1, done.stderr
    assert "all_reduce 1 -> 2 calls per step" in (runner / "comment.md").read_text()
    last = ON[kind](work, runner, pushed(kind, git(work, "rev-parse", "HEAD~1"), after))
    assert last is not None
    assert last.returncode == 0, last.stdout
