"""What a launch is shown of a project, and that what it writes reaches neither the project nor the next launch."""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.launch import own_files
from pytest_ddpperf.launch.messages import Job
from pytest_ddpperf.launch.redirection import Redirection


class Project:
    """A project, and launches that find files of their own."""

    def __init__(self, top: Path, temporary: Path) -> None:
        self.top, self.places, self.temporary = top, [top], temporary
        self.other: Redirection | None = None
        self.remarks: dict[str, str] = {}

    def has(self, **files: str) -> None:
        """Files by name, in which two underscores stand for the end of a folder's name."""
        for name, text in files.items():
            file = self.top / (name if "/" in name else name.replace("__", "/"))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def rank(self, top: Path, write: Callable[[Path], object]) -> multiprocessing.process.BaseProcess:
        """A process that runs ``write`` in a launch's folder, as a rank does."""

        def run() -> None:
            os.chdir(top)
            own_files.replace_links(str(self.temporary / "ddpperf-files-of-a-test"))
            write(Path())

        process = multiprocessing.get_context("fork").Process(target=run)
        process.start()
        return process

    def runs(self, top: Path, *writes: Callable[[Path], object]) -> None:
        """Runs ranks at the same time, and expects that none fails."""
        ranks = [self.rank(top, write) for write in writes]
        for rank in ranks:
            rank.join(50)
        assert [rank.exitcode for rank in ranks] == [0] * len(writes)

    @contextmanager
    def launch(self) -> Iterator[Path]:
        job = Job(call=b"", world_size=1, device="cpu", group=None, mode=None, timeout=1, path=(*sys.path,))
        job = replace(job, projects=(*map(str, self.places),))
        with own_files.own_files(job, self.other, "of-a-test", self.remarks) as changed:
            assert Path(changed.folder).parent == self.temporary
            yield Path(changed.files[0].target)


def content(folder: Path) -> dict[str, str]:
    """The files below a folder with their texts, and the links with what they read."""
    paths = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*"))}
    return {
        name: f"-> {path.readlink()}"
        if path.is_symlink()
        else ""
        if path.is_dir()
        else path.read_text(errors="replace")
        for name, path in paths.items()
    }


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    (tmp_path / "user/project").mkdir(parents=True)
    return Project(tmp_path / "user/project", temporary)


def append(file: Path) -> None:
    with file.open("a") as stream:
        stream.write("more")


def fold(top: Path) -> None:
    (top / "train.py").unlink()
    (top / "train.py").mkdir()


def link(top: Path) -> None:
    (top / "checkpoints").rename(top / "old")
    (top / "checkpoints").symlink_to(top / "old")


def user_files(project: Project) -> dict[str, str]:
    """All files around a project but those of launches."""
    return {name: text for name, text in content(project.top.parents[1]).items() if "temporary" not in name}


WRITES: dict[str, Callable[[Path], object]] = {
    "a new file": lambda top: (top / "snapshot.pt").write_text("new"),
    "a new file in a folder that is there": lambda top: (top / "checkpoints/2.pt").write_text("new"),
    "new folders": lambda top: (top / "lightning_logs/version_0").mkdir(parents=True),
    "a file written anew": lambda top: (top / "train.py").write_text("new"),
    "a file written in place": lambda top: os.truncate(top / "checkpoints/1.pt", 0),
    "a file that grows": lambda top: append(top / "log.csv"),
    "a file replaced": lambda top: (top / "train.py").rename(top / "log.csv"),
    "a file removed": lambda top: (top / "train.py").unlink(),
    "a folder removed": lambda top: shutil.rmtree(top / "checkpoints"),
    "a folder in place of a file": fold,
    "a link in place of a folder": link,
    "permissions": lambda top: (top / "train.py").chmod(0o700),
    "through a link to a file": lambda top: (top / "latest").write_text("new"),
    "through a link to a folder": lambda top: (top / "runs/2.pt").write_text("new"),
    "through an absolute link": lambda top: (top / "absolute/2.pt").write_text("new"),
    "through a link that leads nowhere yet": lambda top: (top / "best.pt").write_text("new"),
    "through a link out of the project": lambda top: (top / "scratch/2.pt").write_text("new"),
    "through a link to a file out of the project": lambda top: (top / "weights").write_text("new"),
    "beside a file of a link out of the project": lambda top: append(top / "scratch/1.pt"),
    "a new file beside the project": lambda top: (top / "../results.csv").write_text("new"),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("entries", [4000, 0], ids=["copies", "links"])
def test_files_that_a_launch_writes_reach_neither_the_project_nor_the_next_launch(
    project: Project, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], object], entries: int
) -> None:
    monkeypatch.setattr(own_files, "_ENTRIES", entries)
    project.has(**{"train.py": "import model", "checkpoints__1.pt": "one", "log.csv": "a,b", ".gitignore": "*.pt"})
    outside = project.top.parents[1] / "scratch"
    outside.mkdir()
    (outside / "1.pt").write_text("one")
    links: dict[str, str | Path] = {
        "latest": "checkpoints/1.pt",
        "runs": "checkpoints",
        "absolute": project.top / "checkpoints",
        "best.pt": "checkpoints/best.pt",
        "scratch": "../../scratch",
        "weights": outside / "1.pt",
    }
    for name, leads in links.items():
        (project.top / name).symlink_to(leads)
    around = user_files(project)
    with project.launch() as top:
        names = ("train.py", "latest", "runs/1.pt", "scratch/1.pt", "weights")
        assert [(top / name).read_text() for name in names] == ["import model", "one", "one", "one", "one"]
        first = content(top)
        if entries:
            write(top)
        else:
            project.runs(top, write)
    assert user_files(project) == around
    with project.launch() as top:
        assert content(top) == first
        assert (top / "train.py").stat().st_mode == (project.top / "train.py").stat().st_mode
    assert project.remarks == {}


def test_changes_in_the_project_are_shown_to_the_next_launch(project: Project) -> None:
    project.has(**{"train.py": "1", "old__a": "a", "data": "file"})
    with project.launch() as top:
        assert (top / "train.py").stat().st_mtime_ns == (project.top / "train.py").stat().st_mtime_ns
    project.has(**{"train.py": "2", "new__b": "b"})
    shutil.rmtree(project.top / "old")
    (project.top / "data").unlink()
    project.has(data__1="one")
    with project.launch() as top:
        assert content(top) == {"train.py": "2", "new": "", "new/b": "b", "data": "", "data/1": "one"}


@pytest.mark.parametrize("entries", [4000, 0], ids=["copies", "links"])
def test_ranks_read_files_around_the_project_and_start_in_the_folder_of_pytest(
    project: Project, monkeypatch: pytest.MonkeyPatch, entries: int
) -> None:
    monkeypatch.setattr(own_files, "_ENTRIES", entries)
    (project.top.parent / "data").mkdir()
    (project.top.parent / "data/1").write_text("one")
    project.places.append(project.top / "perf")
    project.has(perf__test_it="", train="")
    with project.launch() as top:
        assert (top / "perf/../../data/1").read_text() == "one"
        assert (top / "../../user/project/train").samefile(top / "train")
        assert Path(top, os.path.relpath("/etc/passwd", project.top)).samefile("/etc/passwd")


def test_files_that_a_launch_writes_do_not_reach_a_working_folder_above_the_project(project: Project) -> None:
    project.places = [project.top / "group/repository", project.top, project.temporary.parent]
    project.has(group__repository__train="", group__runs__last="one", runs__last="one", notes="mine")
    before = content(project.top)
    with project.launch() as repository:
        assert content(repository.parents[1]) == before
        for name in ("group/runs/last", "runs/last", "notes", "snapshot"):
            (repository.parents[1] / name).write_text("new")
        (project.temporary / "compiled").mkdir()  # as torch does
    assert content(project.top) == before
    with project.launch() as repository:
        assert content(repository.parents[1]) == before
    assert project.remarks == {}


def test_environments_and_git_are_links_and_bytecode_is_not_shown(project: Project) -> None:
    project.has(
        **{".git__HEAD": "ref", "venv__pyvenv.cfg": "home", "package/__pycache__/a.pyc": "", "package__a.py": ""}
    )
    with project.launch() as top:
        assert (top / ".git").readlink() == project.top / ".git"
        assert (top / "venv").readlink() == project.top / "venv"
        assert [path.name for path in (top / "package").iterdir()] == ["a.py"]


def linked(top: Path) -> list[str]:
    return [name for name, text in content(top).items() if text.startswith("->")]


def test_large_files_are_links_until_a_rank_writes_and_named_if_something_else_does(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_files, "_BYTES", 10)
    project.has(small="12345", large="123456", **{"train.py": ""})
    with project.launch() as top:
        assert linked(top) == ["large"]
        (top / "small").write_text("new")
        project.runs(top, lambda top: (top / "large").read_text())
        assert linked(top) == ["large"]
        project.runs(top, lambda top: append(top / "large"))
        assert (top / "large").read_text() == "123456more"
    assert (project.top / "large").read_text() == "123456"
    assert project.remarks == {}
    with project.launch() as top:
        assert linked(top) == ["large"]
        append(top / "large")  # as by code in C++
        (project.top / "out").mkdir()  # as by an absolute path in the script
        (project.top / ".pytest_cache").mkdir()  # another session of pytest writes its cache
    told = "while ranks of a Script ran, large, out changed in the project, and later"
    assert project.remarks["files"].startswith(told)


def test_a_file_that_is_too_large_to_copy_stays_a_link_unless_it_is_emptied(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_files, "_BYTES", 5)
    project.has(data="123456", last="123456", **{"train.py": ""})
    with project.launch() as top:
        project.runs(top, lambda top: append(top / "data"))
        project.runs(top, lambda top: (top / "last").write_text("new"))
        assert linked(top) == ["data"]
    assert ((project.top / "data").read_text(), (project.top / "last").read_text()) == ("123456more", "123456")
    assert project.remarks["files"].startswith("while ranks of a Script ran, data changed in the project")


def write_under_new_name(top: Path) -> None:
    (top / "new").hardlink_to(top / "last.pt")
    append(top / "new")


def write_from(folder: Path) -> None:
    os.chdir(folder)
    Path("1").write_text("new")


def write_by_link(own: Path) -> None:
    own.symlink_to("data/deep")
    (own / "1").write_text("new")


def stream(file: Path) -> None:
    with file.open("wb") as opened:
        torch.save({"step": 1}, opened)


def save_safely(file: Path) -> None:
    """Saves as safetensors does, whose code Python cannot see."""
    folder = Path("package/safetensors")
    folder.mkdir(parents=True)
    write = "import subprocess\ndef serialize_file(data, path): subprocess.run(['cp', '/etc/passwd', path], check=True)"
    (folder / "__init__.py").write_text(write)
    (folder / "torch.py").write_text("from safetensors import serialize_file")
    sys.path.insert(0, "package")
    __import__("safetensors.torch")  # as the statement does, by which Python announces it
    sys.modules["safetensors.torch"].serialize_file({}, file)


SAVES: dict[str, Callable[[Path], object]] = {
    "torch.save": lambda top: torch.save({"step": 1}, top / "last.pt"),
    "torch.save of a stream": lambda top: stream(top / "last.pt"),
    "torch.jit.save": lambda top: torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(top / "last.pt")),
    "safetensors": lambda top: save_safely(top / "last.pt"),
    "a new name for the file": write_under_new_name,
    "times": lambda top: os.utime(top / "last.pt", (0, 0)),
    "a descriptor": lambda top: os.write(os.open(b"last.pt", os.O_RDWR), b"new"),
    "from a folder that is a link": lambda top: write_from(top / "data"),
    "a folder in a link": lambda top: (top / "data/deep/new/er").mkdir(parents=True),
    "upwards from a link": lambda top: (top / "data/deep/../../data/1").write_text("new"),
    "through a link of its own": lambda top: write_by_link(top / "own"),
    "a replaced link": lambda top: [Path("data").replace("moved"), (top / "moved/1").write_text("new")],
}


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES)
def test_a_rank_saves_in_its_own_folder_in_place_of_a_link(
    project: Project, monkeypatch: pytest.MonkeyPatch, save: Callable[[Path], object]
) -> None:
    monkeypatch.setattr(own_files, "_ENTRIES", 0)
    project.has(data__1="one", data__deep__1="one", **{"last.pt": "123"})
    before = user_files(project)
    with project.launch() as top:
        assert linked(top) == ["data", "last.pt"]
        project.runs(top, save)
        assert linked(top) != ["data", "last.pt"]
    assert user_files(project) == before
    assert (project.top / "last.pt").stat().st_mtime > 0
    assert project.remarks == {}


def test_ranks_share_the_files_that_they_copy(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_files, "_ENTRIES", 0)
    project.has(log="first\n", **{f"data__{i}": str(i) for i in range(500)}, data__part__0="")

    def write(rank: int) -> Callable[[Path], None]:
        def write(top: Path) -> None:
            for i in range(20):
                assert (top / f"data/{i}").is_file()  # at any moment; another rank may write it
            with (top / "log").open("a") as log:
                log.write(f"{rank}\n")
            (top / f"data/part/of {rank}").write_text("new")
            for i in range(rank, 500, 4):
                (top / f"data/{i}").write_text("new")

        return write

    with project.launch() as top:
        project.runs(top, *map(write, range(4)))
        assert sorted((top / "log").read_text().split()) == ["0", "1", "2", "3", "first"]
        texts = content(top / "data")
        assert texts.keys() == {*map(str, range(500)), "part", "part/0", *(f"part/of {rank}" for rank in range(4))}
        assert {texts[str(i)] for i in range(500)} == {"new"}
    assert len(content(project.top)) == 504
    assert project.remarks == {}


def test_files_that_cannot_be_copied_do_not_stop_a_rank(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_files, "_ENTRIES", 0)
    project.has(**{".git__HEAD": "ref", "loop": ""})
    (project.top / "null").symlink_to("/dev/null")

    def write(top: Path) -> None:
        (top / "null").write_text("nothing")
        (top / ".git/index").write_text("shared")
        sys.audit("open")
        (top / "loop").unlink()
        (top / "loop").symlink_to("loop")
        with pytest.raises(OSError, match="levels of symbolic links"):
            (top / "loop").write_text("never")

    with project.launch() as top:
        project.runs(top, write)
        assert (top / "null").readlink() == project.top / "null"
        assert (top / ".git").is_symlink()
    assert (project.top / ".git/index").read_text() == "shared"


def test_if_there_are_too_many_files_deep_folders_are_links(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_files, "_ENTRIES", 10)
    project.has(**{f"data__{i}": "" for i in range(8)}, deep__low__lower__train="", empty__a="", train="", out__1="")
    (project.top / "empty/a").unlink()
    project.places.append(project.top / "deep/low/lower")  # of the script
    with project.launch() as top:
        assert {name for name, text in content(top).items() if text.startswith("->")} == {"data"}
        assert not (top / "deep/low/lower").is_symlink()
        assert not (top / "empty").is_symlink()
        (top / "out/2").write_text("new")
    assert not (project.top / "out/2").exists()


def test_no_more_files_are_copied_of_a_folder_above_the_project(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_files, "_ENTRIES", 10)
    project.has(repository__train="", **{f"file{i}": "" for i in range(20)})
    project.places.insert(0, project.top / "repository")
    with project.launch() as repository:
        shown = content(repository.parent)
        assert shown.keys() == content(project.top).keys()
        assert shown["repository/train"] == ""
        links = [text for text in shown.values() if text.startswith("->")]
        assert len(links) == 20 - (10 - 3)  # three of ten: the repository, its file and the folder above it
        (repository.parent / next(name for name in shown if shown[name])).write_text("new")
    assert len(project.remarks) == 1  # such a link was written through


def test_another_checkout_is_shown_with_the_untracked_files_of_this_one(project: Project, tmp_path: Path) -> None:
    project.has(**{"train.py": "new", "added.py": "new", "data__1": "one", "local.yaml": "mine", "gone__cache": "1"})
    there = tmp_path / "checkout"
    (there / "configs").mkdir(parents=True)
    (there / "train.py").write_text("old")
    (there / "configs/a.yaml").write_text("old")
    project.has(gone__folder__1="one", new__perf__test_it="", **{"../beside": "mine"})
    project.places += [project.top / "new/perf", project.top.parent]
    untracked = ("data", "local.yaml", "gone/cache", "gone/folder", "removed")
    project.other = Redirection(root=str(project.top), target=str(there), untracked=untracked)
    with project.launch() as top:
        assert top == Path(f"{project.temporary}/ddpperf-files-of-a-test{project.top}")
        folders = dict.fromkeys(("configs", "data", "new", "new/perf", "new/perf/test_it"), "")
        shown = {"train.py": "old", "configs/a.yaml": "old", "data/1": "one", "local.yaml": "mine"}
        assert content(top) == folders | shown
        assert (top.parent / "beside").read_text() == "mine"
        (top / "data/2").write_text("new")
        append(top / "train.py")
    assert (there / "train.py").read_text() == "old"
    assert content(project.top / "data") == {"1": "one"}
    assert project.remarks == {}


def test_files_behind_a_link_that_a_launch_left_are_never_changed(project: Project) -> None:
    """A launch may leave links in place of folders: what they lead to stays as it is."""
    project.has(checkpoints__1="one", train="")
    valued = project.top.parents[1] / "valued"
    valued.mkdir()
    (valued / "mine").write_text("mine")
    with project.launch() as top:
        shutil.rmtree(top.parent)
        top.parent.symlink_to(valued)
    with project.launch() as top:
        assert (top / "checkpoints/1").read_text() == "one"
    assert content(valued) == {"mine": "mine"}
    base = project.temporary / "ddpperf-files-of-a-test"
    shutil.rmtree(base)
    base.symlink_to(valued)
    with pytest.raises(LaunchError, match="this path is now a symbolic link"), project.launch():
        pass
    assert content(valued) == {"mine": "mine"}


def test_a_folder_that_cannot_be_made_is_reported_with_the_cure(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(project.top / "train"))
    project.has(train="")
    cure = r"Not a directory: .*; set TMPDIR to a .*keep_files=True\)"
    with pytest.raises(LaunchError, match=cure), project.launch():
        pass


def test_the_first_launch_removes_day_old_files_of_killed_runs(project: Project) -> None:
    project.has(train="", kept__mine="mine")
    (project.temporary / "ddpperf-files-some_link").symlink_to(project.top / "kept")
    for name, hours in {"left_over": 25, "still_used": 23, "some_link": 25}.items():
        folder = project.temporary / f"ddpperf-files-{name}"
        (folder / "work").mkdir(parents=True)
        then = time.time() - hours * 3600
        os.utime(folder, (then, then), follow_symlinks=False)
    with project.launch():
        pass
    kept = {path.name: path for path in project.temporary.iterdir()}
    assert kept.keys() == {f"ddpperf-files-{name}" for name in ("some_link", "of-a-test", "still_used")}
    assert (project.top / "kept/mine").read_text() == "mine"
    used = kept["ddpperf-files-of-a-test"]
    os.utime(used, (0, 0))
    with project.launch():
        assert used.stat().st_mtime > 0
