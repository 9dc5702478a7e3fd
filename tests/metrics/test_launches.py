from __future__ import annotations

from dataclasses import replace

from pytest_ddpperf.metrics.launches import once, typical_step
from pytest_ddpperf.records.launch import Launch, RankLaunch


def launch(*step_times: float) -> Launch:
    return Launch(
        round=0,
        ranks=(
            RankLaunch(
                rank=0, step_times=step_times, memory={}, loss=None, samples_per_step=None, tokens_per_step=None
            ),
        ),
        seconds=1.0,
    )


def test_a_figure_is_computed_once_for_each_launch() -> None:
    asked: list[Launch] = []

    @once
    def steps(one: Launch) -> int | None:
        asked.append(one)
        return len(one.step_times) or None

    some, none = launch(1.0, 2.0), launch()
    assert [steps(one) for one in (some, none, some, none)] == [2, None, 2, None]
    assert asked == [some, none]


def test_what_is_kept_changes_no_launch_and_follows_no_copy() -> None:
    one = launch(1.0, 2.0, 3.0, 4.0, 5.0)
    assert typical_step(one) == 2.5
    assert one == launch(1.0, 2.0, 3.0, 4.0, 5.0)
    assert "typical" not in repr(one)
    assert typical_step(replace(one, ranks=launch(7.0).ranks)) == 7.0


def test_figures_of_one_name_are_kept_apart() -> None:
    """Two functions of one module and one qualified name would overwrite each other; those of two scopes do not."""

    def shortest() -> int:
        @once
        def figure(_: Launch) -> int:
            return 1

        return figure(one)

    def longest() -> int:
        @once
        def figure(_: Launch) -> int:
            return 2

        return figure(one)

    one = launch(1.0)
    assert (shortest(), longest()) == (1, 2)
