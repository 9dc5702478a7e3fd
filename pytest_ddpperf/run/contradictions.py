"""Settings and surroundings of a session that cannot go together. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.launch.environment import started_by
from pytest_ddpperf.settings import KNOBS, Settings

FOR: Mapping[str, tuple[str, str]] = {  # the setting without which one means nothing, and what that one is for
    "against_setup": ("against", "another revision, and none is named"),
    "against_tests": ("against", "another revision, and none is named"),
    "force_save": ("save", "what is saved, and nothing is"),
}


def require_consistent(settings: Settings, said: Collection[str]) -> None:
    """Refuse settings of which one would have to be ignored."""
    for name, (needed, purpose) in FOR.items():
        if name in said and not getattr(settings, needed):
            raise SettingError(f"{KNOBS[name].option} is for {purpose}: give {KNOBS[needed].option}")
    if settings.against is not None and settings.save is not None:
        raise SettingError(
            f"--ddpperf-against={settings.against} reads no baseline and --ddpperf-save writes one: give one of them"
        )
    if settings.against is not None and settings.baseline is not None and "baseline" in said:
        raise SettingError(
            f"--ddpperf-against={settings.against} reads no baseline and --ddpperf-baseline={settings.baseline} names "
            "some: give one of them"
        )
    if settings.calibrate is None:
        return
    others = {
        "save": settings.save is not None,
        "against": settings.against is not None,
        "counted_only": settings.counted_only,
        "history": settings.history is not None and "history" in said,
    }
    for name in (name for name, given in others.items() if given):
        raise SettingError(
            f"{KNOBS['calibrate'].option}={settings.calibrate} holds benchmarks against themselves, "
            f"and {KNOBS[name].option} asks for something else: give one of them"
        )


def require_one_controller(environ: Mapping[str, str]) -> None:
    """Refuse to measure in one of several processes: all would run the suite and overwrite each other's results."""
    launched = started_by(environ)
    if launched is not None:
        launcher, variable, processes = launched
        raise SettingError(
            f"{launcher} started {processes} processes ({variable}={processes}), and each of them runs this suite: "
            f"pytest starts the ranks itself, so start one pytest without {launcher}, "
            f"for example: pytest --ddpperf-world-size={processes}"
        )
