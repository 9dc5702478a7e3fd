"""The settings of a session from the command line, the ini file and markers."""

from __future__ import annotations

import argparse  # loaded by pytest anyway
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.parsers import SWITCH_WORDS, world_sizes
from pytest_ddpperf.settings import KNOBS, Settings, overlay, overlay_words

if TYPE_CHECKING:
    from pytest_ddpperf.run.session.session import Session
    from pytest_ddpperf.run.session.timeouts import TestTimeout

MARKER = "ddpperf"
_NO_BENCHMARK = "Skipping non-benchmark (--benchmark-only active)."  # the words of pytest-benchmark 4 and 5
FILES = ("report", "history")  # settings that ask for files at the end of a session
_INI = {knob.ini: name for name, knob in KNOBS.items() if knob.given != "call"}


def declare(parser: pytest.Parser, plugins: pytest.PytestPluginManager) -> None:
    """Declares every setting as an option and in the ini file."""
    words = tuple(_command_words(plugins.get_plugin("pytestconfig")))
    everyday, advanced = parser.getgroup("ddpperf"), parser.getgroup("ddpperf advanced", "ddpperf, advanced")
    for number, key in enumerate(_INI):
        # One line for each; its option says what it means, if it has one.
        text = "see the option --ddpperf-NAME or, if there is none, the documentation" * (not number)
        parser.addini(key, text, default=None)
    for knob in (knob for knob in KNOBS.values() if knob.given == "option"):
        group = everyday if knob.example else advanced
        form: dict[str, Any] = {"action": "store_const", "const": "true"}
        if not knob.flag:
            form = {"metavar": knob.metavar, **({"action": "append"} if knob.repeats else {})}
            if knob.bare is not None:
                form |= {"nargs": "?", "const": knob.bare}
        default = "" if knob.flag or knob.default_text in {"", "none"} else f" (default: {knob.default_text})"
        example = f"\npytest perf {knob.example}" if knob.example else ""
        group.addoption(
            knob.option, dest=knob.ini, default=None, help=f"{knob.help.partition('. ')[0]}{default}{example}", **form
        )
        if knob.flag:
            # Separate options: one with an optional value would swallow the path after it.
            forms = [f"{knob.option}={word}" for word in (*SWITCH_WORDS[True], *SWITCH_WORDS[False])]
            if knob.metavar is not None:
                forms += {word for word in words if word.startswith(f"{knob.option}=")} - {*forms}
            group.addoption(*forms, action=_Switched, dest=knob.ini, default=None, nargs=0, help=argparse.SUPPRESS)


def _command_words(config: Any) -> Iterator[str]:
    """Yields the arguments that pytest parses: of ``addopts``, then of PYTEST_ADDOPTS, then of the command line."""
    if hasattr(config, "known_args_namespace"):  # else the ini file has not been read yet
        yield from config.getini("addopts")
    yield from shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))
    yield from map(os.fspath, config.invocation_params.args)


class _Switched(argparse.Action):
    """An argparse action that treats ``--ddpperf-NAME=off`` as the name of an option; stores the word after ``=``."""

    def __call__(
        self, _parser: object, namespace: argparse.Namespace, _values: object, option: str | None = None
    ) -> None:
        word = (option or "").partition("=")[2]
        setattr(namespace, self.dest, next((str(on).lower() for on in SWITCH_WORDS if word in SWITCH_WORDS[on]), word))


def settings_of(config: pytest.Config, *, probe: bool = False) -> Settings:
    """Returns the settings of ini file and command line; raises SettingError if they are invalid or contradictory.

    Quick runs, simulated ranks and runs that a bisection starts (``probe``) have no session budget.
    """
    ini = dict(_ini_values(config))
    # A name without a value sets nothing: so -o can take back a setting of the file.
    given = {name: ini[key] for key, name in _INI.items() if ini.get(key) not in (None, "")}
    said = {name: raw for name, knob in KNOBS.items() if (raw := config.getoption(knob.ini, None)) is not None}
    said |= {name: "\n".join(said[name]) for name in said if KNOBS[name].repeats}
    said |= {name: str(given.pop(name)) for name in [*given] if KNOBS[name].given == "command"}
    settings = _asked(config, given, said) if given or said else Settings()
    if probe or settings.quick or settings.simulate is not None:  # the file's budget: little or nothing is measured
        settings = replace(settings, budget=None)
    if settings.quick:
        settings = replace(settings, history=None)  # the file's
    if counts_alone(config) and not probe:
        settings = overlay(settings, {"counts": "only"}, lambda *_: "--benchmark-disable")
    beside = said if "budget" in said else {*given, *said}  # a budget on the command line replaces the file's limit
    if settings.budget is not None and "max_time" not in beside:
        settings = replace(settings, max_time=settings.budget)  # no benchmark has its own limit
    return settings


def _asked(config: pytest.Config, given: Mapping[str, object], said: Mapping[str, str]) -> Settings:
    """Returns settings from the ini file (``given``) and from the command line (``said``), which has priority."""
    from pytest_ddpperf.run.session.refusals import NOT_QUICK, require_consistent, require_no_test

    settings = overlay(Settings(), given, lambda knob, raw: f"{knob.ini} = {raw} ({config.inipath})")
    apart = dict(pairwise(_command_words(config)))
    for name, raw in said.items():
        knob = KNOBS[name]
        require_no_test(knob, raw, config.invocation_params.dir, apart=apart.get(knob.option) == raw)
    settings = overlay(settings, said, lambda knob, raw: f"{knob.option}={raw}")
    if "quick" not in said and not said.keys().isdisjoint(NOT_QUICK):
        settings = replace(settings, quick=False)
    require_consistent(settings, list(said))
    return settings


def counts_alone(config: pytest.Config) -> bool:
    """Returns whether the run only counts: with ``--benchmark-disable``, unless a ddpperf option asks for times."""
    if not config.getoption("benchmark_disable", default=False) or config.getoption("benchmark_enable", default=False):
        return False
    asking = ("counts", "budget", "max_time", "launches", "steps")
    calibrates = any(key == KNOBS["calibrate"].ini for key, _ in _ini_values(config))
    return not calibrates and all(config.getoption(KNOBS[name].ini) is None for name in asking)


def _ini_values(config: pytest.Config) -> Iterator[tuple[str, object]]:
    """Yields (name, value) of each setting in the ini file and ``-o``. Values from TOML stay numbers and booleans."""
    # getini refuses numbers and booleans of TOML for settings that may be texts, too.
    values: Mapping[str, object] = vars(config).get("_inicfg") or vars(config).get("inicfg", {})  # of pytest 9, and 8
    beside = dict(word.split("=", 1) for word in vars(config).get("_override_ini", ()) if "=" in word)  # -o of pytest 8
    for key, value in {**values, **beside}.items():
        if key not in _INI and not _is_declared(config, key):
            from pytest_ddpperf.run.session.refusals import require_foreign

            require_foreign(key, list(_INI), "setting")
        yield key, getattr(value, "value", value)


def _is_declared(config: pytest.Config, key: str) -> bool:
    try:
        config.getini(key)
    except ValueError:
        return False
    return True


def marker_line() -> str:
    """Returns the plugin's line in the list of markers."""
    words = ", ".join(name for name, knob in KNOBS.items() if knob.per_test)
    return f"{MARKER}(...): settings of pytest-ddpperf for a test: {words}"


def item_settings(settings: Settings, item: pytest.Item) -> Settings:
    """Returns the settings of a session, overridden by a test's markers."""
    for mark in reversed(list(item.iter_markers(MARKER))):  # the closest marker is the strongest
        if mark.args:
            raise SettingError(f"@pytest.mark.{MARKER} of {item.nodeid} has positional arguments: use keywords")
        settings = overlay_words(settings, mark.kwargs, where=f"{item.nodeid}: @pytest.mark.{MARKER}")
    return settings


def uses_ranks(item: pytest.Item) -> bool:
    """Returns whether a test uses the plugin's fixtures."""
    return not {"ddpperf", "ddpperf_group"}.isdisjoint(getattr(item, "fixturenames", ()))


def mark_ours(items: Iterable[pytest.Item]) -> None:
    """Marks the tests that use the plugin's fixtures, so that ``-m ddpperf`` selects them."""
    for item in items:
        if uses_ranks(item) and item.get_closest_marker(MARKER) is None:
            item.add_marker(MARKER)


def selected(config: pytest.Config, measuring: list[pytest.Item]) -> list[pytest.Item]:
    """Returns the measuring tests that pytest-benchmark's options let run; marks the others as skipped.

    With ``--benchmark-skip``, none runs. With ``--benchmark-only``, all run, because their skip marks are removed.
    """
    if config.getoption("benchmark_only", default=False):  # the stronger one, if both are given
        for item in measuring:
            item.own_markers[:] = [mark for mark in item.own_markers if mark.kwargs.get("reason") != _NO_BENCHMARK]
    elif config.getoption("benchmark_skip", default=False):
        reason = "--benchmark-skip skips benchmarks, also with the fixture ddpperf"
        for item in measuring:
            item.add_marker(pytest.mark.skip(reason=reason))
        return []
    return measuring


def group_sizes(metafunc: pytest.Metafunc) -> tuple[int, ...]:
    """Returns the numbers of ranks in the closest marker of a test that uses only ``ddpperf_group``; empty if none."""
    marks = metafunc.definition.iter_markers(MARKER)
    given = next((mark.kwargs["world_size"] for mark in marks if "world_size" in mark.kwargs), None)
    if given is None or "ddpperf" in metafunc.fixturenames:
        return ()
    try:
        return world_sizes(given)
    except ValueError:  # refused with the other markers, when all tests are collected
        return ()


def require_marks(config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    """Raises an error for an undeclared marker that is probably a misspelt ``ddpperf``."""
    declared = {line.partition(":")[0].partition("(")[0].strip() for line in config.getini("markers")}
    for mark in {mark.name for item in items for mark in item.iter_markers()} - declared:
        from pytest_ddpperf.run.session.refusals import require_other_marker

        require_other_marker(mark, MARKER)


def require_no_rank() -> None:
    """Raises an error if pytest runs inside a rank."""
    if "pytest_ddpperf.launch.zygote" in sys.modules:  # ranks are forked from it
        raise SettingError(
            "a rank called pytest.main(), which would start all tests again: call it outside of the measured code"
        )


UNDER_LAUNCHER, _TIMEOUT = "ddpperf-under-launcher", "ddpperf-timeout"  # the names of plugins
_OF_TASKS = ("TORCHELASTIC_RUN_ID", "SLURM_STEP_ID", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")  # of launchers' tasks


def may_be_task(settings: Settings) -> bool:
    """Returns whether this process may be one of several that a launcher, such as torchrun, has started."""
    return settings.multi_node == "auto" and not os.environ.keys().isdisjoint(_OF_TASKS)


def follows(session: pytest.Session) -> bool:
    """Returns whether this process leaves the tests to another process of torchrun, srun or mpirun."""
    plugin: Any = session.config.pluginmanager.get_plugin(UNDER_LAUNCHER)
    return plugin is not None and bool(plugin.follows(session))


def may_follow(settings: Settings) -> bool:
    """Returns whether torchrun, srun or mpirun started this process to help another process, which writes all files."""
    if not may_be_task(settings):
        return False
    from pytest_ddpperf.launch.nodes.tasks import task_of

    task = task_of(os.environ)
    return task is not None and not task.controls


def timeout_of(config: pytest.Config) -> TestTimeout | None:
    """Returns the plugin that knows pytest-timeout's deadlines, after registering it; None without pytest-timeout."""
    plugins = config.pluginmanager
    if plugins.has_plugin("timeout") and not plugins.has_plugin(_TIMEOUT):
        from pytest_ddpperf.run.session.timeouts import TestTimeout

        plugins.register(TestTimeout(), _TIMEOUT)
    return plugins.get_plugin(_TIMEOUT)


def register_passes(config: pytest.Config, settings: Settings, session_of: Callable[[], Session]) -> None:
    """Registers the plugin that runs undecided tests a second time, if the session has a time budget."""
    if settings.budget is not None and not hasattr(config, "workerinput"):
        from pytest_ddpperf.run.session.passes import Passes

        config.pluginmanager.register(Passes(session_of))


# Options of one run, without which a baseline is stored: files, failing verdicts, and limits of time.
_OF_A_RUN = {"save", "allow", "gpu_lock_timeout", "report", "history", "budget", "max_time", "quick", "fail_on"}
_OF_A_RUN |= {"require_baseline", "junit_properties", *(name for name in KNOBS if name.startswith("profile"))}


def command_of(config: pytest.Config, test: str) -> str:
    """Returns the command that runs a test again, with the user's options that affect the choice of the reference."""
    given = ((knob, config.getoption(knob.ini, None)) for name, knob in KNOBS.items() if name not in _OF_A_RUN)
    options = [
        knob.option if knob.flag and raw == "true" else f"{knob.option}={raw}" for knob, raw in given if raw is not None
    ]
    path, *rest = test.split("::", 1)
    node = "::".join((os.path.relpath(config.rootpath / path, config.invocation_params.dir), *rest))
    quoted = shlex.quote(node) if re.search(r'["$`\\!]', node) else f'"{node}"'
    return " ".join(("pytest", quoted, *map(shlex.quote, options)))
