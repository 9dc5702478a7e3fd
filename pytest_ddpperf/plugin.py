"""The pytest hooks and fixtures of this plugin. Heavy modules are imported when a benchmark needs them."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddpperf.errors import BaselineError, DdpperfError, HistoryError, LaunchError, NotTimed, SettingError, reason
from pytest_ddpperf.run.session import configuration

if TYPE_CHECKING:
    from pytest_ddpperf.against.worktree import Revision
    from pytest_ddpperf.fixture import Ddpperf
    from pytest_ddpperf.run.session.probe import Probe
    from pytest_ddpperf.run.session.rank_group import RankGroup
    from pytest_ddpperf.run.session.session import Session
    from pytest_ddpperf.settings import Settings

SETTINGS = pytest.StashKey["Settings"]()
SESSION = pytest.StashKey["Session"]()
REVISION: pytest.StashKey[Revision] = pytest.StashKey()
PROBE: pytest.StashKey[Probe] = pytest.StashKey()
SECTIONS = pytest.StashKey[list[tuple[str, str]]]()
FAILED = pytest.StashKey[str]()
STANDS = pytest.StashKey[DdpperfError]()  # the verdict that failed a test; another attempt would change it by chance
UNMEASURED = pytest.StashKey[dict[str, list[str]]]()  # by test, why its phases failed without a finding
IN_WORKER = pytest.StashKey[bool]()  # whether a benchmark did not run in a worker of pytest-xdist
LEFT_OUT = "ddpperf_left_out"  # marks the report of such a benchmark on its way to the controller
NUMBER_LEFT_OUT = pytest.StashKey[int]()  # in the controller
ATTEMPT = pytest.StashKey[int]()  # how many times a test has run, including now
_ONLY_LISTS = ("collectonly", "showfixtures", "show_fixtures_per_test")  # options with which no test runs
TESTS = pytest.StashKey[int]()  # number of tests that measure


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Declares every setting as an option and as an ini setting."""
    configuration.declare(parser, pluginmanager)


@pytest.hookimpl(trylast=True)  # conftest files have declared their options
def pytest_load_initial_conftests(parser: pytest.Parser, args: list[str]) -> None:
    """Refuses misspelt options, and names the option that was probably meant."""
    if unknown := parser.parse_known_and_unknown_args(args)[1]:
        from pytest_ddpperf.run.session.refusals import require_known

        try:
            require_known(unknown)
        except SettingError as error:
            raise pytest.UsageError(str(error)) from None


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declares the plugin's own hooks."""
    from pytest_ddpperf import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main() -> None:
    """Refuses to run pytest inside a rank."""
    configuration.require_no_rank()


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Returns a line for the header of the run if ``--benchmark-disable`` makes this plugin count without timing."""
    return ["ddpperf: --benchmark-disable: benchmarks are counted and not timed"] * configuration.counts_alone(config)


def pytest_configure(config: pytest.Config) -> None:
    """Resolves the settings of command line and ini file; refuses invalid ones."""
    config.addinivalue_line("markers", configuration.marker_line())
    try:
        config.stash[SETTINGS] = settings = configuration.settings_of(config, probe=PROBE in config.stash)
        if any(each is not None for each in (settings.against, settings.against_python, settings.calibrate)):
            from pytest_ddpperf.against.worktree import reference

            config.stash[REVISION] = reference(settings, config.rootpath, config.invocation_params.dir)
        if vars(settings) and not configuration.may_follow(settings):  # something is asked for
            from pytest_ddpperf.run.session.refusals import require_outputs

            require_outputs(settings, config.rootpath)
        if configuration.may_be_task(settings):
            from pytest_ddpperf.run.session.under_launcher import UnderLauncher

            plugin = UnderLauncher(settings.rendezvous_dir, partial(session_of, config))
            config.pluginmanager.register(plugin, configuration.UNDER_LAUNCHER)
    except (SettingError, BaselineError, HistoryError) as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Checks all markers before the first test runs; marks tests that use our fixtures, for ``-m ddpperf``."""
    configuration.mark_ours(items)
    try:
        configuration.require_marks(config, items)
        for item in items:
            configuration.item_settings(config.stash[SETTINGS], item)
    except SettingError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(tryfirst=True)  # before the terminal's header ends
def pytest_collection_finish(session: pytest.Session) -> None:
    """Counts the tests that measure; stops the session if git cannot check out the revision to compare with."""
    config = session.config
    measuring = [item for item in session.items if "ddpperf" in getattr(item, "fixturenames", ())]
    config.stash[TESTS] = len(configuration.selected(config, measuring))
    ours = any(map(configuration.uses_ranks, session.items))
    if configuration.follows(session) or config.option.collectonly or not ours:
        return
    configuration.timeout_of(config)
    configuration.register_passes(config, config.stash[SETTINGS], partial(session_of, config))
    try:
        if config.stash[TESTS] and REVISION in config.stash and not hasattr(config, "workerinput"):
            session_of(config).sides.check_out()
    except (SettingError, LaunchError) as error:
        raise pytest.UsageError(str(error)) from None


def session_of(config: pytest.Config) -> Session:
    """Returns the session of this run; the first call makes it."""
    from pytest_ddpperf.reports.progress import LiveLine
    from pytest_ddpperf.run.session.session import Session

    if SESSION not in config.stash:
        config.stash[SESSION] = Session(
            config.stash[SETTINGS],
            config.rootpath,
            LiveLine(*map(config.pluginmanager.get_plugin, ("terminalreporter", "capturemanager"))),
            partial(configuration.command_of, config),
            config.stash.get(REVISION, None),
            probe=config.stash.get(PROBE, None),
            hook=config.hook,
            timeout=configuration.timeout_of(config),
            tests=config.stash.get(TESTS, 1),  # the controller of pytest-xdist collects none
        )
    return config.stash[SESSION]


def _of_test(request: pytest.FixtureRequest) -> tuple[Settings, list[tuple[str, str]]]:
    """Returns the settings of a test, and the list to which sections of the test's report are added."""
    from pytest_ddpperf.launch.processes import require_linux

    require_linux()  # before modules are imported that another system lacks
    settings = configuration.item_settings(request.config.stash[SETTINGS], request.node)
    return settings, request.node.stash.setdefault(SECTIONS, [])


@pytest.fixture
def ddpperf(request: pytest.FixtureRequest) -> Ddpperf:
    """Measures distributed training and judges it: ``ddpperf.check(...)``, ``measure(...)`` and ``scaling(...)``."""
    if hasattr(request.config, "workerinput"):
        request.node.stash[IN_WORKER] = True
        pytest.skip("benchmarks in several workers of pytest-xdist would disturb each other; run them with -n 0")
    given, session = _of_test(request), session_of(request.config)
    from pytest_ddpperf.fixture import Ddpperf

    session.budget.begin_test(request.node.nodeid)
    return Ddpperf(session, request.node.nodeid, *given, (request.path.parent, request.config.rootpath))


@pytest.fixture
def ddpperf_group(request: pytest.FixtureRequest) -> RankGroup:
    """Runs functions on ranks, for functional tests: ``ddpperf_group.run(function, *args)`` calls it on every rank."""
    settings, sections = _of_test(request)
    from pytest_ddpperf.run.session.rank_group import RankGroup

    if hasattr(request, "param"):  # the number of ranks
        settings = replace(settings, world_size=(request.param,))
    return RankGroup(session_of(request.config), settings, sections, request.node.nodeid)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test that uses only ``ddpperf_group`` once for each number of ranks in its marker."""
    sizes = configuration.group_sizes(metafunc) if "ddpperf_group" in metafunc.fixturenames else ()
    if len(sizes) > 1:
        metafunc.parametrize("ddpperf_group", sizes, indirect=True, ids=[f"w{size}" for size in sizes])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Forgets an earlier attempt of the test, if another plugin runs the test again."""
    known = item.config.stash.get(SESSION, None)
    attempt = item.stash[ATTEMPT] = item.stash.get(ATTEMPT, 0) + (known is None or not known.budget.defers)
    item.stash[FAILED] = ""
    item.config.stash.setdefault(UNMEASURED, {})[item.nodeid] = []
    if STANDS not in item.stash:
        item.stash[SECTIONS] = []
        if attempt > 1 and known is not None:
            known.begin_test(item.nodeid, attempt)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Fails a rerun of a test after a failing verdict; skips the rest of a test that reads an unmeasured time."""
    if STANDS in item.stash:
        raise item.stash[STANDS].with_traceback(None)
    try:
        yield
    except (KeyboardInterrupt, NotTimed) as error:
        from pytest_ddpperf.run.session.tracebacks import end_in_code_of_user, ended_at

        if isinstance(error, NotTimed):
            told = ended_at(error, str(item.path), item.nodeid)
            raise pytest.skip.Exception(told, _use_item_location=True) from None
        if not item.config.getoption("fulltrace", default=False):  # it gets no report
            end_in_code_of_user(error)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows only the text of the plugin's errors, attaches the ranks' output, and stores baselines of passed tests."""
    error, ours = call.excinfo and call.excinfo.value, item.config.stash.get(SESSION, None)
    whole = item.config.getoption("fulltrace", default=False)
    if isinstance(error, (DdpperfError, pytest.fail.Exception)) and not whole:
        from pytest_ddpperf.run.session.tracebacks import end_in_code_of_user

        end_in_code_of_user(error)
    if call.when == "call" and ours is not None and ours.settings.junit_properties:
        from pytest_ddpperf.run.session.extensions import tell_properties

        tell_properties(item, ours.outputs.results)
    report = yield
    error = call.excinfo and call.excinfo.value  # unittest's only now
    verdict = None
    if error is not None:
        from pytest_ddpperf.run.session.tracebacks import error_of_repeat, finding_in, show

        show(report, error, item)
        verdict = finding_in(error)
        if verdict is not None and ours is not None and not ours.budget.defers:  # else a second pass may follow
            item.stash.setdefault(STANDS, error_of_repeat(verdict, str(item.path), item.nodeid))
    report.sections.extend(section for section in item.stash.get(SECTIONS, ()) if call.when == "call")
    if item.stash.get(IN_WORKER, False):
        vars(report)[LEFT_OUT] = True
    item.stash[FAILED] = item.stash.get(FAILED, "") or reason(report, error)
    measures = "ddpperf" in getattr(item, "fixturenames", ())
    if call.when == "teardown" and ours is not None:
        if measures:
            ours.budget.ended(item.nodeid)
        try:
            ours.end_test(item.nodeid, item.stash.get(FAILED, ""))
        except (BaselineError, SettingError) as problem:  # from storing, or from a hook
            error, report.outcome, report.longrepr = problem, "failed", str(problem)
    if measures:
        unmeasured = report.failed and isinstance(error, DdpperfError) and verdict is None
        told = [reason(report, error)] if unmeasured else []
        item.config.stash.setdefault(UNMEASURED, {}).setdefault(item.nodeid, []).extend(told)
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Counts the benchmarks that workers of pytest-xdist skipped, from the reports that the workers send."""
    if report.skipped and hasattr(report, LEFT_OUT) and hasattr(report, "node"):
        stash = report.node.config.stash
        stash[NUMBER_LEFT_OUT] = stash.get(NUMBER_LEFT_OUT, 0) + 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints the summary: a row per benchmark, and the stored baselines."""
    if SESSION not in config.stash:
        return
    made = config.stash[SESSION].outputs
    terminalreporter.write(made.measured_text)
    if made.silent:
        return
    from pytest_ddpperf.reports.summary import colour_of, summary_parts

    writer = config.get_terminal_writer()
    look = writer.fullwidth, lambda text, colour: writer.markup(text, **{colour: True})
    for i, (title, text) in enumerate(summary_parts(made, *look, verbosity=config.get_verbosity())):
        terminalreporter.write_sep("=", title, **({} if i else {colour_of(made): True}))
        terminalreporter.write(f"{text}\n" if text else "")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Writes the reports, records the run in the history, and sets the exit status."""
    config, settings = session.config, session.config.stash[SETTINGS]
    files = any(getattr(settings, name) is not None for name in configuration.FILES)
    unmeasured = {test: whys for test, whys in config.stash.get(UNMEASURED, {}).items() if whys}
    left_out = config.stash.get(NUMBER_LEFT_OUT, 0)
    if hasattr(config, "workerinput") or not (files or unmeasured or left_out or SESSION in config.stash):
        return
    if any(getattr(config.option, name, False) for name in _ONLY_LISTS):
        return
    from pytest_ddpperf.run.session.ending import end, set_status, tell_left_out

    set_status(session, sum(map(len, unmeasured.values())))
    if SESSION in config.stash:
        config.stash[SESSION].outputs.unmeasured = {test: whys[0] for test, whys in unmeasured.items()}
    if left_out:
        tell_left_out(session, session_of(config), left_out)
    if files or SESSION in config.stash:
        end(session, session_of(config), exitstatus)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """Adds the plugin's benchmarks to the file that pytest-benchmark writes."""
    if SESSION in config.stash:
        from pytest_ddpperf.run.session.ending import append_entries

        append_entries(config.stash[SESSION], output_json["benchmarks"])


def pytest_unconfigure(config: pytest.Config) -> None:
    """Ends all processes of the session."""
    if SESSION in config.stash:
        config.stash[SESSION].close()
        del config.stash[SESSION]
