"""The folder of a launch: a view of the project's files, in which ranks can write without changing the project.

The launcher makes folders, copies files, and makes links to all other paths. It copies at most ``_ENTRIES`` entries and
``_BYTES`` bytes, outer folders first. A file with more than half of the remaining bytes becomes a link. Before Python,
torch or safetensors write through a link, the rank replaces the link by a copy of its target, unless the target has
over ``_BYTES`` bytes or ``_MOST`` entries. An overlay would copy nothing, but Docker and Ubuntu 24.04 forbid overlays.
The same launcher's next launch restores only changed files, because ext4 takes a second to make thousands of files.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import stat
import sys
import tempfile
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import filterfalse, islice
from os.path import lexists
from pathlib import Path
from typing import Any

from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.instruments.host import abandoned
from pytest_ddpperf.launch.messages import Job
from pytest_ddpperf.launch.redirection import PACKAGES, Redirection, interpreter_folders, within

_ENTRIES, _BYTES = 4000, 512 * 2**20
_MOST = 100_000  # links to the entries of one folder: above a project, or that a rank replaces
_PREFIX = "ddpperf-files-"
_HIDDEN = ("__pycache__", _PREFIX)  # beginnings of names; ranks use the bytecode of the project itself
_BY_ITSELF = frozenset({".git", ".pytest_cache"})  # folders in which files change although no script writes them
_OF_ENTRIES = {"os.mkdir": 1, "os.remove": 1, "os.rename": 2, "os.symlink": 2}  # audit events by their number of paths
_EVENTS = {"open": 1, "os.chdir": 1, "os.chmod": 1, "os.link": 2, "os.rmdir": 1, "os.truncate": 1, "os.utime": 1}
_EVENTS |= {"import": 0, "shutil.rmtree": 1, "sqlite3.connect": 1, **_OF_ENTRIES}


@contextlib.contextmanager
def own_files(job: Job, other: Redirection | None, mark: str, remarks: dict[str, str]) -> Iterator[Job]:
    """Yields the job, changed so that its ranks use a folder with copies of its projects' files.

    If ``other`` leads to another checkout, the folder has that checkout's files, and untracked files of the project.
    ``mark`` is part of the folder's name. The fork server, the controller or, after a crash, a later launch removes the
    folder. ``remarks`` gets a warning if the launch changed the project. Raises LaunchError if making the folder fails.
    """
    base = f"{os.path.realpath(tempfile.gettempdir())}/{_PREFIX}{mark}"
    for folder in () if lexists(base) else abandoned(_PREFIX):
        shutil.rmtree(folder, ignore_errors=True)
    shown = _Shown(base, job, other if other is not None and other.target != other.root else None)
    try:
        Path(base).mkdir(mode=0o700, exist_ok=True)
        shown.make()
        os.utime(base)  # it is in use
    except OSError as error:
        raise LaunchError(
            f"cannot create a folder for the files of a Script: {error.strerror}: {base}; set TMPDIR to a "
            "writable folder with free space, or let ranks write into the project: Script(..., keep_files=True)"
        ) from None
    yield replace(job, folder=base, files=tuple(shown.files))
    if left := shown.left():
        named = ", ".join(left[:3]) + " and others" * bool(left[3:])
        cause = "and later launches find the change: if the script writes there, use a relative path that is no link"
        remarks["files"] = f"while ranks of a Script ran, {named} changed in the project, {cause}"


class _Shown:
    """The planned contents of a launch's folder, and the state that the project's files had before the launch."""

    def __init__(self, base: str, job: Job, other: Redirection | None) -> None:
        self._base = base
        self._places = [os.path.realpath(folder) for folder in job.projects]  # in which ranks start, or find code
        packages = tuple(entry for entry in job.path if Path(entry).name in PACKAGES)
        moved = [(place, place, (*interpreter_folders(place), *packages)) for place in self._places]
        if other is not None:
            moved.insert(0, (other.target, other.root, packages))
            self._places += [*map(other.path, self._places)]
        self.files = [Redirection(root=root, target=base + place, kept=kept) for root, place, kept in moved]
        self._entries, self._bytes = _ENTRIES, _BYTES  # that may still be copied
        self._before: dict[str, tuple[int, int, int]] = {}  # the state of files and folders by their paths
        targets = [each.target for each in self.files]
        above = {str(folder) for target in targets for folder in Path(target).parents if within(str(folder), base)}
        around = [one for one in above if not any(within(one, target) for target in targets)]
        self._plan: dict[str, tuple[str, str]] = dict.fromkeys(around, ("folder", ""))  # by place, what it shows
        for each in self.files:
            self._show(each.root, each.target)
            for name in other.untracked if other is not None and each is self.files[0] else ():
                place = f"{each.target}/{name}"
                if self._plan.get(place.rpartition("/")[0], ("",))[0] == "folder":  # the other checkout has it
                    self._show(place.removeprefix(base), place)
        for place in above:
            self._plan.setdefault(place, ("folder", ""))  # the other checkout lacks it
        for place in around:
            for path in islice(_paths(place.removeprefix(base) or "/"), _MOST):
                self._plan.setdefault(f"{place}/{path.rpartition('/')[2]}", ("link", path))

    def _show(self, path: str, place: str) -> None:
        """Plans ``place`` in the launch's folder as a folder, copy or link of ``path``, unless already planned."""
        waiting = deque([(path, place)])
        while waiting:
            path, place = waiting.popleft()
            if place in self._plan or not lexists(path):
                continue
            leads = self._leads(path)
            mode, _, size = self._before[path] = _state(path)
            room = max(0, self._entries - len(waiting))  # what waits comes first
            inside = self._inside(path, room) if stat.S_ISDIR(mode) and not leads else None
            fits = self._entries > 0 and 2 * size <= self._bytes
            self._plan[place] = "link", leads or path
            self._entries -= 1
            if inside is not None:
                self._plan[place] = "folder", path
                waiting += ((one, f"{place}/{one.rpartition('/')[2]}") for one in inside)
            elif fits and stat.S_ISREG(mode) and not leads and os.access(path, os.R_OK):
                self._plan[place] = "file", path
                self._bytes -= size

    def _leads(self, path: str) -> str:
        """Returns the target of a symbolic link that leads into the project or is broken, else an empty text."""
        if not Path(path).is_symlink():
            return ""
        real = os.path.realpath(path)
        own = next((new for each in self.files if (new := each.path(real)) != real), "")
        if any(within(place, real) for place in self._places):
            own = self._base + real
        return own or ("" if Path(real).exists() else str(Path(path).readlink()))

    def _inside(self, folder: str, room: int) -> list[str] | None:
        """Returns a folder's paths, or None to make the folder a link, for example if it has over ``room`` paths."""
        if any(within(place, folder) for place in self._places):
            return [*_paths(folder)]
        inside = [*islice(_paths(folder), room + 1)]
        foreign = folder.endswith("/.git") or any(folder in each.kept for each in self.files)
        return None if foreign or f"{folder}/pyvenv.cfg" in inside or len(inside) > room else inside

    def make(self) -> None:
        """Makes the planned folders, copies and links, and removes everything else in these folders."""
        inside: defaultdict[str, list[str]] = defaultdict(list)
        for place in self._plan:
            inside[place.rpartition("/")[0]].append(place)
        for folder in sorted(place for place, (how, _) in self._plan.items() if how == "folder"):
            if os.path.realpath(folder) != folder:  # nothing is ever touched but what was made here
                raise NotADirectoryError(errno.ENOTDIR, "this path is now a symbolic link", folder)
            for entry in [*filterfalse(self._shows, os.scandir(folder))]:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    Path(entry.path).unlink()
            for place in inside[folder]:
                how, path = self._plan[place]
                with contextlib.suppress(FileExistsError, FileNotFoundError):  # it is there, or gone from the project
                    if how == "folder":
                        Path(place).mkdir()
                    elif how == "link":
                        Path(place).symlink_to(path)
                    elif not lexists(place):
                        shutil.copy2(path, place)  # with its times, by which bytecode and compilers know it

    def _shows(self, entry: os.DirEntry[str]) -> bool:
        """Returns whether an entry of the launch's folder has its planned content, unchanged by the launch."""
        how, path = self._plan.get(entry.path, ("", ""))
        if entry.is_symlink():
            return how == "link" and str(Path(entry.path).readlink()) == path
        if entry.is_dir():
            return how == "folder"
        return how == "file" and _state(entry.path) == self._before[path]

    def left(self) -> list[str]:
        """Returns the project's paths that the launch created or changed, except paths in .git and .pytest_cache."""
        folders = {path for how, path in self._plan.values() if how == "folder" and path}
        known = {*self._before, *self._places}  # another checkout may be shown in place of a project
        watched = folders - {self._base.rpartition("/")[0]}  # temporary files come and go
        found = {path for folder in watched for path in _paths(folder) if path not in known}
        found |= {path for path in self._before.keys() - folders if _state(path) != self._before[path]}
        for each in self.files:
            found = {path.removeprefix(f"{each.root}/") for path in found}
        return sorted(path for path in found if _BY_ITSELF.isdisjoint(path.split("/")))


def _state(path: str) -> tuple[int, int, int]:
    """Returns mode, modification time and size of a file or of a link's target, or zeros if it does not exist."""
    try:
        status = os.stat(path)  # noqa: PTH116  of thousands, for which a Path takes long
    except OSError:
        return 0, 0, 0
    return status.st_mode, status.st_mtime_ns, status.st_size


def _paths(folder: str) -> Iterator[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        yield from (entry.path for entry in found if not entry.name.startswith(_HIDDEN))


def replace_links(base: str) -> None:
    """Makes this rank, until it ends, replace links in its launch's folder before it writes through them."""
    from torch._C import PyTorchFileWriter, ScriptModule

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _EVENTS:
            with contextlib.suppress(Exception):  # users' code must go on
                flags = arguments[2] if event == "open" else os.O_RDWR
                for argument in arguments[: _EVENTS[event]] if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) else ():
                    path = Path.cwd() / os.fsdecode(argument)
                    _own(str(path.parent if event in _OF_ENTRIES else path), base, empty=bool(flags & os.O_TRUNC))
                if event == "import" and arguments[0] == "safetensors.torch":
                    _announce(__import__("safetensors"), "serialize_file")  # before torch.py has it

    sys.addaudithook(hear)
    _announce(PyTorchFileWriter, "__init__")
    _announce(ScriptModule, "save")
    if "safetensors.torch" in sys.modules:
        _announce(sys.modules["safetensors.torch"], "serialize_file")


def _announce(owner: Any, name: str) -> None:
    """Makes the function ``owner.name`` raise an audit event before it writes to its second argument, a path."""
    save = getattr(owner, name)

    def announced(*arguments: Any, **named: Any) -> Any:
        if len(arguments) > 1 and isinstance(arguments[1], str | os.PathLike):
            sys.audit("open", arguments[1], "wb", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        return save(*arguments, **named)

    setattr(owner, name, announced)


def _own(path: str, base: str, *, empty: bool = False) -> str:
    """Replaces links on ``path`` that leave ``base`` by a folder of links or a copy of the file; returns the path."""
    if path == base or not within(path, base) or not {".git", "__pycache__"}.isdisjoint(path.split("/")):
        return path  # git's folder and bytecode are the project's own
    folder, _, name = path.rpartition("/")
    place = Path(os.path.normpath(f"{_own(folder, base)}/{name}"))
    if not place.is_symlink() or not within(str(place), base):
        return str(place)
    target = place.parent / place.readlink()
    if within(os.path.normpath(target), base):
        return _own(str(target), base, empty=empty)
    with Path(base, f"{_PREFIX}lock").open("w") as lock, tempfile.TemporaryDirectory(prefix=_PREFIX, dir=base) as made:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another rank may have replaced it
        copy, libc = Path(made, "copy"), ctypes.CDLL(None)  # which announces nothing
        if place.is_symlink() and target.is_dir() and sum(1 for _ in islice(target.iterdir(), _MOST)) < _MOST:
            copy.mkdir()
            if not any(libc.symlink(bytes(inner), bytes(copy / inner.name)) for inner in target.iterdir()):
                libc.renameat2(0, bytes(copy), 0, bytes(place), 2)  # exchanges them, so that no rank misses the folder
        elif place.is_symlink() and target.is_file() and (empty or target.stat().st_size <= _BYTES):
            copy.touch() if empty else shutil.copyfile(target, copy)
            shutil.copystat(target, copy)
            copy.replace(place)
        fcntl.flock(lock, fcntl.LOCK_UN)  # a process that was forked meanwhile would keep it
    return str(target if place.is_symlink() else place)
