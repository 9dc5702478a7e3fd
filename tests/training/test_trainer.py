"""One optimizer step, worked by hand on one weight: accumulation, clipping, the learning rate, overflow, precision."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from pytest_ddpperf.errors import RankSkipped, SettingError, WorkloadError
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.strategy import Parallel, Strategy
from pytest_ddpperf.strategies.table import resolve
from pytest_ddpperf.training.subject import Workload
from pytest_ddpperf.training.trainer import Trainer, prepare_precision, scaler_for
from tests.factories import TORCH
from tests.training.workloads import Weight, workload

EVENTS: list[str] = []


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
    training = trainer(make_ctx, subject=forward, accumulation_steps=2)
    loss = training.backward(lambda: ({"inputs": torch.tensor([2.0, 4.0]), "factor": 3}, ()))
    assert loss.item() == 9.0
    (weight,) = training.parallel.module.parameters()
    assert weight.grad is not None
    assert weight.grad.item() == 9.0


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
            f" returned the same {type(made).__name__} twice: each {call} must make a new one"
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": nn.ReLU}, "^ReLU gave a ReLU without parameters: return a model with par"),
        (
            {"model": lambda: Weight().requires_grad_(requires_grad=False)},
            "gave a Weight whose parameters are all frozen: call",
        ),
        ({"model": lambda: Weight().to("meta")}, "gave a Weight with weight on the meta device, which has no values"),
        (
            {"optimizer": lambda _: descent([nn.Parameter(torch.ones(()))])},
            r"gave a SGD without any parameter of the model: optimizer\(parameters\) must use its argument$",
        ),
        ({"model": lambda: None}, r"returned None: model\(\) must return a torch.nn.Module"),
        (
            {"model": lambda: nn.ParameterList([UninitializedParameter()])},
            r"uninitialized 0, which has no shape yet: let model\(\) run one",
        ),
        ({"model": lambda: nn.DataParallel(Weight())}, "must return the unwrapped module; strategy='ddp' wraps"),
        ({"optimizer": list}, r"list returned a value of type list: optimizer\(parameters\) must return a torch opt"),
        ({"optimizer": torch.optim.LBFGS}, "^LBFGS gave a LBFGS, whose step needs a closure: give build"),
        (
            {"scheduler": lambda _: 0.5},
            r"returned a value of type float: scheduler\(optimizer\) must return a torch scheduler for that",
        ),
        (
            {"scheduler": lambda _: halving(descent([nn.Parameter(torch.ones(()))]))},
            r"returned a value of type ExponentialLR, which schedules another optimizer: scheduler\(optimizer\) must",
        ),
        (
            {"scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau},
            r"whose step\(\) cannot run after each optimizer step: step .*metrics",
        ),
    ],
)
def test_a_workload_that_cannot_be_trained_is_refused(make_ctx: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        trainer(make_ctx, subject=replace(LINE, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": lambda outputs, _: outputs}, r"returned a tensor of shape \(2,\): loss\(outputs, targets\) must ret"),
        (
            {"loss": None, "forward": lambda model, batch: model(batch)},
            r"returned a tensor of shape \(2,\): forward\(model, batch\) must return a scalar tensor$",
        ),
        (
            {"loss": lambda outputs, _: outputs.mean().detach()},
            r"returned a loss that does not depend on the parameters: loss\(outputs, targets\) .* with a grad",
        ),
    ],
)
def test_a_loss_that_cannot_be_trained_is_named(make_ctx: Any, changes: dict[str, Any], message: str) -> None:
    training = trainer(make_ctx, subject=replace(LINE, **changes))
    with pytest.raises(WorkloadError, match=message):
        training.backward(lambda: (torch.ones(2), ()))


@pytest.fixture(autouse=True)
def forget() -> None:
    EVENTS.clear()


def inputs(*values: float) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    """Batches of one number each, one after another."""
    left = iter(values)
    return lambda: (torch.tensor([next(left)]), torch.zeros(1))


def trainer(
    make_ctx: Any, given: Any = "single", subject: Workload = LINE, *, warmup: int = 0, **settings: Any
) -> Trainer:
    return Trainer(make_ctx(), subject, Strategy(given), Settings(**settings), warmup=warmup)


def train(one: Trainer, *values: float) -> list[float]:
    """Trains a step on each of these numbers; the learning rates of the steps, and of the next one."""
    rates = []
    for value in values:
        rates.append(one.optimizer.param_groups[0].get("lr"))
        one.backward(itertools.repeat((torch.tensor([value]), torch.zeros(1))).__next__)
        one.update()
    return [*rates, one.optimizer.param_groups[0]["lr"]]


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


class Two(Weight):
    """A second weight, which counts ten times as much."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Parameter(torch.ones(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs) + 10 * self.other * inputs


def only_first(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(list(parameters)[:1], lr=0.5)


def test_gradients_of_parameters_outside_the_optimizer_do_not_accumulate_over_steps(make_ctx: Any) -> None:
    """Gradients 2 and 20, in every step; a norm of 20.1 for both."""
    one = trainer(make_ctx, subject=replace(LINE, model=Two, optimizer=only_first), clip_grad_norm=20.1)
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

    part = replace(LINE, model=Two, optimizer=only_first)
    with pytest.raises(SettingError, match=r"^precision=fp16: the optimizer lacks .* \(1, such as other\)"):
        trainer(make_ctx, subject=part, precision="fp16")
    one = trainer(make_ctx, subject=replace(part, model=frozen), precision="fp16")
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


def test_an_optimizer_need_not_be_of_torch(make_ctx: Any) -> None:
    own = replace(LINE, optimizer=Own)  # type: ignore[arg-type]  # none of torch's
    one = trainer(make_ctx, subject=own)
    for _ in range(2):
        one.backward(inputs(1))
        one.update()
    assert weight(one) == 0
    for setting, value in (("precision", "fp16"), ("lr_warmup_steps", 3)):
        told = f"^{setting}={value} needs an optimizer with param_groups.*type Own, which has none; return"
        with pytest.raises(WorkloadError, match=told):
            trainer(make_ctx, subject=own, **{setting: value})  # type: ignore[arg-type]  # of any setting


@pytest.mark.parametrize(
    ("no_sync", "events"),
    [
        (True, "no_sync( forward ) no_sync( forward ) forward synchronise"),
        (False, "forward synchronise forward synchronise forward synchronise"),
    ],
)
def test_only_the_last_micro_batch_synchronises_unless_each_has_to(
    make_ctx: Any, *, no_sync: bool, events: str
) -> None:
    trainer(make_ctx, recording, accumulation_steps=3, no_sync=no_sync).backward(inputs(1, 1, 1))
    assert " ".join(EVENTS) == events


def test_a_gradient_is_clipped_to_the_norm(make_ctx: Any) -> None:
    """A gradient of 8 clipped to 2: the weight goes from 1 to 1 - 0.5 * 2. After the steps of ``clip_steps`` by 8."""
    one = trainer(make_ctx, clip_grad_norm=2.0)
    train(one, 8)
    assert weight(one) == pytest.approx(0, abs=1e-6)
    for clip_steps, warmup in ((1, 0), ("warmup", 1)):
        one = trainer(make_ctx, warmup=warmup, clip_grad_norm=2.0, clip_steps=clip_steps)
        train(one, 8, 8)
        assert weight(one) == pytest.approx(1 - 0.5 * 2 - 0.5 * 8)


def test_a_strategy_may_clip_gradients_with_its_own_function(make_ctx: Any) -> None:
    """Under sharding the norm is that of all shards."""
    norms: list[float] = []

    def sharded(module: nn.Module, _ctx: Any) -> Parallel:
        return Parallel(module, clip_grad_norm=norms.append)  # type: ignore[arg-type]  # nobody uses what it returns

    train(trainer(make_ctx, sharded, clip_grad_norm=2.0), 8)
    assert norms == [2.0]


@pytest.mark.parametrize(("lr_warmup_steps", "warmup"), [(4, 0), ("warmup", 4)])
def test_the_learning_rate_rises_linearly(make_ctx: Any, lr_warmup_steps: Any, warmup: int) -> None:
    """Of 0.5 a quarter, two, three, all, and then all: in steps of 0.125."""
    one = trainer(make_ctx, warmup=warmup, lr_warmup_steps=lr_warmup_steps)
    assert train(one, 1, 1, 1, 1) == [0.125, 0.25, 0.375, 0.5, 0.5]


def halving(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)


@pytest.mark.filterwarnings("error")
def test_the_scheduler_steps_after_each_optimizer_step(make_ctx: Any) -> None:
    """Not after each micro-batch, and not while fp16 overflows."""
    one = trainer(make_ctx, subject=replace(LINE, scheduler=halving), accumulation_steps=2)
    assert train(one, 1, 1, 1) == [0.5, 0.25, 0.125, 0.0625]
    assert weight(one) == 1 - 0.5 - 0.25 - 0.125
    one = trainer(make_ctx, subject=replace(LINE, scheduler=halving), precision="fp16")
    assert train(one, 1e35, 1, 1e35, 1) == [0.5, 0.5, 0.25, 0.25, 0.125]


def test_the_last_learning_rate_stays_when_a_schedule_has_ended(make_ctx: Any) -> None:
    def cycle(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=3, cycle_momentum=False)

    rates = train(trainer(make_ctx, subject=replace(LINE, scheduler=cycle)), 1, 1, 1, 1, 1)
    assert rates[1] != rates[3]
    assert rates[3:] == [rates[3]] * 3


def test_another_error_of_a_scheduler_is_raised(make_ctx: Any) -> None:
    def broken(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: float("x") if step else 1.0)

    with pytest.raises(ValueError, match="could not convert"):
        train(trainer(make_ctx, subject=replace(LINE, scheduler=broken)), 1)


def test_an_overflow_in_fp16_updates_nothing_and_is_counted(make_ctx: Any) -> None:
    """The scale begins at 65536: a gradient of 1e35 times that is infinite in fp32, one of 1 is not."""
    one = trainer(make_ctx, precision="fp16")
    train(one, 1, 1e35, 1)
    assert one.skipped_steps == [1]
    assert weight(one) == pytest.approx(1 - 0.5 * 2)


def test_checkpointing_recomputes_the_whole_model_if_it_has_no_repeated_blocks(make_ctx: Any) -> None:
    one = trainer(make_ctx, recording, activation_checkpointing=True)
    one.parallel.module.register_forward_pre_hook(lambda *_: EVENTS.append("called"))
    forward = one.parallel.module.forward
    one.backward(inputs(2))
    assert gradient(one) == 2
    assert getattr(forward, "func", None) is torch.utils.checkpoint.checkpoint


def test_a_compiled_model_trains_the_same(make_ctx: Any) -> None:
    one = trainer(make_ctx, compile="model", compile_backend="eager")
    train(one, 2)
    assert weight(one) == 0


CPU = torch.device("cpu")
HAS_NEW_SWITCHES = TORCH >= (2, 9)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_a_forward_pass_computes_in_the_precision(precision: str, dtype: torch.dtype) -> None:
    context = prepare_precision(precision, CPU)
    for _ in range(2):  # a context for each forward pass
        with context():
            assert nn.Linear(2, 2)(torch.ones(1, 2)).dtype == dtype


def test_tf32_is_skipped_if_there_is_no_gpu() -> None:
    with pytest.raises(RankSkipped, match="tf32 is a mode of NVIDIA GPUs"):
        prepare_precision("tf32", CPU)


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_an_old_gpu_is_skipped(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "Tesla T4")
    with pytest.raises(
        RankSkipped, match=rf"{precision} needs a GPU of compute capability 8.0 or newer; Tesla T4 has 7.5"
    ):
        prepare_precision(precision, torch.device("cuda", 0))


def switches() -> Any:
    """``torch.backends``, by a name that does not have its modules sent to the ranks: pickle refuses them."""
    return import_module("torch.backends")


def read_back() -> dict[str, object]:
    """What torch says of TF32, by its new switches and by the old ones, which raise where the two disagree."""
    new = (switches().cuda.matmul, switches().cudnn.conv, switches().cudnn.rnn) if HAS_NEW_SWITCHES else ()
    return {
        "new": [switch.fp32_precision for switch in new],
        "old": (switches().cuda.matmul.allow_tf32, switches().cudnn.allow_tf32, torch.get_float32_matmul_precision()),
    }


def trained_beside(ctx: RankContext, by_user: Sequence[Callable[[], None]]) -> list[dict[str, object]]:
    """What holds for steps in fp32 and in TF32 of a workload whose optimizer comes with this rank's settings.

    As alone on a GPU.
    """

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        by_user[ctx.rank]()
        return torch.optim.SGD(parameters, lr=0.1)

    on_gpu = replace(ctx, device=torch.device("cuda", 0), rank=0, world_size=1)
    with (
        patch.object(nn.Module, "to", lambda module, _device: module),
        patch.object(torch.cuda, "get_device_capability", lambda _device: (9, 0)),
    ):
        found = []
        for precision in ("fp32", "tf32"):
            Trainer(on_gpu, workload(optimizer=optimizer), resolve("single"), Settings(precision=precision))
            found.append(read_back())
    return found


def by_old_switches() -> None:
    switches().cuda.matmul.allow_tf32 = switches().cudnn.allow_tf32 = True


SETTINGS: dict[str, Callable[[], None]] = {
    "nothing": lambda: None,
    "products of matrices": lambda: torch.set_float32_matmul_precision("high"),
    "the old switches": by_old_switches,
}
if HAS_NEW_SWITCHES:
    SETTINGS |= {
        "the new switch of all": lambda: setattr(switches(), "fp32_precision", "tf32"),
        "the new switch of one": lambda: setattr(switches().cuda.matmul, "fp32_precision", "tf32"),
    }


def test_fp32_excludes_tf32_whatever_the_workload_has_set(launcher: Launcher) -> None:
    given, how = list(SETTINGS.values()), {"world_size": len(SETTINGS), "backend": "gloo", "device": "cpu"}
    ranks = launcher.run(trained_beside, given, **how).values  # type: ignore[arg-type]
    expected = [
        {"new": [new] * 3 if HAS_NEW_SWITCHES else [], "old": old}
        for new, old in (("ieee", (False, False, "highest")), ("tf32", (True, True, "high")))
    ]
    for by_user, rank in zip(SETTINGS, ranks, strict=True):
        assert rank == expected, by_user


def test_only_fp16_is_scaled_and_by_the_strategys_own_scaler_if_it_has_one() -> None:
    plain = Parallel(nn.Linear(1, 1))
    assert scaler_for("bf16", CPU, plain) is None
    assert isinstance(scaler_for("fp16", CPU, plain), torch.amp.GradScaler)
    own = torch.amp.GradScaler("cpu")
    assert scaler_for("fp16", CPU, Parallel(nn.Linear(1, 1), make_scaler=lambda: own)) is own
