"""What ranks import from installed packages is imported once, where nothing speaks against it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_ddpperf.errors import LaunchError, SettingError
from pytest_ddpperf.launch.launch_run import LaunchResult
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.launchers import Launchers
from pytest_ddpperf.launch.messages import Preload, Preloaded, SeenImport
from pytest_ddpperf.launch.preloading.zygotes import Judged, PreloadedZygotes, Wanted, preloaded

MIB = 2**20
COUNT = "import os, time\nfrom pathlib import Path\nPIDS = Path(__file__).with_suffix('.pids')\n"
COUNT += "with PIDS.open('a') as file: print(os.getpid(), file=file)\nend = time.monotonic() + 0.002\n"
COUNT += "while time.monotonic() < end: pass\n"
BAD = {
    "starts_thread": ("import threading\nthreading.Thread(target=threading.Event().wait).start()", "starts a thread"),
    "starts_process": ("import subprocess\nCHILD = subprocess.Popen(['sleep', '60'])", "starts a process"),
    "sets_variable": ("os.environ['SET_BY_IMPORT'] = '1'", "changes the environment variables"),
    "sets_handler": ("import signal\nsignal.signal(signal.SIGUSR2, print)", "changes a signal handler"),
    "opens_socket": ("import socket\nopened = socket.socket()", "opens a file or a socket"),
    "moves": ("os.chdir('/')", "changes the current folder"),
    "ends": ("os._exit(3)", "ends its process"),
    "raises": ("raise SystemExit('no')", "raises SystemExit: no"),
    "uses_gpu": ("import torch\ntorch.cuda._initialized = True", "uses a GPU"),
    "imports_project": ("import of_project", "imports of_project, which is not installed"),
}
GOOD = {
    "plain": "",
    "reads_variable": "VALUE = os.environ.get('READ_BY_IMPORT')",
    "reads_changed": "import plain\nVALUE = os.environ.get('CHANGED_BY_RANK')",
    "knows_run": "VALUE = os.environ.get('TORCHELASTIC_RUN_ID')",
    "dumps_all": "VALUES = dict(os.environ)",
    "knows_rank": "import counts_rank\nRANK = counts_rank.RANK",
    "counts_rank": "import plain\nRANK = int(os.environ.get('RANK', 0))",
    "knows_port": "PORT = os.environ.get('MASTER_PORT')",
    "draws": "import random\nDRAWN = random.random()",
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of installed packages; each notes the processes that import it."""
    folder = tmp_path_factory.mktemp("environment") / "site-packages"
    folder.mkdir()
    for name, code in {**GOOD, **{name: code for name, (code, _) in BAD.items()}}.items():
        (folder / f"{name}.py").write_text(f"{COUNT}{code}\n")
    project = tmp_path_factory.mktemp("project")
    (project / "of_project.py").write_text(f"{COUNT}import plain\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(folder), str(project)])
        yield folder


@pytest.fixture(scope="module")
def original(packages: Path, launcher: Launcher) -> Iterator[Launcher]:
    assert packages
    with Launcher(like=launcher) as copied:
        copied.wait()
        yield copied


@pytest.fixture
def make(original: Launcher) -> Iterator[Callable[..., Launchers]]:
    """Launchers whose first zygote is a copy, so that torch is imported once for all tests."""
    made: list[Launchers] = []

    def launchers(*preload: str) -> Launchers:
        made.append(Launchers(lambda first: Launcher(like=first or original), preload))
        return made[-1]

    yield launchers
    for one in made:
        one.close()


def imports(_ctx: object, *names: str, attribute: str = "") -> Any:
    modules = [__import__(name) for name in names]
    return [getattr(module, attribute) for module in modules] if attribute else os.getpid()


def run(
    launchers: Launchers, *call: Any, number: int = 0, world_size: int = 2, scope: str = "file"
) -> LaunchResult[Any]:
    launchers.wait(number + 1, scope, world_size)
    result = launchers[number].run(*call, world_size=world_size, device="cpu", backend="gloo")
    launchers.note(scope, result.imports)
    return result


def importers(packages: Path, name: str) -> set[int]:
    file = packages / f"{name}.pids"
    return set(map(int, file.read_text().split())) if file.exists() else set()


def test_an_installed_module_is_imported_once_and_no_other(packages: Path, make: Callable[..., Launchers]) -> None:
    launchers = make("auto")
    before = importers(packages, "plain")

    def of_both(ctx: object) -> Any:
        return imports(ctx, "of_project", "dumps_all")

    first = run(launchers, of_both)
    assert importers(packages, "plain") - before == set(first.values)
    assert {one.module: one.installed for one in first.imports} == {
        "plain": True,
        "of_project": False,
        "dumps_all": True,
    }
    second, third = run(launchers, of_both), run(launchers, of_both, number=1)
    (once,) = importers(packages, "plain") - before - set(first.values)
    assert once in launchers.parents
    assert [one.module for one in (*second.imports, *third.imports)] == ["of_project", "of_project"]
    assert run(launchers, of_both, scope="another").imports, "ranks of another file find nothing imported"


def test_a_launcher_without_preloading_preloads_nothing(make: Callable[..., Launchers]) -> None:
    seen = SeenImport("plain", "", 1.0)
    for preload, missing, why in (((), 300, None), (("auto",), 300 + 300 + 40, "")):
        launchers = make(*preload)
        launchers.note("file", [seen])
        assert launchers.missing_bytes(1, "file", 1) == missing * MIB
        assert launchers.why_not(seen) == why


def test_modules_whose_import_would_harm_ranks_stay_with_them(
    packages: Path, make: Callable[..., Launchers], all_gone: Callable[..., bool]
) -> None:
    launchers, before = make("auto"), importers(packages, "starts_process")
    launchers.note("file", [SeenImport(name, "", 1.0) for name in (*BAD, "plain")])
    result = run(launchers, imports, "moves", "plain", world_size=1)
    assert {name: launchers.why_not(SeenImport(name, "", 1.0)) for name in BAD} == {
        name: reason for name, (_, reason) in BAD.items()
    }
    assert launchers.why_not(SeenImport("mine", "", 1.0, installed=False)) == "belongs to no installed package"
    assert [one.module for one in result.imports] == ["moves"]
    assert result.rank(0) not in importers(packages, "plain")
    assert all_gone(importers(packages, "starts_process") - before), "the copies that tried"


def test_a_module_that_was_asked_for_is_found_imported_in_the_first_launch(
    packages: Path, make: Callable[..., Launchers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LARGE", "x" * 100_000)
    launchers = make("plain")
    assert run(launchers, imports, "plain", world_size=1).rank(0) not in importers(packages, "plain")


@pytest.mark.parametrize(
    ("name", "reason"),
    [("moves", "changes the current folder"), ("no_such", "raises ModuleNotFoundError: No module named 'no_such'")],
)
def test_a_module_that_was_asked_for_and_does_harm_is_refused_by_name(
    make: Callable[..., Launchers], name: str, reason: str
) -> None:
    told = f"its import {reason}; remove this module from the list"
    with pytest.raises(SettingError) as caught:
        make(name).wait(1)
    assert str(caught.value) == f"preload={name}: {told}"


def test_preloaded_modules_are_the_same_as_if_each_rank_had_imported_them(
    packages: Path, make: Callable[..., Launchers]
) -> None:
    """A module that knows its rank is imported for each rank, one that knows the port by the ranks themselves.

    So is one that reads what ranks have changed; what it imports is preloaded in its place. Imports leave random
    numbers as they are.
    """
    launchers, ports, drawn = make("auto"), set[str](), set[float]()

    def known(ctx: object) -> Any:
        import random

        os.environ["CHANGED_BY_RANK"] = "1"
        imports(ctx, "draws")
        values = imports(ctx, "reads_changed", "knows_run", attribute="VALUE")
        rank, port = imports(ctx, "knows_rank", attribute="RANK"), imports(ctx, "knows_port", attribute="PORT")
        return values, rank, port[0], random.random(), os.getpid()  # noqa: S311  no secret

    for number in (0, 0, 1):
        result = run(launchers, known, number=number)
        values, ranks, found_ports, numbers, pids = zip(*result.values, strict=True)
        assert values == (["1", "ddpperf"],) * 2
        assert ranks == ([0], [1])
        ports.update(found_ports)
        drawn.update(numbers)
    assert (len(ports), len(drawn)) == (3, 1)
    assert {one.module for one in result.imports} == {"reads_changed", "knows_run", "knows_port"}
    for name in ("counts_rank", "plain", "draws"):
        assert not {*pids} & importers(packages, name)


def test_copies_for_each_rank_count_as_missing_memory_until_they_run(make: Callable[..., Launchers]) -> None:
    launchers = make("auto")
    names = ("knows_rank", "plain")
    run(launchers, imports, *names)
    assert launchers.missing_bytes(1, "file", 2) == (300 + 3 * 40) * MIB, "one copy, and one of it for each rank"
    assert launchers.missing_bytes(1, "another", 2) == 0
    made: dict[tuple[int | None, ...], None] = {}
    for world_size in (2, 3, 1):
        run(launchers, imports, *names, world_size=world_size)
        made[launchers.parents] = None
        assert launchers.missing_bytes(1, "file", world_size) == 0
    assert list(map(len, made)) == [1 + 1 + 2, 1 + 1 + 3]
    assert launchers.missing_bytes(2, "file", 3) == (40 + 4 * 40) * MIB, "a copy with copies"


def test_a_variable_that_an_import_reads_holds_for_each_launch(
    make: Callable[..., Launchers], monkeypatch: pytest.MonkeyPatch
) -> None:
    launchers = make("auto")

    def value(ctx: object) -> Any:
        return imports(ctx, "reads_variable", attribute="VALUE")

    for value_of in ("one", "one", "two"):
        monkeypatch.setenv("READ_BY_IMPORT", value_of)
        result = run(launchers, value, world_size=1)
        assert result.rank(0) == [value_of]
    monkeypatch.setenv("READ_BY_IMPORT", "three")
    assert launchers[0].run(value, world_size=1, device="cpu", backend="gloo").rank(0) == ["three"]


def test_packages_that_import_each_other_are_replaced_by_their_other_imports() -> None:
    first, second, other = (SeenImport(name, "", 1.0) for name in ("first", "second", "other"))
    judged = Judged()
    judged.note("first", Preloaded(reason="starts a thread", inner=(second, other)))
    judged.note("second", Preloaded(reason="starts a thread", inner=(first,)))
    assert judged.common([first, second]) == [other]


class FakeZygote:
    """A zygote whose copies are counted, and fail at the call of this name and number."""

    usable = True

    def __init__(self, failing: str = "", number: int = 0, made: list[FakeZygote] | None = None) -> None:
        self.failing, self.number = failing, number
        self.made = [] if made is None else made
        self.closed = False

    def duplicate(self) -> FakeZygote:
        if self.failing == "duplicate" and len(self.made) == self.number:
            raise LaunchError("no more processes")
        self.made.append(FakeZygote(self.failing, self.number, self.made))
        return self.made[-1]

    def preload(self, request: Preload) -> Callable[[], Preloaded]:
        assert request.module

        def wait() -> Preloaded:
            if self.failing == "preload" and self in self.made[self.number :][:1]:
                raise KeyboardInterrupt
            return Preloaded()

        return wait

    def kill(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


@dataclass
class Copied:
    """A zygote, and all its copies: some imports do harm."""

    answers: dict[str, Preloaded]
    imported: list[str] = field(default_factory=list)

    def duplicate(self) -> Copied:
        return self

    def preload(self, request: Preload) -> Callable[[], Preloaded]:
        self.imported.append(request.module)
        return lambda: self.answers.get(request.module, Preloaded())

    def kill(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_module_that_was_refused_is_refused_again() -> None:
    """Not only for the first test."""
    judged, zygote = Judged(), Copied({"named": Preloaded(reason="starts a thread")})
    wanted = Wanted(asked=(SeenImport("named", "", 1.0),), seen=(), ranks=1)
    for _ in range(2):
        with pytest.raises(SettingError, match=r"^preload=named: its import starts a thread; remove this module"):
            preloaded(cast("Any", zygote), Preload(environ={}, path=(), directory="/"), wanted, judged)
    assert zygote.imported == ["named"]


def preloaded_of(zygote: Any) -> PreloadedZygotes:
    request = Preload(environ={}, path=(), directory="/")
    judged = Judged()
    judged.note("knows_rank", Preloaded(own_rank=True))
    names = ("plain", "knows_rank")
    seen = tuple(SeenImport(name, "", 1.0) for name in names)
    return preloaded(zygote, request, Wanted(asked=(), seen=seen, ranks=2), judged)


@pytest.mark.parametrize(
    ("failing", "number", "error", "made"),
    [
        ("preload", 0, KeyboardInterrupt, 1),
        ("preload", 2, KeyboardInterrupt, 3),
        ("duplicate", 1, LaunchError, 1),
        ("duplicate", 2, LaunchError, 2),
    ],
)
def test_no_fork_server_is_left_if_preloading_is_interrupted(
    failing: str, number: int, error: type[BaseException], made: int
) -> None:
    zygote = FakeZygote(failing, number)
    with pytest.raises(error):
        preloaded_of(zygote)
    assert [copy.closed for copy in zygote.made] == [True] * made


def test_preloaded_fork_servers_are_all_copied_or_none() -> None:
    zygote = FakeZygote("duplicate", 5)
    found = preloaded_of(zygote)
    with pytest.raises(LaunchError):
        found.duplicate()
    assert [copy.closed for copy in zygote.made] == [False] * 3 + [True] * 2


def test_fork_servers_serve_as_many_ranks_as_they_were_copied_for_until_a_signal_stops_them() -> None:
    zygote = FakeZygote()
    found = preloaded_of(zygote)
    for_all = replace(found, of_ranks=())
    for ranks in (1, 2, 3):
        wanted = replace(found.wanted, ranks=ranks)
        assert (found.serve(wanted), for_all.serve(wanted)) == (ranks <= 2, True)
    assert found.fits({})
    zygote.made[1].usable = False
    assert not found.fits({})
