"""A verification's training, on the ranks or in the single process, on the same micro-batches and buffers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves, tree_map

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.records.loader_settings import LoaderSettings
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.replicas import gradients_of, is_expanded, parameters_of, whole
from pytest_ddpperf.strategies.strategy import RankView, Strategy
from pytest_ddpperf.training.data import NextBatch, batches
from pytest_ddpperf.training.model import DATA_SEED, seed
from pytest_ddpperf.training.subject import Workload, located
from pytest_ddpperf.training.trainer import Trainer

T = TypeVar("T")
Pair = tuple[Any, Any]
Way = tuple[Any, ...]
Gradients = dict[str, "Tensor | None"]
Buffers = Sequence[Tensor]
MicroBatchIndex = tuple[int, int]  # a micro-batch of a step: its rank, and its number there
MAX_SAMPLES = 4  # of a micro-batch; a BatchNorm fails with a single sample
_FORWARD_SEED = 1000
_FP16_ATTEMPTS = 25  # each overflow halves the scale, which begins at 2 ** 16
_UPDATE_SEED = 500


@dataclass(frozen=True)
class MicroBatches:
    """The micro-batches of all ranks."""

    shards: Sequence[Sequence[Pair]]  # of each rank, step after step, on the CPU
    in_step: int  # the number of micro-batches that a rank has in a step

    def places(self, rank: int) -> list[MicroBatchIndex]:
        """Returns the indices of a rank's micro-batches in a step."""
        return [(rank, number) for number in range(self.in_step)]

    def copies(self, places: Sequence[MicroBatchIndex], step: int, device: torch.device) -> list[Pair]:
        """Returns copies of a step's micro-batches at ``places``, so that changes in place affect no other step."""
        return [copied(self.shards[rank][step * self.in_step + number], device) for rank, number in places]

    def feed(
        self, places: Sequence[MicroBatchIndex], step: int, device: torch.device, given: Sequence[Pair] | None = None
    ) -> NextBatch:
        """Returns a function that gives the micro-batches of a step (or ``given``), each with its loss's weight."""
        order = zip(places, self.copies(places, step, device) if given is None else given, strict=True)

        def next_batch() -> Pair:
            (rank, number), (inputs, targets) = next(order)
            index = step * self.in_step + number
            weight = torch.tensor(self.weight((rank, number)), device=device)
            seed(_FORWARD_SEED + index * len(self.shards) + rank)  # the same dropout masks on ranks and in one process
            return inputs, (targets, weight)

        return next_batch

    def weight(self, place: MicroBatchIndex) -> float:
        """Returns the factor of a micro-batch's loss: 0.5 for the first to 1.5 for the last, 1 on average.

        So all micro-batches have different gradients, even if all data are equal. Without weights, ranks with
        equal data would have the right gradient even if nothing was averaged.
        """
        rank, number = place
        last = len(self.shards) * self.in_step - 1
        return 0.5 + (rank * self.in_step + number) / last if last else 1.0


class TrainingRun:
    """The training of a workload on this rank, with weighted losses, on the micro-batches with indices ``places``."""

    def __init__(
        self,
        ctx: RankView,
        workload: Workload,
        strategy: Strategy,
        settings: Settings,
        *,
        module: nn.Module,
        data: MicroBatches,
        places: Sequence[MicroBatchIndex],
    ) -> None:
        self._ctx, self._settings, self._data, self.places = ctx, settings, data, places
        self._first_names = first_names(module)
        self._frozen = {name for name, parameter in module.named_parameters() if not parameter.requires_grad}
        if settings.compile != "no":
            # Otherwise compiled dropout draws other masks than the single process.
            torch._inductor.config.fallback_random = True  # noqa: SLF001  it has no other name
        self.trainer = Trainer(ctx, workload, strategy, settings, warmup=settings.warmup, module=module, weighted=True)
        self._backward: Callable[[NextBatch], Tensor] = self.trainer.backward
        if settings.compile == "step":
            self._backward = torch.compile(self._backward, backend=settings.compile_backend)

    def backward(
        self, step: int, buffers: Buffers, all_agree: Callable[[bool], bool] = bool, given: Sequence[Pair] | None = None
    ) -> tuple[float, Gradients]:
        """Computes loss and gradients of a step (from 0); in fp16 it repeats the step until no gradient overflows.

        Each attempt trains on ``given``, or on copies of the run's micro-batches, and begins with ``buffers``.
        Ranks repeat steps together: ``all_agree`` returns whether its argument is True on all ranks.
        """
        attempts = _FP16_ATTEMPTS if self._settings.precision == "fp16" else 1
        while True:
            fill(self.trainer.parallel.module.buffers(), buffers)
            loss = float(self._backward(self._data.feed(self.places, step, self._ctx.device, given)))
            found = self.gradients()
            finite = all(gradient is None or bool(gradient.isfinite().all()) for gradient in found.values())
            attempts -= 1
            if not attempts or all_agree(finite):
                return loss, found
            if finite:  # but not on all ranks, which no strategy should allow
                self.skip()
            else:
                self.trainer.update()

    def update(self, step: int) -> None:
        """Steps the optimizer, with the same random numbers as in the single process."""
        seed(_UPDATE_SEED + step)
        self.trainer.update()

    def skip(self) -> None:
        """Discards the gradients, and prepares the fp16 scaler for the next gradients."""
        self.trainer.zero_grad()
        self.trainer.update()

    def gradients(self) -> Gradients:
        """Returns trained parameters' full gradients on the CPU; for sharded parameters, all ranks must call this."""
        parallel = self.trainer.parallel
        found = gradients_of(parallel.module) if parallel.gradients is None else parallel.gradients()
        return {name: gradient for name, gradient in self._named(found).items() if name not in self._frozen}

    def parameters(self) -> dict[str, Tensor]:
        """Returns full parameters on the CPU, by the model's names; for sharded ones, all ranks must call this."""
        parallel = self.trainer.parallel
        return self._named(parameters_of(parallel.module) if parallel.parameters is None else parallel.parameters())

    def buffers(self) -> list[Tensor]:
        """Returns copies of the buffers on the CPU, in the module's order and without names, which wrappers change."""
        return [whole(buffer) for buffer in self.trainer.parallel.module.buffers()]

    def _named(self, found: Mapping[str, T]) -> dict[str, T]:
        names = self._first_names
        return {names.get(name, name): value for name, value in unwrapped(found, names).items()}


def unwrapped(found: Mapping[str, T], known: Iterable[str]) -> dict[str, T]:
    """Removes the prefixes of DDP and torch.compile from names in ``found``; ``known`` are the model's own names."""
    mine = set(known)
    named = {name if name in mine else name.replace("_orig_mod.", ""): value for name, value in found.items()}
    while named and not mine.issuperset(named) and all(name.startswith("module.") for name in named):
        named = {name.removeprefix("module."): value for name, value in named.items()}
    return named


def first_names(module: nn.Module) -> dict[str, str]:
    """Returns, for each name of a parameter, the parameter's first name; a tied weight has several names."""
    first: dict[nn.Parameter, str] = {}
    named = module.named_parameters(remove_duplicate=False)
    return {name: first.setdefault(parameter, name) for name, parameter in named}


def state(module: nn.Module) -> Iterable[Tensor]:
    """Returns all parameters, then all buffers."""
    return itertools.chain(module.parameters(), module.buffers())


def fill(tensors: Iterable[Tensor], values: Iterable[Tensor]) -> None:
    """Copies values into tensors; skips expanded tensors, whose elements share memory, because they are constants."""
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            if not is_expanded(tensor):
                tensor.copy_(value)


def without_step_counts(settings: Settings) -> Settings:
    """Returns the settings; in fp16 without ``clip_steps`` and ``lr_warmup_steps``, because overflows repeat steps."""
    return replace(settings, clip_steps=None, lr_warmup_steps=None) if settings.precision == "fp16" else settings


def disturb(module: nn.Module, rank: int) -> None:
    """Changes every parameter and buffer, differently on each rank, except tensors of type float8."""
    with torch.no_grad():
        fill(state(module), [_other(tensor, rank) for tensor in state(module)])


def _other(tensor: Tensor, rank: int) -> Tensor:
    if tensor.is_floating_point() and tensor.itemsize == 1:
        return tensor  # torch does not calculate in float8
    return tensor.logical_not() if tensor.dtype is torch.bool else 2 * tensor + rank


def own_batches(ctx: RankView, workload: Workload, count: int, loader: LoaderSettings | None = None) -> list[Pair]:
    """Returns this rank's first ``count`` batches, cut to a few samples; ignores ``loader`` except for its sampler."""
    seed(DATA_SEED if ctx.mode == "strong" else DATA_SEED + ctx.rank)
    kept = None
    if workload.batch is None and loader is not None and not loader.auto:
        kept = LoaderSettings(workers=0, pin_memory=False, sampler=loader.sampler)
    with closing(batches(ctx, workload, kept)) as source:
        return [cut_down(source()) for _ in range(count)]


def cut_down(pair: Pair) -> Pair:
    """Returns the first samples of a batch, copied to the CPU; a batch that has no common dimension 0 stays whole."""
    sizes = {leaf.shape[0] if isinstance(leaf, Tensor) and leaf.dim() else None for leaf in tree_leaves(pair)}
    kept = slice(MAX_SAMPLES) if len(sizes) == 1 and None not in sizes else ...

    def copied(leaf: Any) -> Any:
        # A slice would be pickled with its whole storage.
        return leaf[kept].detach().to(torch.device("cpu"), copy=True) if isinstance(leaf, Tensor) else leaf

    return tree_map(copied, pair)  # type: ignore[no-any-return]  # torch types what comes back as Any


def copied(pair: Pair, device: torch.device | None = None) -> Pair:
    """Copies a batch with all its containers and tensors, to ``device`` if given."""

    def copy(leaf: Any) -> Any:
        return leaf.detach().to(device or leaf.device, copy=True) if isinstance(leaf, Tensor) else leaf

    return tree_map(copy, pair)  # type: ignore[no-any-return]  # torch types what comes back as Any


def changes(before: Sequence[Pair], after: Sequence[Pair]) -> tuple[set[Way], set[Way]]:
    """Returns the paths of entries that a step removed from its batches, and of tensors that the step changed."""
    lost, changed = set(), set()
    for first, second in zip(map(_by_way, before), map(_by_way, after), strict=True):
        lost |= first.keys() - second.keys()
        changed |= {way for way in first.keys() & second.keys() if not _alike(first[way], second[way])}
    return lost, changed


def refusal(workload: Workload, paths: set[tuple[Any, ...]], *, taken: bool) -> WorkloadError:
    """Returns the error for a step that changes the entries of its batch at these paths (``taken``: removes them)."""
    names = " and ".join(sorted(_name(path, whole=workload.forward is not None) for path in paths))
    assert workload.batch is not None  # noqa: S101  it is what makes the batch
    done = f"removes {names} from its batch" if taken else f"changes {names} in place"
    cure = "read the batch without pop(), or from dict(batch)" if taken else "change a clone()"
    return WorkloadError(
        f"a step {done}, but the next step needs the same batch of {located(workload.batch)}: {cure}, or give a "
        "loader(rank, world_size) that makes a new batch for each step"
    )


def _by_way(pair: Pair) -> dict[tuple[Any, ...], Any]:
    leaves, _ = tree_flatten_with_path(pair)
    return {tuple(way): leaf for way, leaf in leaves}


def _name(way: tuple[Any, ...], *, whole: bool) -> str:
    """Formats the path of an entry in a batch: ``inputs['ids']``, or ``batch['ids']`` if ``whole``."""
    first, *others = way
    return ("batch" if whole else ("inputs", "targets")[first.idx]) + keystr(tuple(others))


def _alike(before: Any, after: Any) -> bool:
    if not isinstance(before, Tensor):
        return True  # what it is to be compared by is not known
    if not isinstance(after, Tensor) or (before.shape, before.dtype) != (after.shape, after.dtype):
        return False
    if before.layout is not torch.strided or (before.itemsize == 1 and before.is_floating_point()):
        return True  # torch compares neither sparse tensors nor float8
    same = (before == after) | ((before != before) & (after != after))  # noqa: PLR0124  NaN equals nothing
    return bool(same.all())
