"""Records losses, gradients and parameters of the first optimizer steps on one rank, of any training code."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from pytest_ddpperf.instruments.counting.sites import Stack
from pytest_ddpperf.launch import progress
from pytest_ddpperf.strategies.replicas import whole
from pytest_ddpperf.strategies.strategy import RankView
from pytest_ddpperf.training.jobs import TRACED_STEPS, LaunchJob
from pytest_ddpperf.training.step import build_step
from pytest_ddpperf.training.timing import loss_value, on_any_rank
from pytest_ddpperf.training.verification import StepsTrace, TracedStep, TracedTensor

_BUCKETS = 64
_MAX_CALLS = 32  # for one optimizer step: what accumulates over more of them is not traced
_PRECISIONS = {torch.bfloat16: "bf16", torch.float16: "fp16"}


def trace_steps(ctx: RankView, job: LaunchJob) -> StepsTrace:
    """Builds the job's step, runs it, and returns a trace of its first optimizer steps."""
    tracer = _Tracer()
    with tracer.watching(), closing(build_step(ctx, job)) as step:
        progress.stage("the steps that are traced")
        while on_any_rank(ctx, step, tracer.goes_on):
            with step.group_kept():
                loss = step.run()
            tracer.losses.append(loss_value(loss, f"at call {len(tracer.losses) + 1} of the step on rank {ctx.rank}"))
    own = "tf32" if ctx.device.type == "cuda" else "fp32"
    narrow = sorted(tracer.precisions)  # bf16 is the narrower one, and comes first
    return StepsTrace(steps=tuple(tracer.steps), losses=tuple(tracer.losses), precision=narrow[0] if narrow else own)


class _Tracer:
    def __init__(self) -> None:
        self.steps: list[TracedStep] = []
        self.losses: list[float | None] = []  # that the calls so far returned
        self.precisions: set[str] = set()
        self._names: dict[int, str] = {}
        self._seen: set[int] = set()
        self._stack = Stack()
        self._gradients: tuple[TracedTensor, ...] = ()
        self._before: tuple[TracedTensor, ...] = ()

    @property
    def goes_on(self) -> bool:
        """Returns whether the trace needs another call of the step."""
        since = self.steps[-1].call + 1 if self.steps else 0
        return len(self.steps) < TRACED_STEPS and len(self.losses) - since < _MAX_CALLS

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Records calls of modules and optimizers in this context."""
        with ExitStack() as stack:
            stack.callback(register_module_forward_pre_hook(self._called).remove)
            stack.callback(register_optimizer_step_pre_hook(self._begun).remove)
            stack.callback(register_optimizer_step_post_hook(self._done).remove)
            yield

    def _called(self, module: nn.Module, _inputs: Any) -> None:
        if id(module) in self._seen:
            return
        for name, parameter in module.named_parameters():
            plain = name.replace("_orig_mod.", "").removeprefix("module.")
            self._names.setdefault(id(parameter), plain)
            self._note(parameter.dtype)
        self._seen.update(map(id, module.modules()))
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                self._note(torch.get_autocast_dtype(device))

    def _note(self, dtype: torch.dtype) -> None:
        if dtype in _PRECISIONS:
            self.precisions.add(_PRECISIONS[dtype])

    def _begun(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._stack.optimizer_steps() == 1 and len(self.steps) < TRACED_STEPS:
            parameters = _parameters(optimizer)
            self._before = self._sketched(parameters, parameters)
            self._gradients = self._sketched(parameters, [parameter.grad for parameter in parameters])

    def _done(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._stack.optimizer_steps() == 1 and len(self.steps) < TRACED_STEPS:
            parameters = _parameters(optimizer)
            after = self._sketched(parameters, parameters)
            call = len(self.losses)
            self.steps.append(TracedStep(gradients=self._gradients, before=self._before, after=after, call=call))

    def _sketched(self, parameters: list[Tensor], values: Any) -> tuple[TracedTensor, ...]:
        return tuple(
            TracedTensor(
                name=self._names.get(id(parameter), f"parameter {number}"),
                shape=tuple(parameter.shape),
                sketch=(0.0,) * _BUCKETS if value is None else _sketch(whole(value)),
            )
            for number, (parameter, value) in enumerate(zip(parameters, values, strict=True), 1)
        )


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


@torch.no_grad()
def _sketch(tensor: Tensor) -> tuple[float, ...]:
    """Adds up a tensor's elements in buckets, with random signs that are the same for tensors of one size."""
    flat = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).double().flatten()
    signed = flat * _signs(flat.numel())
    padded = nn.functional.pad(signed, (0, -flat.numel() % _BUCKETS))
    return tuple(padded.view(-1, _BUCKETS).sum(dim=0).tolist())


@functools.lru_cache(maxsize=8)
def _signs(number: int) -> Tensor:
    return torch.randint(0, 2, (number,), generator=torch.Generator().manual_seed(number), dtype=torch.int8) * 2 - 1
