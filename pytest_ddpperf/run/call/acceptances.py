"""The worsenings that a test and the run accept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.metrics.scaling import EFFICIENCY, SPEEDUP
from pytest_ddpperf.metrics.table import METRICS
from pytest_ddpperf.parsers import closest, instead
from pytest_ddpperf.records.acceptance import Acceptance, belongs
from pytest_ddpperf.records.counts import COUNTS
from pytest_ddpperf.settings import KNOBS

if TYPE_CHECKING:
    from pytest_ddpperf.run.session.session import Session
    from pytest_ddpperf.settings import Settings


def acceptances(test: str, settings: Settings, session: Session) -> list[Acceptance]:
    """Returns the worsenings that the test and the run accept; SettingError for an unknown metric.

    A bisection accepts nothing: it follows every worsening.
    """
    option, reason = KNOBS["allow"].option, settings.reason or ""
    found = [
        *(Acceptance(name, reason, limit, share=share) for name, (limit, share) in (settings.accept or {}).items()),
        *(Acceptance(name, option) for node, name in settings.allow or () if belongs(test, node)),
    ]
    known = {*COUNTS, EFFICIENCY, SPEEDUP, *(row.name for row in (*METRICS, *session.extensions.metrics))}
    for name in (each.metric for each in found if each.metric not in known):
        raise SettingError(f"accepted: there is no metric {name!r}; {instead(closest(name, known), sorted(known))}")
    return found if session.probe is None else []
