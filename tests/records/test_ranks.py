"""What ranks have in common, from what each shows; parameters are told by a margin and one sum."""

from __future__ import annotations

import math

import pytest

from pytest_ddpperf.records.alike import Alike, RankCopy
from pytest_ddpperf.records.ranks import alike


def copy(place: str = "", *, samples: int = 0, batch: int | None = None, **parameters: float) -> RankCopy:
    sums = {name: (0.01, value) for name, value in parameters.items()}
    return RankCopy(place=(place,), samples=(samples,) if samples else (), batch=batch, model=1, parameters=sums)


def found(*ranks: RankCopy) -> Alike:
    told = alike(ranks)
    assert told is not None
    return told


def test_a_rank_alone_has_nothing_in_common() -> None:
    assert alike([copy(samples=1)]) is None


def test_ranks_share_samples_if_they_drew_the_same() -> None:
    told = found(copy(samples=1, batch=5), copy(samples=2, batch=5), copy(samples=1, batch=6))
    assert (told.samples, told.batches) == ((0, 2), (0, 1))


@pytest.mark.parametrize("second", [copy(), copy("tp 1", samples=1)])
def test_nothing_is_known_of_samples_if_a_rank_drew_none_or_each_has_a_part_of_the_model(second: RankCopy) -> None:
    assert found(copy("tp 0", samples=1), second).samples is None


def test_ranks_with_other_parts_of_a_model_are_not_compared() -> None:
    """Ranks 0 and 1 share a copy, as 2 and 3 do; rank 2 has the same part as rank 0, and parameters of its own."""
    ranks = copy("tp 0", samples=1, w=1.0), copy("tp 1", samples=1, w=5.0)
    told = found(*ranks, copy("tp 0", samples=2, w=1.2), copy("tp 1", samples=2, w=5.0))
    assert (told.samples, told.apart, told.parameter) == ((), (0, 2), "w")


@pytest.mark.parametrize(("value", "apart"), [(1.0, ()), (1.009, ()), (1.02, (0, 1)), (math.nan, (0, 1))])
def test_parameters_differ_if_rounding_does_not_explain_the_difference(value: float, apart: tuple[int, ...]) -> None:
    told = found(copy(v=2.0, w=1.0), copy(v=2.0, w=value))
    assert (told.apart, told.parameter) == (apart, "w" * bool(apart))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_parameters_that_are_not_finite_on_any_rank_are_equal(value: float) -> None:
    assert found(copy(w=value), copy(w=value)).apart == ()


def test_parameters_are_unknown_of_shards_and_of_other_models() -> None:
    assert found(copy(), copy()).apart is None
    assert found(copy(w=1.0), RankCopy(place=("",), model=2, parameters={"v": (0.01, 1.0)})).apart is None


def test_ddp_keeps_parameters_equal_inside_of_its_group() -> None:
    def wrapped(*peers: int, value: float) -> RankCopy:
        return RankCopy(parameters={"w": (0.01, value)}, peers=peers)

    told = found(wrapped(0, 1, value=1.0), wrapped(0, 1, value=2.0), wrapped(2, 3, value=5.0), wrapped(2, 3, value=5.0))
    assert (told.apart, told.wrapped) == ((0, 1), True)


def test_ranks_of_other_ddp_groups_may_share_samples() -> None:
    """Ranks 0 and 1 hold parts of one model, without a mesh; ranks 0 and 2, and 1 and 3, are data-parallel."""
    ranks = [RankCopy(peers=peers, samples=(samples,)) for samples in (1, 2) for peers in ((0, 2), (1, 3))]
    assert found(*ranks).samples == ()
    assert found(*ranks[:2], *ranks[:2]).samples == (0, 1, 2, 3)


def test_ranks_are_divided_by_their_parameters_and_by_their_data() -> None:
    """Ranks 0 and 1 share a copy, without a mesh, as 2 and 3 do; rank 3 drew other samples than rank 2."""
    told = found(*(copy(samples=samples, batch=5, w=w) for samples, w in ((1, 1.0), (1, 5.0), (2, 1.0), (3, 5.0))))
    assert (told.copies, told.data, told.sources) == ((0, 1, 0, 1), (0, 0, 2, 3), (2, 2, 2, 2))


def test_batches_divide_ranks_if_not_every_rank_drew_samples() -> None:
    told = found(copy(samples=1, batch=5, w=1.0), copy(batch=5, w=1.0), copy(samples=2, batch=6, w=1.0))
    assert (told.data, told.sources) == ((0, 0, 2), (2, 2, 2))


@pytest.mark.parametrize("other", [copy(w=1.009), RankCopy(place=("",), model=2)])
def test_replicas_are_unknown_if_rounding_may_explain_the_difference_and_for_shards(other: RankCopy) -> None:
    told = found(copy(w=1.0), other)
    assert (told.copies, told.data, told.sources) == ((), (), ())


def test_ranks_with_other_shapes_are_no_replicas_and_change_the_model() -> None:
    one, other = copy(w=1.0), RankCopy(place=("",), model=2, parameters={"v": (0.01, 1.0)})
    assert found(one, other).copies == (0, 1)
    assert found(one, one).model == 1
    assert found(one, other).model not in {1, 2}
