"""Tasks find the controller, and nobody else gets at its key."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddpperf.errors import LaunchError, SettingError
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.link import accept, welcome
from pytest_ddpperf.launch.nodes import joining, meeting
from pytest_ddpperf.launch.nodes.meeting import Card, FileMeeting, Hello, exchange, own_folder
from pytest_ddpperf.launch.nodes.tasks import Task

CARD = Card("10.0.0.1", 2900, bytes(range(32)))
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of other users")


def task(run: str = "9-1", launcher: str = "srun") -> Task:
    return Task(launcher=launcher, rank=0, size=2, local_rank=0, one_node=True, run=run)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"host": 1}', '{"host": "a", "port": "b", "key": ""}'])
def test_a_text_that_is_no_card_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Card.loads(text)


def test_tasks_of_one_run_find_the_card_that_only_their_user_may_read(tmp_path: Path) -> None:
    met = FileMeeting(task(), tmp_path)
    assert FileMeeting(task(), tmp_path).find() is None
    met.publish(Card("left by an earlier run", 1, b""))
    met.publish(CARD)
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert FileMeeting(task(), tmp_path).find() == CARD
    assert FileMeeting(task("9-2"), tmp_path).find() is None
    met.end()
    assert list(tmp_path.iterdir()) == []


def test_a_run_of_any_name_stays_within_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    FileMeeting(task("../../etc/x\n\x1b[31m"), folder).publish(CARD)
    assert len(list(folder.iterdir())) == 1
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda file, card: card.rename(file).chmod(0o644), "others may read it"),
        pytest.param(lambda file, card: os.chown(card.rename(file), 65534, 65534), "to another user", marks=AS_ROOT),
        (lambda file, card: file.symlink_to(card), "cannot be read"),  # a link is not followed
        (lambda file, _: os.mkfifo(file), "cannot be read: this is not a regular file; remove the file"),
        (lambda file, _: file.mkdir(), "cannot be read: this is not a regular file; remove the file"),
    ],
)
def test_a_card_of_another_user_or_one_that_is_no_file_is_refused(
    tmp_path: Path, make: Callable[[Path, Path], None], told: str
) -> None:
    FileMeeting(task(), tmp_path).publish(CARD)
    (file,) = tmp_path.iterdir()
    make(file, file.rename(tmp_path / "elsewhere"))
    with pytest.raises(SettingError, match=told):
        FileMeeting(task(), tmp_path).find()


def test_a_missing_rendezvous_folder_is_reported_with_its_setting(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"cannot exchange addresses in .*No such file.*--ddpperf-rendezvous-dir"):
        FileMeeting(task(), tmp_path / "none").publish(CARD)


def test_the_folder_of_one_machine_is_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    folder = own_folder()
    assert folder == tmp_path / f"pytest-ddpperf-{os.geteuid()}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert own_folder() == folder
    folder.chmod(0o777)
    with pytest.raises(SettingError, match=r"pytest-ddpperf-\d+: this is not a folder that only you can access; rem"):
        own_folder()
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(SettingError, match="not a folder that only you can access"):
        own_folder()


@AS_ROOT
def test_a_folder_that_another_user_has_made_is_refused_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    folder = own_folder()
    os.chown(folder, 65534, 65534)
    told = f"{folder}: this is not a folder that only you can access; remove this, or name another folder: "
    with pytest.raises(SettingError, match=f"^{told}--ddpperf-rendezvous-dir=DIR$"):
        joining.follow(task(), Hello(rank=1, host="a", machine="m", cores=frozenset()), None, lambda _: None)


def test_a_folder_of_another_user_is_replaced_by_the_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    session = tmp_path / "run-user"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(session))
    (tmp_path / f"pytest-ddpperf-{os.geteuid()}").touch()
    with pytest.raises(SettingError, match="not a folder that only you can access"):
        own_folder()  # the session has ended
    session.mkdir(mode=0o700)
    assert own_folder() == session
    session.chmod(0o755)
    with pytest.raises(SettingError, match="not a folder that only you can access"):
        own_folder()


@pytest.mark.parametrize(
    ("published", "told"),
    [(None, "did not join: its tests may have"), (CARD, "does not answer at 127.0.0.1 port 1: .* refused; check that")],
)
def test_a_controller_that_does_not_answer_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, published: Card | None, told: str
) -> None:
    monkeypatch.setattr(meeting, "MEETING_SECONDS", 0.1)
    own = Hello(rank=1, host="a", machine="m", cores=frozenset())
    if published is not None:
        FileMeeting(task(), tmp_path).publish(replace(published, host="127.0.0.1", port=1))
    with pytest.raises(LaunchError, match=rf"^rank 0 of the launcher, which controls the run, {told}"):
        joining.follow(task(), own, tmp_path, lambda _: None)


def variables(port: int, *, rank: int, nodes: int) -> dict[str, str]:
    """Those of torchrun, whose agent serves its store."""
    sizes = {"RANK": str(rank), "WORLD_SIZE": str(nodes), "GROUP_WORLD_SIZE": str(nodes)}
    return {**sizes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}


def read_after_an_earlier_run(_: RankContext) -> tuple[bool, bool]:
    """Whether a task gets the card of this run, and has tried that of an earlier one in the same store before."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True)  # type: ignore[attr-defined]
    tried: list[bool] = []
    with socket.create_server(("127.0.0.1", 0)) as earlier, socket.create_server(("127.0.0.1", 0)) as controller:
        left, new = (Card("127.0.0.1", each.getsockname()[1], CARD.key).dumps() for each in (earlier, controller))

        def control() -> None:
            connected, _ = earlier.accept()  # of another process by now
            connected.close()
            tried.append(True)
            store.set("pytest-ddpperf/9-1/0", new)
            welcome(accept(controller.accept()[0], CARD.key)[0])

        threading.Thread(target=control, daemon=True).start()
        store.set("pytest-ddpperf/9-1/0", left)
        found = exchange(_, task(), variables(store.port, rank=1, nodes=2), None, 20.0)
    return found == new, tried == [True]


def left_in_the_store(_: RankContext, readers: tuple[int, ...]) -> list[bool]:
    """Whether the card is in the store of three nodes after each reader, in runs with so many readers."""
    import torch.distributed as dist

    store, left = dist.TCPStore("127.0.0.1", 0, is_master=True), []  # type: ignore[attr-defined]
    with socket.create_server(("127.0.0.1", 0)) as controller:
        text = Card("127.0.0.1", controller.getsockname()[1], CARD.key).dumps()

        def control() -> None:
            for _ in range(sum(readers)):
                welcome(accept(controller.accept()[0], CARD.key)[0])

        threading.Thread(target=control, daemon=True).start()
        for of_run in readers:
            exchange(_, task(), variables(store.port, rank=0, nodes=3), text, 20.0)
            for rank in range(1, of_run + 1):
                assert exchange(_, task(), variables(store.port, rank=rank, nodes=3), None, 20.0) == text
                left.append(bool(store.check(["pytest-ddpperf/9-1/0"])))
    return left


def test_a_card_of_an_earlier_run_is_passed_over_and_the_last_node_deletes_the_card(launcher: Launcher) -> None:
    """Whoever reaches the store can read it. The first of three runs has ended before all nodes have come."""

    def exchanges(ctx: RankContext) -> tuple[object, ...]:
        return read_after_an_earlier_run(ctx), left_in_the_store(ctx, (1, 2, 2))

    result = launcher.run(exchanges, world_size=1, device="cpu", backend="gloo", timeout=60)
    assert result.rank(0) == ((True, True), [True, True, False, True, False])
