"""What the two sides of a comparison have in common: names, copies, and state that is written over."""

from __future__ import annotations

import torch
from torch import nn

from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.replicas import whole
from pytest_ddpperf.training.correctness.training_run import countless, fill, first_names, unwrapped


def test_names_lose_what_wrappers_put_in_front() -> None:
    known = ["a.weight", "b.weight"]
    expected = {"a.weight": 1, "b.weight": 2}
    assert unwrapped({"a.weight": 1, "b.weight": 2}, known) == expected
    assert unwrapped({"module.a.weight": 1, "module.b.weight": 2}, known) == expected
    assert unwrapped({"module.module._orig_mod.a.weight": 1, "module.module._orig_mod.b.weight": 2}, known) == expected


def test_a_model_may_have_a_part_called_module() -> None:
    known = ["module.weight"]
    assert unwrapped({"module.weight": 1}, known) == {"module.weight": 1}
    assert unwrapped({"module.module.weight": 1}, known) == {"module.weight": 1}


def test_strange_names_stay() -> None:
    assert unwrapped({"module.a": 1, "b": 2}, ["c"]) == {"module.a": 1, "b": 2}
    assert unwrapped({"module.a": 1}, ["c"]) == {"a": 1}
    assert unwrapped({}, ["c"]) == {}


def test_a_tied_weight_goes_by_its_first_name() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    assert first_names(model) == {"0.weight": "0.weight", "1.weight": "0.weight"}


def test_state_is_written_over_but_for_expanded_constants() -> None:
    constant = torch.zeros(1).expand(3)
    parameter = nn.Parameter(torch.zeros(1, 2))
    fill([constant, parameter], [torch.ones(3), torch.ones(1, 2)])
    assert constant.tolist() == [0, 0, 0]
    assert parameter.tolist() == [[1, 1]]


def test_copies_are_dense_and_their_own() -> None:
    dense = torch.tensor([[0.0, 2.0]])
    copy = whole(dense)
    dense.zero_()
    assert copy.tolist() == [[0, 2]]
    assert whole(torch.tensor([[0.0, 2.0]]).to_sparse()).tolist() == [[0, 2]]


def test_steps_that_are_counted_are_left_out_in_fp16_only() -> None:
    given = Settings(clip_steps=1, lr_warmup_steps=5)
    assert countless(given) is given
    fp16 = countless(Settings(clip_steps=1, lr_warmup_steps=5, precision="fp16"))
    assert (fp16.clip_steps, fp16.lr_warmup_steps) == (None, None)
