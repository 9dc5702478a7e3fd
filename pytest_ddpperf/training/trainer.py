"""Trains a workload on one rank: computes the gradients of an optimizer step, then updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, wraps
from typing import Any, Literal

import torch
from torch import nn

from pytest_ddpperf.errors import RankSkipped, SettingError, WorkloadError
from pytest_ddpperf.instruments.phases.recorder import Section
from pytest_ddpperf.instruments.torch_internals import fp32_switches
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.strategy import Parallel, RankView, Strategy, nothing
from pytest_ddpperf.strategies.table import parallelise
from pytest_ddpperf.training import model
from pytest_ddpperf.training.subject import Workload, located

_AMPERE = 8  # major compute capability with TF32 and bf16
_ENDED = "Tried to step "  # says OneCycleLR at its end; how many steps are made depends on the machine
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Trainer:
    """Model, strategy, precision and optimizer of a workload on one rank; a diagnosis replaces some of its methods."""

    def __init__(
        self,
        ctx: RankView,
        workload: Workload,
        strategy: Strategy,
        settings: Settings,
        *,
        warmup: int = 0,
        module: nn.Module | None = None,
        weighted: bool = False,  # targets come as (targets, weight), and the loss is multiplied by the weight
    ) -> None:
        if settings.precision == "fp16" and strategy.options.get("comm_hook") == "powersgd":
            raise SettingError("precision=fp16 with comm_hook=powersgd: PowerSGD keeps infinities; use precision=bf16")
        self._forward_context = prepare_precision(settings.precision, ctx.device)
        module = (model.build_model(workload) if module is None else module).to(ctx.device)
        self.evaluating = not module.training
        self.size = model.size_of(module)  # before it is sharded
        blocks = model.blocks_of(module, workload.blocks)
        if settings.activation_checkpointing:
            model.recompute(blocks or (module,))
        self.parallel = parallelise(strategy, module, ctx, blocks)
        if settings.compile != "no":
            known = torch.compiler.list_backends(exclude_tags=())
            if settings.compile_backend not in known:
                raise SettingError(f"compile_backend={settings.compile_backend}: expected one of {', '.join(known)}")
        if settings.compile == "model":
            self.parallel.module.compile(backend=settings.compile_backend)
        self.optimizer = self._make_optimizer(workload, settings)
        factory = workload.scheduler
        self._scheduler = None if factory is None else model.scheduler_for(factory, self.optimizer)
        self._untrained = model.untrained(self.parallel.module, self.optimizer)
        self.skipped_steps: list[int] = []  # optimizer steps, from 0, that an overflow of fp16 gradients left out
        self._scaler = scaler_for(settings.precision, ctx.device, self.parallel)
        self._updated = False
        if self._scaler is not None:
            self._require_whole_optimizer()
            self._watch_updates()
        self.forward = workload.forward or (lambda module, inputs: module(inputs))
        self.loss = workload.loss or (lambda outputs, _targets: outputs)  # that forward has computed
        self.computes_loss: Literal["loss", "forward"] = "loss" if workload.forward is None else "forward"
        self._weighted = weighted
        self.synchronise = self.parallel.synchronise
        self._micro_steps = settings.accumulation_steps
        self._no_sync = self.parallel.no_sync if settings.no_sync else None
        self._sync_context: Callable[[], AbstractContextManager[Any]] = nullcontext
        self._syncs_each = not settings.no_sync
        self._max_norm = settings.clip_grad_norm
        self._clip_steps = warmup if settings.clip_steps == "warmup" else settings.clip_steps
        self._steps = 0
        rise = warmup if settings.lr_warmup_steps == "warmup" else settings.lr_warmup_steps
        self.rise = model.linear_warmup(self.optimizer, int(rise)) if rise else None
        choose_kernels(settings, ctx.device)  # after model and optimizer, which may have chosen others

    def backward(self, next_batch: Callable[[], tuple[Any, Any]]) -> torch.Tensor:
        """Computes the synchronised, unscaled gradients of one step; returns the mean loss over its micro-batches."""
        self.zero_grad()
        total: torch.Tensor | None = None
        for left in reversed(range(self._micro_steps)):
            with self._no_sync() if left and self._no_sync is not None else self._sync_context():
                loss = self._micro_step(*next_batch())
            if not left or self._syncs_each:
                self.synchronise()
            total = loss if total is None else total + loss
        if self._scaler is not None:
            self._scaler.unscale_(self.optimizer)
        assert total is not None  # noqa: S101  there is at least one micro-batch
        return total

    def zero_grad(self) -> None:
        """Clears all gradients, including gradients of parameters that the optimizer does not hold."""
        self.optimizer.zero_grad(set_to_none=True)
        for parameter in self._untrained:
            parameter.grad = None

    @contextmanager
    def unsynchronised(self) -> Iterator[None]:
        """Lets steps in this context average no gradients: each rank updates with its own gradients."""
        parallel = self.parallel
        before = self.synchronise, self._sync_context
        self.synchronise, self._sync_context = nothing, parallel.unsynchronised or parallel.no_sync or nullcontext
        try:
            yield
        finally:
            self.synchronise, self._sync_context = before

    def snapshot(self) -> Callable[[], None]:
        """Saves all that training changes, except the learning rate; the returned function restores it."""
        put_back, steps = model.snapshot(self.parallel.module, self.optimizer, self._scaler), self._steps

        def restore() -> None:
            put_back()
            self._steps = steps  # clipping may end at a certain step

        return restore

    def still_sent(self, _run: Callable[[], Any]) -> str:
        """Returns a text on the communication that remains in steps that average no gradients; empty if none."""
        return self.parallel.still_sent

    def snapshot_bytes(self) -> int:
        """Returns the host memory that a snapshot takes."""
        return model.snapshot_bytes(self.parallel.module, self.optimizer)

    def update(self) -> None:
        """Clips the gradients, and steps the optimizer and the scheduler; an fp16 overflow skips both steps."""
        if self._max_norm is not None and (self._clip_steps is None or self._steps < int(self._clip_steps)):
            self.clip(self._max_norm)
        if self._scaler is None:
            self.optimizer.step()
        else:
            self._updated = False
            self._scaler.step(self.optimizer)  # steps the optimizer, unless a gradient has overflowed
            self._scaler.update()
            if not self._updated:
                self.skipped_steps.append(self._steps)
        self._steps += 1
        if self.rise is not None:
            self.rise()
        if self._scheduler is not None and (self._scaler is None or self._updated):
            self.schedule(self._scheduler)

    def _watch_updates(self) -> None:
        """Makes ``_updated`` True whenever the optimizer steps, because GradScaler skips steps after an overflow.

        Raises an error for an optimizer that itself skips overflowed steps, because this would go unnoticed.
        """
        if getattr(self.optimizer, "_step_supports_amp_scaling", False):
            raise SettingError("precision=fp16: a fused optimizer hides the steps that it skips; give it fused=False")
        step = self.optimizer.step

        @wraps(step)  # with the mark of a scheduler, which looks for it
        def noted(*args: Any, **kwargs: Any) -> Any:
            self._updated = True
            return step(*args, **kwargs)

        self.optimizer.step = noted  # type: ignore[method-assign]  # of this one optimizer

    def _micro_step(self, inputs: Any, targets: Any) -> torch.Tensor:
        weight = None
        if self._weighted:
            targets, weight = targets
        with self._forward_context():
            loss = self.loss(self.forward(self.parallel.module, inputs), targets)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
            arguments = {"loss": "outputs, targets", "forward": "model, batch"}[self.computes_loss]
            scalar = isinstance(loss, torch.Tensor) and loss.numel() == 1
            found = "a loss that does not depend on the parameters" if scalar else model.describe_value(loss)
            cure = " with a gradient; compute it without detach(), no_grad(), argmax() and item()" if scalar else ""
            reason = f"{located(getattr(self, self.computes_loss))} returned {found}"
            raise WorkloadError(f"{reason}: {self.computes_loss}({arguments}) must return a scalar tensor{cure}")
        if weight is not None:
            loss = loss * weight
        if self._micro_steps > 1:
            loss = loss / self._micro_steps
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()
        return loss.detach()

    def clip(self, max_norm: float) -> None:
        """Clips the gradients to a global norm."""
        if self.parallel.clip_grad_norm is not None:
            self.parallel.clip_grad_norm(max_norm)
        else:
            torch.nn.utils.clip_grad_norm_(self.parallel.module.parameters(), max_norm)

    def schedule(self, scheduler: torch.optim.lr_scheduler.LRScheduler) -> None:
        """Steps the scheduler; after the end of the schedule, the last learning rate stays."""
        with Section("lr_scheduling"):
            try:
                scheduler.step()
            except ValueError as error:
                if _ENDED not in str(error):
                    raise
                self._scheduler = None

    def _require_whole_optimizer(self) -> None:
        """Raises an error for fp16 if a trainable parameter is not in the optimizer: its gradient would stay scaled."""
        if not self._untrained:
            return
        named = self.parallel.module.named_parameters()
        names = [name for name, parameter in named if parameter is self._untrained[0]]
        raise SettingError(
            f"precision=fp16: the optimizer lacks trainable parameters ({len(self._untrained)}, such as {names[0]}), "
            "whose gradients would stay scaled; give them to the optimizer, freeze them by "
            "requires_grad_(False), or use precision=bf16"
        )

    def _make_optimizer(self, workload: Workload, settings: Settings) -> torch.optim.Optimizer:
        make = self.parallel.make_optimizer
        optimizer = workload.optimizer(self.parallel.module.parameters()) if make is None else make(workload.optimizer)
        model.require_optimizer(optimizer, workload.optimizer, self.parallel.module if make is None else None)
        reads_groups = {
            "precision=fp16": settings.precision == "fp16",
            f"lr_warmup_steps={settings.lr_warmup_steps}": bool(settings.lr_warmup_steps),
            "Workload(scheduler=...)": workload.scheduler is not None,
        }
        for setting, given in reads_groups.items():
            if given and not hasattr(optimizer, "param_groups"):
                raise WorkloadError(
                    f"{setting} needs an optimizer with param_groups, but "
                    f"{located(workload.optimizer)} returned {model.describe_value(optimizer)}, which has none; "
                    f"return a torch.optim.Optimizer, or leave {setting} out"
                )
        return optimizer


def prepare_precision(precision: str, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Returns a factory of autocast contexts for a precision; raises RankSkipped if the device lacks the precision."""
    if precision == "tf32" and device.type != "cuda":
        raise RankSkipped("precision tf32 is a mode of NVIDIA GPUs; this rank computes on the CPU")
    if precision in {"tf32", "bf16"} and device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if major < _AMPERE:
            reason = f"precision {precision} needs a GPU of compute capability {_AMPERE}.0 or newer"
            raise RankSkipped(f"{reason}; {torch.cuda.get_device_name(device)} has {major}.{minor}")
    dtype = _AUTOCAST.get(precision)
    return nullcontext if dtype is None else partial(torch.autocast, device.type, dtype=dtype)


def choose_kernels(settings: Settings, device: torch.device) -> None:
    """Sets how torch chooses kernels: TF32 on a GPU, and cuDNN's benchmark mode if requested."""
    if settings.cudnn_benchmark:
        torch.backends.cudnn.benchmark = True
    if device.type == "cuda":
        set_tf32(settings.precision == "tf32")


def set_tf32(allowed: bool) -> None:  # noqa: FBT001  it is what is set
    """Allows or forbids TF32 in matrix products, convolutions and recurrent layers."""
    torch.set_float32_matmul_precision(
        "high" if allowed else "highest"
    )  # an old setting; old and new ones have to agree
    torch.backends.cudnn.allow_tf32 = allowed
    for switch in fp32_switches():
        switch.fp32_precision = "tf32" if allowed else "ieee"


def scaler_for(precision: str, device: torch.device, parallel: Parallel) -> torch.amp.GradScaler | None:
    """Returns the scaler that keeps small fp16 gradients from vanishing; None for other precisions."""
    if precision != "fp16":
        return None
    return torch.amp.GradScaler(device.type) if parallel.make_scaler is None else parallel.make_scaler()
