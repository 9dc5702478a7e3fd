"""What can be predicted, and on which networks and accelerators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_ddpperf.analysis.links import CLUSTERS
from pytest_ddpperf.analysis.rooflines import ACCELERATORS
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.parsers import closest
from pytest_ddpperf.training.script import Script
from pytest_ddpperf.training.workload import Workload

if TYPE_CHECKING:
    from pytest_ddpperf.run.ways import Contender
    from pytest_ddpperf.settings import Settings

HERE = "here"  # the network of this environment, measured when it is needed


def require_fit(settings: Settings, way: Contender, ranks: int) -> None:
    """Refuses what cannot be predicted."""
    require_known(settings)
    if isinstance(way.subject, Script):
        raise SettingError(
            f"{way.subject.name} is a Script, which makes its own process group: a prediction takes a Workload or a "
            "function build(ctx) -> step"
        )
    if not callable(way.subject) and not isinstance(way.subject, Workload):
        kind = type(way.subject).__name__
        raise SettingError(f"a {kind} cannot be predicted: give a Workload or a function build(ctx) -> step")
    node = settings.ranks_per_node
    if settings.network in CLUSTERS and ranks > node and ranks % node:
        raise SettingError(f"world_size={ranks} does not fill nodes of ranks_per_node={node}: give a multiple of it")
    if settings.accelerator is not None and way.variables:
        names = ", ".join(name for name, _ in way.variables)
        raise SettingError(
            f"env of {names}: accelerator={settings.accelerator} models each operator, whatever variables there are; "
            "leave one of them out"
        )


def require_known(settings: Settings) -> None:
    """Refuses names of networks and accelerators that nobody knows."""
    known = {"network": (HERE, *CLUSTERS), "accelerator": tuple(ACCELERATORS)}
    for name, names in known.items():
        given = getattr(settings, name)
        if given is not None and given not in names:
            meant = closest(given, names)
            raise SettingError(
                f"{name}={given!r} is not known{': ' * bool(meant)}{meant or ';'} it is one of {', '.join(names)}"
            )
