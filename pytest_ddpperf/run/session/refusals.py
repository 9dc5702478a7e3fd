"""Checks, before the first test, that options, settings and files can be used and do not contradict each other."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.parsers import closest
from pytest_ddpperf.settings import DEFAULT_SET, KNOBS, Knob, Settings, instead_of

_ALIKE = 0.8  # of difflib: a less similar word is hardly meant
_PURPOSES = {
    "against": "another revision, and none is named",
    "profile": "profiled benchmarks, and nothing is profiled",
    "save": "saved results, and nothing is saved",
}
NOT_QUICK = ("save", "calibrate", "history", "budget", "max_time", "launches")  # a quick run has too few launches


def require_known(unknown: Iterable[str]) -> None:
    """Raises an error if one of the ``unknown`` command-line arguments looks like a misspelt option of this plugin."""
    options = [knob.option for knob in KNOBS.values() if knob.given == "option"]
    for argument in unknown:
        require_foreign(argument.partition("=")[0], options, "option")


def require_foreign(word: str, known: list[str], kind: str) -> None:
    """Raises an error if ``word``, an unknown option or ini setting, looks misspelt or was removed from this plugin."""
    prefix, _, name = word.replace("-", "_").lstrip("_").partition("_")
    if prefix == "ddpperf" and (instead := instead_of(name)):
        raise SettingError(f"{word}: there is no such {kind}: {instead}")
    hint = closest(word, known, _ALIKE)
    if hint or (prefix == "ddpperf" and name):
        raise SettingError(f"{word}: there is no such {kind}; {hint or 'pytest --help lists all of them'}".rstrip())


def require_other_marker(mark: str, ours: str) -> None:
    """Raises an error for an undeclared marker that is probably a misspelt ``ours``."""
    if closest(mark, [ours], _ALIKE):
        raise SettingError(f"@pytest.mark.{mark} is not a declared marker; did you mean {ours}?")


def require_consistent(settings: Settings, said: Collection[str]) -> None:
    """Raises an error if settings do not fit together; ``said`` names the settings on the command line."""
    for name in said:
        needed = KNOBS[name].needs
        if needed is not None and getattr(settings, name) and not getattr(settings, needed):
            raise SettingError(f"{KNOBS[name].option} is only for {_PURPOSES[needed]}: add {KNOBS[needed].option}")
    for name in ("against", "against_python"):
        if getattr(settings, name) is None:
            continue
        against = f"{KNOBS[name].option}={getattr(settings, name)} uses no baselines, but "
        if settings.save is not None:
            raise SettingError(f"{against}--ddpperf-save writes them: give only one of the two")
        if settings.baseline_set is not None and "baseline_set" in said:
            raise SettingError(f"{against}--ddpperf-baseline-set={settings.baseline_set} names a set: give one of them")
    _require_counts_alone(settings, said)
    if settings.against_python is not None and settings.against_setup is not None and "against_setup" in said:
        raise SettingError(
            f"{KNOBS['against_setup'].option} creates an environment for the reference, and "
            f"{KNOBS['against_python'].option} names an existing one: give only one of the two options"
        )
    if settings.calibrate is not None:
        asked = {
            "save": settings.save is not None,
            "against": settings.against is not None,
            "against_python": settings.against_python is not None,
            "counts": settings.counts == "only",
            "history": settings.history is not None and "history" in said,
        }
        _require_alone(f"{KNOBS['calibrate'].spelled} measures benchmarks side by side with themselves", asked)
    if settings.quick:
        asked = {name: name in said for name in NOT_QUICK} | {"save": settings.save is not None}
        _require_alone(f"{KNOBS['quick'].option} has its own limits and stores nothing", asked)


def _require_alone(first: str, asked: Mapping[str, bool]) -> None:
    for name in (name for name, given in asked.items() if given):
        raise SettingError(f"{first}, so {KNOBS[name].option} does not fit: give only one of the two options")


def _require_counts_alone(settings: Settings, said: Collection[str]) -> None:
    """Raises an error if ranks are simulated and a setting needs times or real ranks."""
    if settings.simulate is None:
        return
    simulated = KNOBS["simulate"].spelled
    for name in ("against", "against_python", "calibrate", "budget"):
        if getattr(settings, name) is not None and (name in said or name != "budget"):
            raise SettingError(f"{simulated} measures nothing, but {KNOBS[name].spelled} needs times: give one of them")
    if settings.simulate_rank >= min(settings.simulate):
        least = min(settings.simulate)
        rank = f"{simulated} --rank={settings.simulate_rank}"
        raise SettingError(f"{rank}: there is no such rank: with {least} ranks, give a number from 0 to {least - 1}")


def require_no_test(knob: Knob, raw: str, folder: Path, *, apart: bool = False) -> None:
    """Raises an error if an option swallowed the path of a test; ``apart``: a space stands before the value."""
    path = folder / raw.partition("::")[0]
    try:
        knob.parse(raw)
    except ValueError as error:
        expected = str(error)
    else:
        # A set of baselines may have a folder's name, if it stands behind =. A file with tests is hardly such a set.
        if knob.bare is None or not (apart or path.suffix == ".py"):
            return
        expected = "a name that no file or folder has"
    if "::" not in raw and not (raw and path.exists()):
        return
    form = f"{knob.option}={knob.metavar}"
    cure = f"write {form}" if knob.bare is None else f"put {knob.option} last, or write {form}"
    raise SettingError(f"{knob.option}={raw}: expected {expected}, but {raw} is a test, file or folder: {cure}")


def require_outputs(settings: Settings, root: Path) -> None:
    """Raises an error if requested baselines do not exist, or if requested files or folders cannot be written."""
    asked = settings.baseline_set not in {None, settings.save}
    storing = settings.save is not None
    if asked or storing:
        from pytest_ddpperf.baselines.store import Store

        folder = root / settings.baseline_dir
        if asked:
            Store(folder, settings.compared).ensure_there()
        if storing:
            Store(folder, settings.save or DEFAULT_SET).ensure_writable()
    if settings.report is not None:
        require_reports(settings.report, root)
    if isinstance(settings.profile, Path):
        from pytest_ddpperf.reports.files import ensure_folder

        ensure_folder(root / settings.profile, KNOBS["profile"].option)
    if settings.history is not None:
        from pytest_ddpperf.baselines.history.database import ensure_recordable

        ensure_recordable(root / settings.history)


def require_reports(report: tuple[tuple[str, Path], ...], root: Path) -> None:
    """Raises an error for unknown kinds of reports, for files that cannot be written, and for two kinds in one file."""
    from pytest_ddpperf.baselines.files import STANDARD_OUTPUT, located
    from pytest_ddpperf.reports.files import ensure_text, ensure_writable
    from pytest_ddpperf.reports.formats.kinds import kind_named
    from pytest_ddpperf.reports.plots import require_plots

    own = {"json": ensure_writable, "plots": require_plots}
    for kind, file in report:
        option = f"{KNOBS['report'].option}={kind}:{file}"
        if kind not in own:
            kind_named(kind, option, own)
        place = located(root, file)
        own.get(kind, ensure_text)(place, option)
        other = next(one for one, path in report if located(root, path) == place)
        if other != kind and place != STANDARD_OUTPUT and not str(place).startswith("/dev/"):
            raise SettingError(f"{option}: the report {other} goes to the same file: name another file")
