"""One optimizer step: accumulation, clipping, warm-up of the learning rate, overflow. Worked by hand on one weight."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from pytest_ddpperf.errors import SettingError, WorkloadError
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.parallel import Parallel
from pytest_ddpperf.strategies.strategy import Strategy
from pytest_ddpperf.training.trainer import Trainer
from pytest_ddpperf.training.workload import Workload

EVENTS: list[str] = []


class Weight(nn.Module):
    """One weight, 1 at the start: its gradient under the loss ``weight * mean(inputs)`` is the mean of the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.weight * inputs


def mean(outputs: torch.Tensor, _targets: torch.Tensor) -> torch.Tensor:
    return outputs.mean()


def descent(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5)


LINE = Workload(
    model=Weight, batch=lambda: (torch.ones(1), torch.ones(1)), loss=mean, optimizer=descent, samples_per_step=1
)


def recording(module: nn.Module, _ctx: Any) -> Parallel:
    """A strategy that writes down when it was asked for what."""

    @contextlib.contextmanager
    def no_sync() -> Iterator[None]:
        EVENTS.append("no_sync(")
        yield
        EVENTS.append(")")

    module.register_forward_hook(lambda *_: EVENTS.append("forward"))
    return Parallel(module, synchronise=lambda: EVENTS.append("synchronise"), no_sync=no_sync)


def test_forward_gives_the_loss_of_a_batch_of_any_form(make_ctx: Any) -> None:
    """Here 3 x the mean of weight x inputs; half of it for each of two micro-batches."""
    forward = replace(LINE, loss=None, forward=lambda model, batch: batch["factor"] * model(batch["inputs"]).mean())
    training = Trainer(make_ctx(), forward, Strategy("single"), Settings(accumulation_steps=2))
    loss = training.backward(lambda: ({"inputs": torch.tensor([2.0, 4.0]), "factor": 3}, ()))
    assert loss.item() == 9.0
    (weight,) = training.parallel.module.parameters()
    assert weight.grad is not None
    assert weight.grad.item() == 9.0


def test_forward_that_gives_no_scalar_is_named(make_ctx: Any) -> None:
    def logits(model: nn.Module, batch: Any) -> Any:
        return model(batch)

    training = Trainer(make_ctx(), replace(LINE, loss=None, forward=logits), Strategy("single"), Settings())
    with pytest.raises(
        WorkloadError, match=r"logits \(.*\) gave a tensor of shape \(2,\): forward\(model, batch\) must"
    ):
        training.backward(lambda: (torch.ones(2), ()))


def test_a_model_or_an_optimizer_that_was_made_before_is_refused(make_ctx: Any) -> None:
    """What is compared with a single process would be the same object on both sides."""
    model = Weight()
    optimizer = descent(model.parameters())
    for field, made, call in (("model", model, "model()"), ("optimizer", optimizer, "optimizer(parameters)")):
        changes: dict[str, Any] = {field: partial(lambda made, *_: made, made)}
        again = replace(LINE, **changes)
        Trainer(make_ctx(), again, Strategy("single"), Settings(), module=model if made is optimizer else None)
        with pytest.raises(WorkloadError) as caught:
            Trainer(make_ctx(), again, Strategy("single"), Settings())
        assert str(caught.value).endswith(
            f" gave the same {type(made).__name__} twice: {call} must make a new one at each call"
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": nn.ReLU},
            "^ReLU gave a ReLU without parameters, so there is nothing to train: give a model with par",
        ),
        (
            {"model": lambda: Weight().requires_grad_(requires_grad=False)},
            "gave a Weight whose parameters are all frozen, so there is",
        ),
        ({"model": lambda: Weight().to("meta")}, "gave a Weight with weight on the meta device, which has no values"),
        (
            {"optimizer": lambda _: descent([nn.Parameter(torch.ones(()))])},
            r"gave a SGD that trains no parameter of the model: optimizer must use its argument parameters$",
        ),
        ({"optimizer": torch.optim.LBFGS}, "^LBFGS gave a LBFGS: its step needs a closure, so give build"),
    ],
)
def test_what_cannot_be_trained_is_refused(make_ctx: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        Trainer(make_ctx(), replace(LINE, **changes), Strategy("single"), Settings())


def test_a_loss_without_a_gradient_is_refused(make_ctx: Any) -> None:
    training = Trainer(make_ctx(), replace(LINE, loss=lambda o, t: mean(o, t).detach()), Strategy("single"), Settings())
    with pytest.raises(WorkloadError, match=r"gave a loss that does not depend on the parameters: loss\(outputs, targ"):
        training.backward(lambda: (torch.ones(2), ()))


@pytest.fixture(autouse=True)
def forget() -> None:
    EVENTS.clear()


def inputs(*values: float) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    """Batches of one number each, one after another."""
    left = iter(values)
    return lambda: (torch.tensor([next(left)]), torch.zeros(1))


def trainer(make_ctx: Any, strategy: Strategy | None = None, *, warmup: int = 0, **settings: Any) -> Trainer:
    return Trainer(make_ctx(), LINE, strategy or Strategy("single"), Settings(**settings), warmup=warmup)


def weight(one: Trainer) -> float:
    (parameter,) = one.parallel.module.parameters()
    return parameter.item()


def gradient(one: Trainer) -> float:
    (parameter,) = (one for one in one.parallel.module.parameters() if one.requires_grad)
    assert parameter.grad is not None
    return float(parameter.grad)


def test_a_step_is_the_mean_over_its_micro_batches(make_ctx: Any) -> None:
    """Gradients 1, 2, 3 and 6: their mean is 3, so is the loss at weight 1; the weight goes to 1 - 0.5 * 3."""
    one = trainer(make_ctx, accumulation_steps=4)
    assert float(one.backward(inputs(1, 2, 3, 6))) == 3
    assert gradient(one) == 3
    one.update()
    assert weight(one) == -0.5


def test_gradients_do_not_pile_up_from_step_to_step(make_ctx: Any) -> None:
    one = trainer(make_ctx)
    for _ in range(2):
        one.backward(inputs(2))
        assert gradient(one) == 2


class Two(Weight):
    """A second weight, which counts ten times as much."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Parameter(torch.ones(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs) + 10 * self.other * inputs


def only_first(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(list(parameters)[:1], lr=0.5)


def test_nor_do_those_that_the_optimizer_does_not_hold(make_ctx: Any) -> None:
    """Gradients 2 and 20, in every step; a norm of 20.1 for both."""
    one = Trainer(
        make_ctx(), replace(LINE, model=Two, optimizer=only_first), Strategy("single"), Settings(clip_grad_norm=20.1)
    )
    for _ in range(3):
        one.backward(inputs(2))
        assert [parameter.grad for parameter in one.parallel.module.parameters()] == [2, 20]
        one.update()
    assert [parameter.item() for parameter in one.parallel.module.parameters()] == [pytest.approx(1 - 3), 1]


def test_in_fp16_the_optimizer_has_to_hold_all_that_is_trainable(make_ctx: Any) -> None:
    """Freezing what it does not hold is a cure."""

    def frozen() -> nn.Module:
        model = Two()
        model.other.requires_grad = False
        return model

    part, settings = replace(LINE, model=Two, optimizer=only_first), Settings(precision="fp16")
    with pytest.raises(SettingError, match=r"^precision=fp16: the optimizer does not hold other \(1 such .*freeze"):
        Trainer(make_ctx(), part, Strategy("single"), settings)
    one = Trainer(make_ctx(), replace(part, model=frozen), Strategy("single"), settings)
    one.backward(inputs(2))
    assert gradient(one) == 2


class Own:
    """The least that an optimizer can be: it does not tell what it holds."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)

    def step(self) -> None:
        with torch.no_grad():
            for parameter in self.parameters:
                assert parameter.grad is not None
                parameter.sub_(parameter.grad, alpha=0.5)

    def zero_grad(self, *, set_to_none: bool) -> None:
        """Whoever calls it may have to."""


OWN = replace(LINE, optimizer=Own)  # type: ignore[arg-type]  # none of torch's


def test_an_optimizer_may_be_none_of_torchs(make_ctx: Any) -> None:
    one = Trainer(make_ctx(), OWN, Strategy("single"), Settings())
    for _ in range(2):
        one.backward(inputs(1))
        one.update()
    assert weight(one) == 0


@pytest.mark.parametrize(
    ("settings", "asking"),
    [(Settings(precision="fp16"), "precision=fp16"), (Settings(lr_warmup_steps=3), "lr_warmup_steps=3")],
)
def test_what_needs_an_optimizers_groups_says_so(make_ctx: Any, settings: Settings, asking: str) -> None:
    with pytest.raises(WorkloadError, match=f"^{asking} needs an optimizer with param_groups.*type Own without; give"):
        Trainer(make_ctx(), OWN, Strategy("single"), settings)


def test_only_the_last_micro_batch_synchronises(make_ctx: Any) -> None:
    trainer(make_ctx, Strategy(recording), accumulation_steps=3).backward(inputs(1, 1, 1))
    assert " ".join(EVENTS) == "no_sync( forward ) no_sync( forward ) forward synchronise"


def test_without_no_sync_every_micro_batch_synchronises(make_ctx: Any) -> None:
    trainer(make_ctx, Strategy(recording), accumulation_steps=3, no_sync=False).backward(inputs(1, 1, 1))
    assert " ".join(EVENTS) == "forward synchronise forward synchronise forward synchronise"


def test_a_gradient_is_clipped_to_the_norm(make_ctx: Any) -> None:
    """A gradient of 8 clipped to 2: the weight goes from 1 to 1 - 0.5 * 2."""
    one = trainer(make_ctx, clip_grad_norm=2.0)
    one.backward(inputs(8))
    one.update()
    assert weight(one) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(("clip_steps", "warmup"), [(1, 0), ("warmup", 1)])
def test_clipping_may_end_after_the_first_steps(make_ctx: Any, clip_steps: Any, warmup: int) -> None:
    """Clipped to 2, then as it is: 1 - 0.5 * 2 - 0.5 * 8."""
    one = trainer(make_ctx, warmup=warmup, clip_grad_norm=2.0, clip_steps=clip_steps)
    for _ in range(2):
        one.backward(inputs(8))
        one.update()
    assert weight(one) == pytest.approx(-4)


def test_a_strategy_clips_in_its_own_way(make_ctx: Any) -> None:
    """Under sharding the norm is that of all shards."""
    norms: list[float] = []

    def clip(norm: float) -> torch.Tensor:
        norms.append(norm)
        return torch.tensor(0.0)

    def sharded(module: nn.Module, _ctx: Any) -> Parallel:
        return Parallel(module, clip_grad_norm=clip)

    one = trainer(make_ctx, Strategy(sharded), clip_grad_norm=2.0)
    one.backward(inputs(8))
    one.update()
    assert norms == [2.0]


@pytest.mark.parametrize(("lr_warmup_steps", "warmup"), [(4, 0), ("warmup", 4)])
def test_the_learning_rate_rises_linearly(make_ctx: Any, lr_warmup_steps: Any, warmup: int) -> None:
    """Of 0.5 a quarter, two, three, all, and then all: in steps of 0.125."""
    one = trainer(make_ctx, warmup=warmup, lr_warmup_steps=lr_warmup_steps)
    rates = []
    for _ in range(5):
        rates.append(one.optimizer.param_groups[0]["lr"])
        one.backward(inputs(1))
        one.update()
    assert rates == [0.125, 0.25, 0.375, 0.5, 0.5]


def halving(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)


def test_the_scheduler_steps_after_each_optimizer_step(make_ctx: Any) -> None:
    """Learning rates of 0.5, 0.25 and 0.125 times gradients of 1."""
    one = Trainer(make_ctx(), replace(LINE, scheduler=halving), Strategy("single"), Settings(accumulation_steps=2))
    for _ in range(3):
        one.backward(inputs(1, 1))
        one.update()
    assert weight(one) == 1 - 0.5 - 0.25 - 0.125


def test_the_last_learning_rate_stays_when_a_schedule_has_ended(make_ctx: Any) -> None:
    def cycle(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=3, cycle_momentum=False)

    one, rates = Trainer(make_ctx(), replace(LINE, scheduler=cycle), Strategy("single"), Settings()), []
    for _ in range(6):
        one.backward(inputs(1))
        one.update()
        rates.append(one.optimizer.param_groups[0]["lr"])
    assert rates[0] != rates[2]
    assert rates[3:] == [rates[2]] * 3


def test_another_error_of_a_scheduler_is_raised(make_ctx: Any) -> None:
    def broken(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: float("x") if step else 1.0)

    one = Trainer(make_ctx(), replace(LINE, scheduler=broken), Strategy("single"), Settings())
    one.backward(inputs(1))
    with pytest.raises(ValueError, match="could not convert"):
        one.update()


@pytest.mark.filterwarnings("error")
def test_the_scheduler_waits_while_fp16_overflows(make_ctx: Any) -> None:
    one = Trainer(make_ctx(), replace(LINE, scheduler=halving), Strategy("single"), Settings(precision="fp16"))
    rates = []
    for value in (1e35, 1.0, 1e35, 1.0):
        one.backward(inputs(value))
        one.update()
        rates.append(one.optimizer.param_groups[0]["lr"])
    assert rates == [0.5, 0.25, 0.25, 0.125]


@pytest.mark.parametrize(
    ("scheduler", "message"),
    [
        (lambda _: 0.5, r"gave a value of type float: scheduler\(optimizer\) must give a scheduler of torch for that"),
        (
            lambda _: halving(descent([nn.Parameter(torch.ones(()))])),
            r"gave a value of type ExponentialLR, which schedules another optimizer: scheduler\(optimizer\) must",
        ),
        (torch.optim.lr_scheduler.ReduceLROnPlateau, r"whose step cannot follow every optimizer step: step .*metrics"),
    ],
)
def test_what_schedules_nothing_is_refused(make_ctx: Any, scheduler: Any, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        Trainer(make_ctx(), replace(LINE, scheduler=scheduler), Strategy("single"), Settings())


def test_an_overflow_in_fp16_updates_nothing_and_is_counted(make_ctx: Any) -> None:
    """The scale begins at 65536: a gradient of 1e35 times that is infinite in fp32, one of 1 is not."""
    one = trainer(make_ctx, precision="fp16")
    for value in (1.0, 1e35, 1.0):
        one.backward(inputs(value))
        one.update()
    assert one.skipped_steps == [1]
    assert weight(one) == pytest.approx(1 - 0.5 * 2)


def test_gradients_are_given_unscaled(make_ctx: Any) -> None:
    one = trainer(make_ctx, precision="fp16")
    one.backward(inputs(3))
    assert gradient(one) == 3


def test_checkpointing_recomputes_the_whole_model_where_nothing_repeats(make_ctx: Any) -> None:
    one = trainer(make_ctx, Strategy(recording), activation_checkpointing=True)
    one.parallel.module.register_forward_pre_hook(lambda *_: EVENTS.append("called"))
    forward = one.parallel.module.forward
    one.backward(inputs(2))
    assert gradient(one) == 2
    assert getattr(forward, "func", None) is torch.utils.checkpoint.checkpoint


def test_a_compiled_model_trains_the_same(make_ctx: Any) -> None:
    one = trainer(make_ctx, compile="model", compile_backend="eager")
    one.backward(inputs(2))
    one.update()
    assert weight(one) == 0
