"""Errors that learn more on their way up."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpperf import errors
from pytest_ddpperf.errors import IncorrectTraining, RankFailed, extended, hidden
from pytest_ddpperf.run.call.requests import of_size, require_consistent

ALONE = ("ddp", 2)


def test_extending_an_error_makes_a_new_one_with_the_same_facts() -> None:
    failed = RankFailed("rank 1 raised", rank=1, sections=[("rank 1", "said")], out_of_memory=True)
    told = extended(failed, before="ddp: ", after="\n  at test_a.py:3", benchmark=ALONE)
    assert (type(told), str(told), told.headline) == (
        RankFailed,
        "ddp: rank 1 raised\n  at test_a.py:3",
        "ddp: rank 1 raised",
    )
    assert (told.rank, told.sections, told.out_of_memory, told.benchmark) == (1, (("rank 1", "said"),), True, ALONE)
    assert (str(failed), failed.benchmark) == ("rank 1 raised", None)


def test_extending_an_error_keeps_its_benchmark() -> None:
    wrong = IncorrectTraining("gradients differ", wrong={ALONE: "gradients differ"})
    assert extended(extended(wrong, benchmark=ALONE), after="!").benchmark == ALONE
    assert extended(wrong).wrong == wrong.wrong


def test_errors_that_found_a_fault_are_distinguished_from_failed_measurements() -> None:
    kinds = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
    finding = {name for name, kind in kinds.items() if issubclass(kind, errors.FoundWrong)}
    assert finding == {
        "FoundWrong",
        "IncorrectTraining",
        "QualityLost",
        "RanksDiffer",
        "Regression",
        "TargetMissed",
        "UnexpectedCount",
    }
    assert isinstance(extended(errors.Regression("slower")), errors.FoundWrong)


def test_a_headline_that_ends_in_a_colon_includes_the_next_line() -> None:
    raised = RankFailed(
        "rank 0 raised RuntimeError: Error(s) in loading state_dict:\n\tsize mismatch for 0.weight\n", rank=0
    )
    assert raised.headline == "rank 0 raised RuntimeError: Error(s) in loading state_dict: size mismatch for 0.weight"
    assert RankFailed("rank 0 raised:", rank=0).headline == "rank 0 raised:"


def test_our_frames_are_hidden_unless_our_own_code_is_at_fault() -> None:
    nothing: Any = None
    with pytest.raises(errors.SettingError) as ours:
        of_size(lambda n: n, 2, "ranks")
    with pytest.raises(ZeroDivisionError) as of_the_user:
        of_size(lambda n: n // 0, 2, "ranks")
    with pytest.raises(AttributeError) as fault:
        require_consistent(nothing)
    assert [hidden(each) for each in (ours, of_the_user, fault)] == [True, True, False]
