"""The first verb: launch variants of a benchmark, in rounds, until a judge is content or the time is spent."""

from pytest_ddpperf.measure.costs import ONLY_TIMES, Telling
from pytest_ddpperf.measure.groups import can_take_turns
from pytest_ddpperf.measure.pilot import fitting_steps, launch_seconds, pilot_of, pilot_plan, short_launch
from pytest_ddpperf.measure.rounds import CONFIRMED, FEWEST_LAUNCHES, measure
from pytest_ddpperf.measure.terms import Budget, Look, Next, Observer, Progress, Ran, Run
from pytest_ddpperf.measure.variant import CUSTOM, Pilot, Variant, counted_only

__all__ = [
    "CONFIRMED",
    "CUSTOM",
    "FEWEST_LAUNCHES",
    "ONLY_TIMES",
    "Budget",
    "Look",
    "Next",
    "Observer",
    "Pilot",
    "Progress",
    "Ran",
    "Run",
    "Telling",
    "Variant",
    "can_take_turns",
    "counted_only",
    "fitting_steps",
    "launch_seconds",
    "measure",
    "pilot_of",
    "pilot_plan",
    "short_launch",
]
