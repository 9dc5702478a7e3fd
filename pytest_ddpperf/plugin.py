"""pytest hooks and fixtures, and nothing else. Everything heavy is imported when a benchmark needs it."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddpperf.errors import BaselineError, DdpperfError, HistoryError, NotTimed, SettingError, extended
from pytest_ddpperf.launch.environment import started_by
from pytest_ddpperf.settings import DEFAULT_SET, KNOBS, Settings, overlay, overlay_words, require_consistent

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_ddpperf.against.worktree import Revision
    from pytest_ddpperf.fixture import Ddpperf
    from pytest_ddpperf.run.probe import Probe
    from pytest_ddpperf.run.rank_group import RankGroup
    from pytest_ddpperf.run.session import Session

MARKER = "ddpperf"
SETTINGS = pytest.StashKey[Settings]()
SESSION = pytest.StashKey["Session"]()
REVISION = pytest.StashKey["Revision"]()
PROBE = pytest.StashKey["Probe"]()
SECTIONS = pytest.StashKey[list[tuple[str, str]]]()
FAILED = pytest.StashKey[bool]()
TESTS = pytest.StashKey[int]()  # that measure
QUIET = -1  # as with -q; below it only what was judged is shown


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare every knob as an option and as an ini setting."""
    group = parser.getgroup("ddpperf", "performance of distributed training")
    for knob in KNOBS.values():
        form: dict[str, Any] = {"action": "store_const", "const": "true"}
        if not knob.flag:
            form = {"metavar": knob.metavar}
            if knob.bare is not None:
                form |= {"nargs": "?", "const": knob.bare}
        default = "" if knob.flag or not knob.default_text else f" (default: {knob.default_text})"
        group.addoption(knob.option, dest=knob.ini, default=None, help=f"{knob.help}{default}", **form)
        parser.addini(knob.ini, knob.help.replace("%%", "%"), default=None)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare our own hooks."""
    from pytest_ddpperf import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


def pytest_configure(config: pytest.Config) -> None:
    """Resolve what the command line and the ini file say; refuse what cannot be."""
    words = ", ".join(name for name, knob in KNOBS.items() if knob.per_test)
    config.addinivalue_line("markers", f"{MARKER}(...): settings of pytest-ddpperf for a test: {words}")
    try:
        config.stash[SETTINGS] = settings = _settings(config)
        require_consistent(settings, [name for name, knob in KNOBS.items() if config.getoption(knob.ini) is not None])
        _require_baselines(settings, config.rootpath / settings.baseline_dir)
        if settings.against is not None:
            from pytest_ddpperf.against.worktree import resolve

            config.stash[REVISION] = resolve(settings.against, config.rootpath, config.invocation_params.dir)
        if settings.json is not None:
            from pytest_ddpperf.baselines.files import located
            from pytest_ddpperf.reports.document import ensure_writable

            ensure_writable(located(config.rootpath, settings.json))
        if settings.history is not None:
            from pytest_ddpperf.baselines.history.database import ensure_recordable

            ensure_recordable(config.rootpath / settings.history)
    except (SettingError, BaselineError, HistoryError) as error:
        raise pytest.UsageError(str(error)) from None


def _settings(config: pytest.Config) -> Settings:
    ini = {name: config.getini(knob.ini) for name, knob in KNOBS.items()}
    options = {name: config.getoption(knob.ini) for name, knob in KNOBS.items()}
    # With nothing behind the name a setting is not given: so -o can take back what the file says.
    given = {name: raw for name, raw in ini.items() if raw is not None and raw != ""}
    settings = overlay(Settings(), given, lambda knob, raw: f"{knob.ini} = {raw} ({config.inipath})")
    said = {name: raw for name, raw in options.items() if raw is not None}
    return overlay(settings, said, lambda knob, raw: f"{knob.option}={raw}")


def _require_baselines(settings: Settings, folder: Path) -> None:
    """Refuses baselines that are asked for and not there, and a folder in which none could be stored."""
    asked = settings.baseline not in {None, settings.save}
    storing = settings.save is not None or settings.calibrate is not None
    if asked or storing:
        from pytest_ddpperf.baselines.store import Store

        if asked:
            Store(folder, settings.compared).ensure_there()
        if storing:
            Store(folder, settings.save or DEFAULT_SET).ensure_writable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check every marker before the first test runs."""
    try:
        for item in items:
            _item_settings(config, item)
    except SettingError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Count the tests that measure; refuse those that start ranks in one of several processes of a launcher."""
    fixtures = [frozenset(getattr(item, "fixturenames", ())) for item in session.items]
    session.config.stash[TESTS] = sum("ddpperf" in names for names in fixtures)
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    launched = started_by(os.environ, terminal=reporter is not None and reporter.isatty)
    starts_ranks = any({"ddpperf", "ddpperf_group"} & names for names in fixtures)
    if launched is not None and starts_ranks and not session.config.option.collectonly:
        launcher, variable, processes = launched
        raise pytest.UsageError(
            f"{launcher} started {processes} processes ({variable}={processes}), and each of them runs this suite: "
            f"pytest starts the ranks itself, so start one pytest without {launcher}, or unset {variable} if it is "
            f"left over: pytest --ddpperf-world-size={processes}"
        )


def _item_settings(config: pytest.Config, item: pytest.Item) -> Settings:
    settings = config.stash[SETTINGS]
    for mark in reversed(list(item.iter_markers(MARKER))):  # the closest marker is the strongest
        if mark.args:
            raise SettingError(f"@pytest.mark.{MARKER} on {item.nodeid}: takes keyword arguments only")
        settings = overlay_words(settings, mark.kwargs, where=f"{item.nodeid}: @pytest.mark.{MARKER}")
    return settings


def session_of(config: pytest.Config) -> Session:
    """The session of this run, made at the first call."""
    from pytest_ddpperf.reports.progress import LiveLine
    from pytest_ddpperf.run.session import Session

    if hasattr(config, "workerinput"):
        raise SettingError("benchmarks disturb each other in pytest-xdist's workers; run them with -n 0 or -p no:xdist")
    if SESSION not in config.stash:
        revision: Revision | None = config.stash.get(REVISION, None)
        probe: Probe | None = config.stash.get(PROBE, None)
        plugins = config.pluginmanager
        config.stash[SESSION] = Session(
            config.stash[SETTINGS],
            config.rootpath,
            LiveLine(plugins.get_plugin("terminalreporter"), plugins.get_plugin("capturemanager")),
            _given_options(config),
            revision,
            probe=probe,
            hook=config.hook,
            tests=config.stash.get(TESTS, 1),  # the controller of pytest-xdist collects none
        )
    return config.stash[SESSION]


def _given_options(config: pytest.Config) -> tuple[str, ...]:
    """The options of ours that decide what a benchmark is compared with, as they were given."""
    given = (
        (knob, config.getoption(knob.ini)) for name, knob in KNOBS.items() if name not in {"save", "json", "history"}
    )
    return tuple(knob.option if knob.flag else f"{knob.option}={raw}" for knob, raw in given if raw is not None)


def _of_test(request: pytest.FixtureRequest) -> tuple[Settings, list[tuple[str, str]]]:
    """The settings of a test, and the sections of its report."""
    return _item_settings(request.config, request.node), request.node.stash.setdefault(SECTIONS, [])


@pytest.fixture
def ddpperf(request: pytest.FixtureRequest) -> Ddpperf:
    """Measure distributed training and judge it: ``ddpperf.check(...)``, ``measure(...)`` and ``scaling(...)``."""
    from pytest_ddpperf.fixture import Ddpperf

    folders = request.path.parent, request.config.rootpath
    return Ddpperf(session_of(request.config), request.node.nodeid, *_of_test(request), folders)


@pytest.fixture
def ddpperf_group(request: pytest.FixtureRequest) -> RankGroup:
    """Just ranks, for functional tests: ``ddpperf_group.run(function, *args)`` calls it on every rank."""
    from pytest_ddpperf.run.rank_group import RankGroup

    return RankGroup(session_of(request.config), *_of_test(request))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """Skip the rest of a test that asks for a time in a run that only counts; the counts have been judged before."""
    try:
        yield
    except NotTimed as error:
        raise pytest.skip.Exception(str(error), _use_item_location=True) from None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show our errors as their text alone, attach what the ranks printed, store baselines of tests that passed."""
    report = yield
    error = call.excinfo.value if call.excinfo is not None else None
    if call.excinfo is not None and isinstance(error, DdpperfError):
        placed = extended(error, after=f"\n{_place(item, call.excinfo)}")
        shown = pytest.ExceptionInfo.from_exception(placed).getrepr(style="value", chain=False)
        if shown.reprcrash is not None:
            shown.reprcrash.message = str(placed)  # pytest's short summary has no room for the name of our class
        report.longrepr = shown
        report.sections.extend(getattr(error, "sections", ()))
    if call.when == "call":
        printed: list[tuple[str, str]] = item.stash.get(SECTIONS, [])
        report.sections.extend(printed)
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    if call.when == "teardown" and SESSION in item.config.stash:
        try:
            item.config.stash[SESSION].end_test(item.nodeid, passed=not item.stash[FAILED])
        except BaselineError as error:
            report.outcome = "failed"
            report.longrepr = str(error)
    return report


def _place(item: pytest.Item, excinfo: pytest.ExceptionInfo[BaseException]) -> str:
    """The test's own line that led to the error."""
    for entry in reversed(excinfo.traceback):
        if str(entry.path) == str(item.path):
            return f"  at {item.nodeid.split('::')[0]}:{entry.lineno + 1} in {entry.name}"
    return f"  in {item.nodeid}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print a row per benchmark and what was stored."""
    if SESSION not in config.stash or config.stash[SESSION].silent:
        return
    from pytest_ddpperf.reports.summary import summary_parts
    from pytest_ddpperf.reports.table import verdict_painter

    writer = config.get_terminal_writer()
    width = writer.fullwidth if terminalreporter.isatty else None
    brief = config.get_verbosity() < QUIET
    session = config.stash[SESSION]
    parts = summary_parts(session.summary(), width, verdict_painter(writer.markup), brief=brief)
    for title, text in (*parts, *session.parts):
        terminalreporter.write_sep("=", title)
        terminalreporter.write_line(text)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the JSON results, record the run in the history, and ask for further reports.

    The results are written where there are none too: a file of an earlier run must not pass for this one's.
    """
    config = session.config
    settings = config.stash[SETTINGS]
    if hasattr(config, "workerinput"):
        return
    if settings.json is not None or settings.history is not None:
        for write in (session_of(config).write_json, session_of(config).record):
            _write(session, write)
    if SESSION in config.stash:
        _write(session, config.stash[SESSION].collect_reports)


def _write(session: pytest.Session, write: Callable[[], None]) -> None:
    capture = session.config.pluginmanager.get_plugin("capturemanager")
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    try:
        # Where the file is standard output, pytest must not take the text for what a test prints.
        with nullcontext() if capture is None else capture.global_and_fixture_disabled():
            if reporter is not None:
                reporter.ensure_newline()
            write()
    except (SettingError, HistoryError) as error:
        session.config.stash[SESSION].complaints.append(str(error))
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave no process behind."""
    if SESSION in config.stash:
        config.stash[SESSION].close()
        del config.stash[SESSION]
