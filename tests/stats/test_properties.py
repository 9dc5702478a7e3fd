"""What has to hold of every verdict, whatever was measured."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pytest_ddpperf.judge.detection import looks_better, looks_worse, mde
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.stats.intervals import Change, change, half_width, paired, with_launches
from tests.factories import known
from tests.judge.made_up import decided

# The same examples in every run: a suite that is run all day must not fail by luck.
steadily = settings(max_examples=40, deadline=None, derandomize=True, database=None)

TOLERANCE, ALPHA = 0.03, 0.01
MIRRORED = {Verdict.REGRESSED: Verdict.IMPROVED, Verdict.IMPROVED: Verdict.REGRESSED}

times = st.lists(st.floats(1e-4, 10.0), min_size=1, max_size=24)
differences = st.builds(
    lambda shift, error, launches, freedom, share, paired_rounds: Change(
        shift=shift,
        launches=launches,
        sampling_variance=share * error**2,
        fixed_variance=(1 - share) * error**2,
        paired_rounds=paired_rounds,
        freedom=(freedom, math.inf),
    ),
    st.floats(-0.3, 0.3),
    st.floats(0.0, 0.2),
    st.integers(2, 40),
    st.floats(1.0, 40.0),
    st.floats(0.0, 1.0),
    st.booleans(),
)


def verdict(found: Change | None) -> Verdict:
    assert found is not None
    return decided(found, tolerance=TOLERANCE, alpha=ALPHA)


@given(new=times, base=times, factor=st.sampled_from([1e-6, 1e-3, 0.5, 60.0, 1e3]))
@steadily
def test_the_unit_does_not_matter(new: list[float], base: list[float], factor: float) -> None:
    plain = known(change(new, base, scale="ratio"))
    scaled = known(change([factor * one for one in new], [factor * one for one in base], scale="ratio"))
    assert scaled.shift == pytest.approx(plain.shift, abs=1e-9)
    if plain.standard_error is not None:
        assert scaled.standard_error == pytest.approx(plain.standard_error, rel=1e-6, abs=1e-9)
    clear = plain.standard_error is None or plain.standard_error > 1e-6  # else rounding decides what lies on the limit
    assume(clear)
    assert verdict(scaled) is verdict(plain)


@given(
    pairs=st.lists(st.tuples(st.floats(1e-3, 1.0), st.floats(1e-3, 1.0)), min_size=2, max_size=24), robust=st.booleans()
)
@steadily
def test_in_rounds_both_sides_are_each_others_mirror(pairs: list[tuple[float, float]], *, robust: bool) -> None:
    new, base = zip(*pairs, strict=True)
    there = known(paired(new, base, scale="ratio", robust=robust))
    back = known(paired(base, new, scale="ratio", robust=robust))
    assert back.shift == pytest.approx(-there.shift, abs=1e-9)
    assert back.standard_error == pytest.approx(there.standard_error, rel=1e-6, abs=1e-9)


@given(found=differences)
@steadily
def test_better_and_worse_are_symmetric(found: Change) -> None:
    """What regresses where less is better improves where more is, and the other way round."""
    worse = decided(found, tolerance=TOLERANCE, alpha=ALPHA)
    better = decided(found, better="higher", tolerance=TOLERANCE, alpha=ALPHA)
    if worse in MIRRORED or better in MIRRORED:
        assert better is MIRRORED[worse]
    looks = looks_worse(found, better="lower", tolerance=TOLERANCE)
    assert looks is looks_better(found, better="higher", tolerance=TOLERANCE)
    assert not (looks and looks_better(found, better="lower", tolerance=TOLERANCE))


@given(samples=times, other=times)
@steadily
def test_a_time_and_its_rate_get_the_same_verdict(samples: list[float], other: list[float]) -> None:
    slower = known(change(samples, other, scale="ratio"))
    rate = known(change([1 / one for one in samples], [1 / one for one in other], scale="ratio"))
    assume(slower.standard_error is None or slower.standard_error > 1e-6)
    assert decided(rate, better="higher", tolerance=TOLERANCE, alpha=ALPHA) is verdict(slower)


@given(found=differences, more=st.integers(1, 100))
@steadily
def test_more_launches_make_nothing_less_sure(found: Change, more: int) -> None:
    """With the same estimate and scatter: intervals shrink, what was decided stays so, and less can be seen."""
    then = with_launches(found, found.launches + more)
    assert (half_width(then, ALPHA) or 0.0) <= (half_width(found, ALPHA) or 0.0) + 1e-12
    if verdict(found) is not Verdict.INCONCLUSIVE:
        assert verdict(then) in {verdict(found), Verdict.IMPROVED}  # what is unchanged may turn out to be better
    before, after = (mde(one, alpha=ALPHA, tolerance=TOLERANCE) for one in (found, then))
    assert before is not None
    assert after is not None
    assert after <= before + 1e-12


@given(found=differences)
@steadily
def test_red_takes_both_keys_and_comes_under_suspicion_first(found: Change) -> None:
    if verdict(found) is Verdict.REGRESSED:
        assert found.shift > TOLERANCE
        assert looks_worse(found, better="lower", tolerance=TOLERANCE)
