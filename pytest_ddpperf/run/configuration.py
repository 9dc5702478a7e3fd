"""What a session is asked for by the command line and the ini file, and what is refused before the first test."""

from __future__ import annotations

import argparse  # loaded by pytest anyway
import os
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.errors import NOT_MEASURED, HistoryError, SettingError
from pytest_ddpperf.parsers import SWITCH_WORDS, closest, world_sizes
from pytest_ddpperf.settings import DEFAULT_SET, KNOBS, Knob, Settings, overlay, overlay_words

if TYPE_CHECKING:
    import pytest

    from pytest_ddpperf.run.session import Session
    from pytest_ddpperf.run.timeouts import TestTimeout

MARKER = "ddpperf"
_ALIKE = 0.8  # of difflib: what is less alike is hardly meant
_PURPOSES = {
    "against": "another revision, and none is named",
    "profile": "what is profiled, and nothing is",
    "save": "what is saved, and nothing is",
    "simulate": "what is simulated, and nothing is",
}
NOT_QUICK = ("save", "calibrate", "history", "budget", "max_time", "launches")  # what asks for more than a first look
_INI = {knob.ini: name for name, knob in KNOBS.items()}


def declare(parser: pytest.Parser, plugins: pytest.PytestPluginManager) -> None:
    """Declares every knob as an option and as a setting of the ini file."""
    words = tuple(_command_words(plugins.get_plugin("pytestconfig")))
    group = parser.getgroup("ddpperf", "performance of distributed training")
    for knob in KNOBS.values():
        form: dict[str, Any] = {"action": "store_const", "const": "true"}
        if not knob.flag:
            form = {"metavar": knob.metavar, **({"action": _Lines} if knob.repeats else {})}
            if knob.bare is not None:
                form |= {"nargs": "?", "const": knob.bare}
        default = "" if knob.flag or not knob.default_text else f" (default: {knob.default_text})"
        group.addoption(knob.option, dest=knob.ini, default=None, help=f"{knob.help}{default}", **form)
        parser.addini(knob.ini, knob.help.replace("%%", "%"), default=None)
        if knob.flag:
            # Options of their own: one with an optional value would swallow the path that follows it.
            forms = [f"{knob.option}={word}" for word in (*SWITCH_WORDS[True], *SWITCH_WORDS[False])]
            if knob.metavar is not None:
                forms += {word for word in words if word.startswith(f"{knob.option}=")} - {*forms}
            group.addoption(*forms, action=_Switched, dest=knob.ini, default=None, nargs=0, help=argparse.SUPPRESS)


class _Lines(argparse.Action):
    """Keeps the values of an option that is given several times, each in a line."""

    def __call__(
        self, _parser: object, namespace: argparse.Namespace, values: object, _option: str | None = None
    ) -> None:
        before = getattr(namespace, self.dest) or ""
        setattr(namespace, self.dest, f"{before}\n{values}".lstrip("\n"))


def _command_words(config: Any) -> Iterator[str]:
    """The words of the command line, with those that the environment and the ini file add to it."""
    yield from config.invocation_params.args
    yield from shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))
    if hasattr(config, "known_args_namespace"):  # else the ini file has not been read yet
        yield from config.getini("addopts")


class _Switched(argparse.Action):
    """Keeps the word behind an option that needs none: ``true`` or ``false`` where it is a switch."""

    def __call__(
        self, _parser: object, namespace: argparse.Namespace, _values: object, option: str | None = None
    ) -> None:
        word = (option or "").partition("=")[2]
        setattr(namespace, self.dest, next((str(on).lower() for on in SWITCH_WORDS if word in SWITCH_WORDS[on]), word))


def require_known(unknown: Iterable[str]) -> None:
    """Refuses arguments that are meant for us; ``unknown``: those that no plugin has declared."""
    options = [knob.option for knob in KNOBS.values()]
    for argument in unknown:
        option = argument.partition("=")[0]
        _require_foreign(option, options, "option")


def settings_of(config: pytest.Config, *, probe: bool = False) -> Settings:
    """What the ini file and the command line say; SettingError where they contradict each other or cannot be.

    A ``probe`` of a bisection and simulated ranks have no budget of a session.
    """
    ini = dict(_ini_values(config))
    # With nothing behind the name a setting is not given: so -o can take back what the file says.
    given = {name: ini[key] for key, name in _INI.items() if ini.get(key) not in (None, "")}
    settings = overlay(Settings(), given, lambda knob, raw: f"{knob.ini} = {raw} ({config.inipath})")
    said = {name: raw for name, knob in KNOBS.items() if (raw := config.getoption(knob.ini)) is not None}
    for name, raw in said.items():
        _require_no_test(KNOBS[name], raw, config.invocation_params.dir)
    settings = overlay(settings, said, lambda knob, raw: f"{knob.option}={raw}")
    if "quick" not in said and not said.keys().isdisjoint(NOT_QUICK):  # the command line is stronger than the file
        settings = replace(settings, quick=False)
    require_consistent(settings, list(said))
    if probe or settings.quick or settings.simulate is not None:  # the file's: little or nothing is measured
        settings = replace(settings, budget=None)
    if settings.quick:
        settings = replace(settings, history=None)  # the file's
    if counts_alone(config) and not probe:
        settings = overlay(settings, {"counted_only": True}, lambda *_: "--benchmark-disable")
    beside = said if "budget" in said else {*given, *said}  # that of the command line is in place of the file's limit
    if settings.budget is not None and "max_time" not in beside:
        settings = replace(settings, max_time=settings.budget)  # no benchmark has a limit of its own
    return settings


def counts_alone(config: pytest.Config) -> bool:
    """Whether ``--benchmark-disable`` of pytest-benchmark leaves counts alone: no option of ours asks for times."""
    if not config.getoption("benchmark_disable", default=False) or config.getoption("benchmark_enable", default=False):
        return False
    asking = ("counted_only", "calibrate", "budget", "max_time", "launches", "steps")
    return all(config.getoption(KNOBS[name].ini) is None for name in asking)


def require_consistent(settings: Settings, said: Collection[str]) -> None:
    """Refuses settings of which one would have to be ignored; ``said``: the names of those on the command line."""
    for name in said:
        needed = KNOBS[name].needs
        if needed is not None and getattr(settings, name) and not getattr(settings, needed):
            raise SettingError(f"{KNOBS[name].option} is for {_PURPOSES[needed]}: give {KNOBS[needed].option}")
    for name in ("against", "against_python"):
        if getattr(settings, name) is None:
            continue
        against = f"{KNOBS[name].option}={getattr(settings, name)} reads no baseline and "
        if settings.save is not None:
            raise SettingError(f"{against}--ddpperf-save writes one: give one of them")
        if settings.baseline is not None and "baseline" in said:
            raise SettingError(f"{against}--ddpperf-baseline={settings.baseline} names some: give one of them")
    _require_counts_alone(settings, said)
    if settings.against_python is not None and settings.against_setup is not None and "against_setup" in said:
        raise SettingError(
            f"{KNOBS['against_setup'].option} makes an environment of its own and {KNOBS['against_python'].option} "
            "names one: give one of them, and build or install the revision in the named one"
        )
    if settings.calibrate is not None:
        asked = {
            "save": settings.save is not None,
            "against": settings.against is not None,
            "against_python": settings.against_python is not None,
            "counted_only": settings.counted_only,
            "history": settings.history is not None and "history" in said,
        }
        _require_alone(f"{KNOBS['calibrate'].option}={settings.calibrate} holds benchmarks against themselves", asked)
    if settings.quick:
        asked = {name: name in said for name in NOT_QUICK} | {"save": settings.save is not None}
        _require_alone(
            f"{KNOBS['quick'].option} takes a first look, which has limits of its own and is not stored", asked
        )


def _require_alone(first: str, asked: Mapping[str, bool]) -> None:
    for name in (name for name, given in asked.items() if given):
        raise SettingError(f"{first}, and {KNOBS[name].option} asks for something else: give one of them")


def _require_counts_alone(settings: Settings, said: Collection[str]) -> None:
    """Refuses what takes times, or ranks that are there, beside simulated ranks, and networks that nobody knows."""
    if settings.network is not None or settings.accelerator is not None:
        from pytest_ddpperf.run.predictable import require_known

        require_known(settings)
    if settings.simulate is None:
        return
    simulated = f"{KNOBS['simulate'].option}={','.join(map(str, settings.simulate))}"
    for name in ("against", "against_python", "calibrate", "budget"):
        if getattr(settings, name) is not None and (name in said or name != "budget"):
            raise SettingError(f"{simulated} measures nothing, and {KNOBS[name].option} does: give one of them")
    if settings.simulate_rank >= min(settings.simulate):
        rank = f"{KNOBS['simulate_rank'].option}={settings.simulate_rank}"
        raise SettingError(f"{rank}: {simulated} has a group without it (the first is rank 0): give a smaller one")


def _ini_values(config: pytest.Config) -> Iterator[tuple[str, object]]:
    """The settings of the ini file, and of ``-o``, that are ours, with the types that TOML gave them."""
    # getini refuses numbers and booleans of TOML where a text is possible too.
    values: Mapping[str, object] = vars(config).get("_inicfg") or vars(config).get("inicfg", {})  # of pytest 9, and 8
    for key, value in values.items():
        if key not in _INI and not _is_declared(config, key):
            _require_foreign(key, list(_INI), "setting")
        yield key, getattr(value, "value", value)


def _is_declared(config: pytest.Config, key: str) -> bool:
    try:
        config.getini(key)
    except ValueError:
        return False
    return True


def _require_foreign(word: str, known: list[str], kind: str) -> None:
    """Refuses a word that begins as ours do or looks like one of them."""
    hint = closest(word, known, _ALIKE)
    if hint or word.replace("_", "-").lstrip("-").startswith("ddpperf-"):
        raise SettingError(f"{word}: there is no such {kind}; {hint or 'pytest --help lists all of them'}".rstrip())


def marker_line() -> str:
    """What the list of markers says of ours."""
    words = ", ".join(name for name, knob in KNOBS.items() if knob.per_test)
    return f"{MARKER}(...): settings of pytest-ddpperf for a test: {words}"


def item_settings(settings: Settings, item: pytest.Item) -> Settings:
    """The settings of a session with the markers of a test laid over them."""
    for mark in reversed(list(item.iter_markers(MARKER))):  # the closest marker is the strongest
        if mark.args:
            raise SettingError(f"@pytest.mark.{MARKER} on {item.nodeid}: takes keyword arguments only")
        settings = overlay_words(settings, mark.kwargs, where=f"{item.nodeid}: @pytest.mark.{MARKER}")
    return settings


def uses_ranks(item: pytest.Item) -> bool:
    """Whether a test uses our fixtures."""
    return not {"ddpperf", "ddpperf_group"}.isdisjoint(getattr(item, "fixturenames", ()))


def mark_ours(items: Iterable[pytest.Item]) -> None:
    """Marks the tests that use our fixtures, so that ``-m ddpperf`` picks them."""
    for item in items:
        if uses_ranks(item) and item.get_closest_marker(MARKER) is None:
            item.add_marker(MARKER)


def group_sizes(metafunc: pytest.Metafunc) -> tuple[int, ...]:
    """The numbers of ranks that the closest marker of a test names; none where a benchmark uses them too."""
    marks = metafunc.definition.iter_markers(MARKER)
    given = next((mark.kwargs["world_size"] for mark in marks if "world_size" in mark.kwargs), None)
    if given is None or "ddpperf" in metafunc.fixturenames:
        return ()
    try:
        return world_sizes(given)
    except ValueError:  # refused with the other markers, when all tests are collected
        return ()


def require_marks(config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    """Refuses a marker that nobody has declared where ours is hardly meant otherwise."""
    declared = {line.partition(":")[0].partition("(")[0].strip() for line in config.getini("markers")}
    for mark in {mark.name for item in items for mark in item.iter_markers()} - declared:
        if closest(mark, [MARKER], _ALIKE):
            raise SettingError(f"@pytest.mark.{mark}: nobody has declared this marker; did you mean {MARKER}?")


def require_no_rank() -> None:
    """Refuses a suite that a rank runs."""
    if "pytest_ddpperf.launch.zygote" in sys.modules:  # ranks are forked from it
        raise SettingError(
            "a rank called pytest.main(), which would start the suite anew: call pytest.main() in a test"
        )


def _require_no_test(knob: Knob, raw: str, folder: Path) -> None:
    """Refuses a test or a folder of tests that an option without a value has taken for its value."""
    path = folder / raw.partition("::")[0]
    try:
        knob.parse(raw)
    except ValueError as error:
        expected = str(error)
    else:
        # A folder may have the name of a set of baselines, and a file with tests is hardly one.
        if knob.bare is None or path.suffix != ".py":
            return
        expected = "a name that is no file here"
    if "::" not in raw and not path.exists():
        return
    form = f"{knob.option}={knob.metavar}"
    cure = f"write {form}" if knob.bare is None else f"put {knob.option} last, or write {form}"
    raise SettingError(f"{knob.option}={raw}: expected {expected}, and {raw} is a test, a file or a folder: {cure}")


LAUNCHED, _TIMEOUT = "ddpperf-launched", "ddpperf-timeout"  # the names of plugins
_OF_TASKS = ("TORCHELASTIC_RUN_ID", "SLURM_STEP_ID", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")  # of what launchers start


def may_be_task(settings: Settings) -> bool:
    """Whether a launcher may have started this process as one of several."""
    return settings.nodes == "auto" and not os.environ.keys().isdisjoint(_OF_TASKS)


def follows(session: pytest.Session) -> bool:
    """Whether another process of a launcher runs these tests; UsageError where they cannot be shared."""
    launched: Any = session.config.pluginmanager.get_plugin(LAUNCHED)
    return launched is not None and bool(launched.follows(session))


def may_follow(settings: Settings) -> bool:
    """Whether another process of the launcher may read and write what this one is asked for."""
    if not may_be_task(settings):
        return False
    from pytest_ddpperf.launch.nodes.tasks import task_of

    task = task_of(os.environ)
    return task is not None and not task.controls


def timeout_of(config: pytest.Config) -> TestTimeout | None:
    """The plugin that knows when pytest-timeout ends a test, registered by the first call; None without that one."""
    plugins = config.pluginmanager
    if plugins.has_plugin("timeout") and not plugins.has_plugin(_TIMEOUT):
        from pytest_ddpperf.run.timeouts import TestTimeout

        plugins.register(TestTimeout(), _TIMEOUT)
    return plugins.get_plugin(_TIMEOUT)


def require_system() -> None:
    """Refuses a system that cannot start ranks, before modules are imported that it lacks."""
    from pytest_ddpperf.launch.processes import require_linux

    require_linux()


def require_outputs(settings: Settings, root: Path) -> None:
    """Refuses baselines that are asked for and not there, and files and folders that cannot be written."""
    if may_follow(settings):
        return
    asked = settings.baseline not in {None, settings.save}
    storing = settings.save is not None or settings.calibrate is not None
    if asked or storing:
        from pytest_ddpperf.baselines.store import Store

        folder = root / settings.baseline_dir
        if asked:
            Store(folder, settings.compared).ensure_there()
        if storing:
            Store(folder, settings.save or DEFAULT_SET).ensure_writable()
    if settings.json is not None:
        from pytest_ddpperf.baselines.files import located
        from pytest_ddpperf.reports.document import ensure_writable

        ensure_writable(located(root, settings.json))
    if settings.report is not None:
        from pytest_ddpperf.run.outputs import require_reports

        require_reports(settings.report, root)
    if settings.plots is not None:
        from pytest_ddpperf.baselines.files import located
        from pytest_ddpperf.reports.plots import require_plots

        require_plots(located(root, settings.plots), KNOBS["plots"].option)
    if isinstance(settings.profile, Path):
        from pytest_ddpperf.run.traces import require_folder

        require_folder(root / settings.profile)
    if settings.history is not None:
        from pytest_ddpperf.baselines.history.database import ensure_recordable

        ensure_recordable(root / settings.history)


# Options of one run, which a baseline is not to be stored with: files, what fails, and limits of its time.
_OF_A_RUN = {"save", "lease", "json", "report", "plots", "history", "budget", "max_time", "quick", "fail_on"}
_OF_A_RUN |= {"require_baseline", "properties", *(name for name in KNOBS if name.startswith("profile"))}


def given_options(config: pytest.Config) -> tuple[str, ...]:
    """The options of ours that decide what a benchmark is compared with, as they were given."""
    given = ((knob, config.getoption(knob.ini)) for name, knob in KNOBS.items() if name not in _OF_A_RUN)
    return tuple(
        knob.option if knob.flag and raw == "true" else f"{knob.option}={raw}" for knob, raw in given if raw is not None
    )


def write_at_end(session_of: Callable[[pytest.Config], Session], session: pytest.Session, write: Any) -> None:
    """Writes a file of results; what prevents that is told in the summary, and fails the run."""
    import contextlib

    capture = session.config.pluginmanager.get_plugin("capturemanager")
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    try:
        # Where the file is standard output, pytest must not take the text for what a test prints.
        with contextlib.nullcontext() if capture is None else capture.global_and_fixture_disabled():
            if reporter is not None:
                reporter.ensure_newline()
            write()
    except Exception as error:  # noqa: BLE001  a fault of one file must not cost the report of the tests
        known = isinstance(error, (SettingError, HistoryError))
        told = str(error) if known else f"a file of results was not written: {type(error).__name__}: {error}"
        session_of(session.config).complaints.append(told)
        spoil(session)


def set_status(session: pytest.Session, unmeasured: int) -> None:
    """Tells by the exit status that all failures, so many, are of benchmarks that could not be measured."""
    if session.exitstatus == 1 and unmeasured and unmeasured == session.testsfailed:  # of pytest: tests failed
        session.exitstatus = NOT_MEASURED


def spoil(session: pytest.Session) -> None:
    """Tells by the exit status of a run without another fault that not all that was asked for was done."""
    if session.exitstatus in {0, 5}:  # of pytest: passed, and no tests
        session.exitstatus = NOT_MEASURED
