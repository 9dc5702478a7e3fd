"""Lets tasks find the controller: its card (address and key) is in torchrun's store or in a private file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.instruments.host import open_shared, private_folder
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.link import ForeignPeer, connect
from pytest_ddpperf.launch.nodes.tasks import Task

MEETING_SECONDS = 120.0  # for all tasks to import their tests
_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
STORE_VARIABLES = ("RANK", "WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", _AGENT_STORE)
"""The variables of torchrun that lead to its store."""
_POLL_SECONDS = 0.05
_OTHERS = 0o077  # the rights of group and others


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    """The facts that a task of torchrun, srun or mpirun sends when it connects to the controller."""

    rank: int
    host: str
    machine: str  # tasks with the same text are on one node
    cores: frozenset[int]  # that the task may run on
    gpus: tuple[str, ...] = ()  # that the task may open, by UUID, and the variables that select some of them
    needed: Mapping[str, str] = field(default_factory=dict)  # facts that must equal the controller's
    facts: Mapping[str, str] = field(default_factory=dict)  # facts that are reported if they differ

    def plain(self) -> dict[str, Any]:
        """Returns these facts as a dict that JSON can express."""
        return {**asdict(self), "cores": sorted(self.cores)}

    @classmethod
    def of(cls, plain: Any) -> Hello:
        """Returns the facts in a dict that ``Hello.plain()`` made; raises TypeError or KeyError for other data."""
        fields = {**plain, "rank": int(plain["rank"]), "cores": frozenset(plain["cores"]), "gpus": (*plain["gpus"],)}
        return cls(**fields)


@dataclass(frozen=True, kw_only=True, slots=True)
class Role:
    """The role that the controller assigns to a task: the agent of a node, or idle (``node`` is None)."""

    node: int | None
    cores: frozenset[int] = frozenset()  # of all tasks of the node
    key: bytes = b""  # for further links to the controller, in place of the card's


@dataclass(frozen=True)
class Card:
    """The address of the controller (pytest's process), and the secret key that other processes need to connect."""

    host: str
    port: int
    key: bytes

    def dumps(self) -> str:
        """Returns the card as text."""
        return json.dumps({**asdict(self), "key": self.key.hex()})

    @classmethod
    def loads(cls, text: str) -> Card:
        """Returns the card that ``dumps`` turned into ``text``; raises ValueError for any other text."""
        try:
            raw = json.loads(text)
            return cls(str(raw["host"]), int(raw["port"]), bytes.fromhex(raw["key"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"no card: {error!r}") from None


class FileMeeting:
    """The file in a shared folder with the controller's card (address and key). Only this user can read the file."""

    def __init__(self, task: Task, folder: Path) -> None:
        self._folder = folder
        name = hashlib.sha256(f"{task.launcher} {task.run}".encode()).hexdigest()[:24]  # a name may hold anything
        self._path = self._folder / f"ddpperf-meeting-{name}"

    def publish(self, card: Card) -> None:
        """Writes the card, and replaces the card that an earlier run has left."""
        written = self._path.with_name(f".{self._path.name}-{uuid.uuid4().hex}")
        try:
            descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(card.dumps())
            written.replace(self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                written.unlink()
            reason = f"the tasks cannot exchange addresses in {self._folder}: {error.strerror}"
            raise SettingError(f"{reason}; name a folder that all nodes share: --ddpperf-rendezvous-dir=DIR") from None

    def find(self) -> Card | None:
        """Returns the card, or None if there is none. Raises SettingError if another user could access the file."""
        try:
            descriptor = open_shared(self._path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SettingError(f"the file {self._path} cannot be read: {error.strerror}; remove the file") from None
        with os.fdopen(descriptor, encoding="utf-8") as file:
            found = os.fstat(descriptor)
            if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & _OTHERS:
                raise SettingError(f"the file {self._path} belongs to another user, or others may read it; remove it")
            with contextlib.suppress(ValueError):
                return Card.loads(file.read())
        return None

    def end(self) -> None:
        """Removes the card."""
        with contextlib.suppress(OSError):
            self._path.unlink()


def own_folder() -> Path:
    """Returns this user's private folder for cards; raises SettingError if other users could access the folder."""
    try:
        return private_folder()
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}"
        raise SettingError(f"{reason}; remove this, or name another folder: --ddpperf-rendezvous-dir=DIR") from None


def exchange(_: RankContext, task: Task, variables: Mapping[str, str], text: str | None, seconds: float) -> str:
    """Passes the controller's card to all nodes through torchrun's store, and returns the card as text.

    This function runs on the only rank of a launch. The controller passes its card as ``text``, other nodes pass None.
    The other nodes wait until a controller answers at the card's address, because the store may have the card of an
    earlier run. After ``seconds`` they return even an old card. The last node deletes the card, because every process
    that can connect to the store can read it.
    """
    from datetime import timedelta

    from torch.distributed.rendezvous import rendezvous

    os.environ.update(variables)
    timeout = timedelta(seconds=seconds)
    store, *_ = next(rendezvous("env://", timeout=timeout))
    key = f"pytest-ddpperf/{task.run}/{task.restarts}"
    others, served = int(variables["GROUP_WORLD_SIZE"]) - 1, variables.get(_AGENT_STORE) == "True"
    deadline = time.monotonic() + seconds
    if text is None:
        found = str(store.get(key).decode())
        while not _leads(found) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            found = str(store.get(key).decode())
        if store.add(f"{key}/read", 1) == others and served:
            store.delete_key(key)
        return found
    store.delete_key(f"{key}/read")
    store.set(key, text)
    while not served and store.add(f"{key}/read", 0) < others and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)  # the store ends with this process
    return text


def _leads(text: str) -> bool:
    """Returns whether a controller answers at the card's address and knows the card's key."""
    card = Card.loads(text)
    try:
        connect((card.host, card.port), card.key, {"looks": True}).close()
    except (OSError, ForeignPeer):
        return False
    return True
