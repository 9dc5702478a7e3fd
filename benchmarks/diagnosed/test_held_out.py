"""Trainings whose bottleneck is known, because it was planted: held out from whoever writes a rule that names it.

The name of a training tells the truth about it, `<cause>__<what is built>`, or `<cause>_or_<cause>__<what is built>` if
two causes take about as much of the step. The causes:

- `data`: every rank waits for its batches.
- `communication`: collectives take the largest part, and nothing hides them.
- `compute`: large matrix products or convolutions.
- `memory_bandwidth`: elementwise work and reductions on arrays that are larger than the caches.
- `overhead`: very many operators on tiny tensors.
- `straggler`: the other rank waits for one that has clearly more to do.
- `memory_capacity`: training only just fits into the memory that the test allows.
- `oversubscribed`: ranks or threads compute all the time, and are more than the cores.
- `unclear`: a wait that nothing explains, or a mix in which no cause takes a third of the step.

    pytest benchmarks/diagnosed/test_held_out.py --ddpperf-world-size=2

Sizes are for two cores, one thread for each rank, and a cache of 32 MiB.
"""

from __future__ import annotations

import io
import itertools
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from pytest_ddpperf import Ddpperf, Parallel, RankContext, Workload

pytestmark = pytest.mark.ddpperf(max_time=2, launches=2, warmup=3)

Piece = Callable[[], object]  # work of a step
Maker = Callable[[], Piece]  # called on a rank: allocates what the piece works on
Case = tuple[Any, dict[str, Any]]  # what is measured, and how
FLOATS = 2**18  # of a MiB


# Pieces of work


def repeated(count: int, call: Piece) -> Piece:
    """So many calls."""

    def work() -> None:
        for _ in range(count):
            call()

    return work


def multiply(count: int, size: int = 512) -> Piece:
    """Square matrix products: 2.7 ms each at a size of 512."""
    matrix, out = torch.randn(size, size), torch.empty(size, size)
    return repeated(count, lambda: torch.mm(matrix, matrix, out=out))


def sweep(count: int, mib: int = 64) -> Piece:
    """Reads and writes an array again and again: 3 ms each at 64 MiB."""
    array = torch.ones(mib * FLOATS)
    return repeated(count, lambda: array.mul_(1.0))


def reduce(count: int, mib: int = 64) -> Piece:
    """Reads an array again and again: 3 ms each at 64 MiB."""
    return repeated(count, torch.ones(mib * FLOATS).sum)


def tinker(count: int) -> Piece:
    """Operators on four numbers: 2.5 us each."""
    numbers = torch.zeros(4)
    return repeated(count, lambda: numbers.add_(1))


def exchange(count: int, mib: float) -> Piece:
    """All-reduces, one after the other."""
    array = torch.zeros(int(mib * FLOATS))
    return repeated(count, lambda: dist.all_reduce(array))


def pack(mib: float) -> Piece:
    """Work of Python's libraries that is no operator of torch: some 20 ms a MiB."""
    text = torch.randint(256, (int(mib * 2**20),), dtype=torch.uint8).numpy().tobytes()
    return lambda: zlib.compress(text, 1)


def rest(seconds: float) -> Piece:
    """Sleep."""
    return lambda: time.sleep(seconds)


def on_rank(rank: int, maker: Maker) -> Piece:
    """The work on one rank, and none on the others."""
    return maker() if dist.get_rank() == rank else lambda: None


# Steps and workloads that are made of pieces


def step_of(*makers: Maker, names: tuple[str, ...] = (), **options: Any) -> Case:
    """A step of one's own: the pieces one after the other, in sections if these have names, then an all-reduce."""

    def build(ctx: RankContext) -> Piece:
        pieces = [maker() for maker in makers]
        loss = torch.zeros(1)

        def step() -> None:
            for number, piece in enumerate(pieces):
                if names:
                    with ctx.phase(names[number]):
                        piece()
                else:
                    piece()
            dist.all_reduce(loss)

        return step

    return build, {"samples_per_step": 8, **options}


def step_under_ddp(model: DistributedDataParallel, inputs: Tensor) -> Piece:
    """A step of one's own that trains a model with DDP."""
    optimizer = sgd(model.parameters())

    def step() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(inputs).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        return loss.detach()

    step.unsynchronised = model.no_sync  # type: ignore[attr-defined]
    return step


class Beside(nn.Module):
    """A small layer, and a piece of work before it in each forward pass."""

    def __init__(self, *pieces: Piece) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.pieces = pieces

    def forward(self, inputs: Tensor) -> Any:
        """The layer's outputs."""
        for piece in self.pieces:
            piece()
        return self.layer(inputs)


def mean_square(outputs: Any, _targets: Tensor) -> Any:
    return (outputs[0] if isinstance(outputs, tuple) else outputs).square().mean()


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-3)


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-4)


def train(
    model: Callable[[], nn.Module], shape: tuple[int, ...], strategy: Any, *, optimizer: Any = sgd, **given: Any
) -> Case:
    """Training on random inputs of a shape, whose first dimension is the batch, or on those of a loader."""
    loss, loader = given.pop("loss", mean_square), given.pop("loader", None)
    batch = None if loader else lambda: (torch.randn(*shape), torch.zeros(shape[0]))
    fields: Any = {"model": model, "batch": batch, "loader": loader, "loss": loss, "optimizer": optimizer}
    return Workload(**fields, samples_per_step=shape[0]), {"strategy": strategy, **given}


def mlp(width: int, layers: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    rest_of = (layer for _ in range(layers - 1) for layer in (nn.ReLU(), nn.Linear(width, width)))
    return nn.Sequential(nn.Linear(width, width), *rest_of)


def many_small_layers(layers: int, width: int = 8) -> nn.Module:
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))


def convolutions(number: int, width: int) -> nn.Module:
    return nn.Sequential(*(nn.Conv2d(width, width, 3, padding=1) for _ in range(number)), nn.Flatten())


def with_each_step(
    make: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer], maker: Maker
) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
    """An optimizer, and a piece of work after each of its steps."""

    def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        made, piece = make(parameters), maker()

        def after(*_: object) -> None:
            piece()

        made.register_step_post_hook(after)
        return made

    return optimizer


# Data


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """Random samples, each of which takes its time."""

    def __init__(self, work: Piece, *shape: int) -> None:
        self.work = work
        self.shape = shape

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.work()
        return torch.randn(*self.shape), torch.zeros(1)


def samples(work: Callable[[int], Piece], *shape: int, **options: Any) -> Callable[[int, int], Iterable[Any]]:
    """A loader of such samples, whose work depends on the rank: the first of the shape is the batch."""
    return lambda rank, _size: DataLoader(Samples(work(rank), *shape[1:]), batch_size=shape[0], **options)


def stream(seconds: Callable[[int], float], *shape: int) -> Callable[[int, int], Iterator[Any]]:
    """A generator of batches, each of which takes its time, which depends on the rank."""

    def batches(rank: int, _size: int) -> Iterator[Any]:
        inputs = torch.randn(*shape)
        while True:
            time.sleep(seconds(rank))
            yield inputs, torch.zeros(shape[0])

    return batches


def collated_slowly(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Sorts each sample number by number, in Python."""
    inputs = torch.stack([torch.tensor(sorted(pair[0].tolist())) for pair in pairs])
    return inputs, torch.zeros(len(pairs))


def data_set_in_memory(_rank: int, _size: int) -> Iterator[Any]:
    held = torch.ones(350, 512, 512)
    for number in itertools.count():
        yield held[number % 350], torch.zeros(512)


# Models and pieces of a single training


def averaged_thrice(module: nn.Module, ctx: Any) -> Parallel:
    def synchronise() -> None:
        for parameter in module.parameters():
            if parameter.grad is not None:
                for _ in range(3):
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= ctx.world_size

    for tensor in module.parameters():
        dist.broadcast(tensor.detach(), src=0)
    return Parallel(module, synchronise)


def hook_that_sends_in_pieces(_ctx: RankContext) -> Piece:
    model = DistributedDataParallel(mlp(512, 4))
    model.register_comm_hook(None, lambda _state, bucket: sent_in_pieces(bucket))
    return step_under_ddp(model, torch.randn(4, 512))


def sent_in_pieces(bucket: Any) -> torch.futures.Future[Tensor]:
    """Averages a bucket 4096 numbers at a time."""
    for piece in bucket.buffer().split(4096):
        dist.all_reduce(piece.div_(dist.get_world_size()))
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def larger_batch_on_rank_0(ctx: RankContext) -> Piece:
    inputs = torch.randn(1536 if ctx.rank == 0 else 64, 384)
    return step_under_ddp(DistributedDataParallel(mlp(384, 3)), inputs)


def gather() -> Piece:
    gathered, loss = list(torch.zeros(dist.get_world_size(), 1)), torch.zeros(1)
    return repeated(120, lambda: dist.all_gather(gathered, loss))


def products_and_barriers() -> Piece:
    product = multiply(1, 64)
    return repeated(60, lambda: (product(), dist.barrier()))


class Distilled(nn.Module):
    """A large frozen teacher, from which a small layer learns."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = mlp(1024, 4).requires_grad_(requires_grad=False)
        self.student = nn.Linear(1024, 1024)

    def forward(self, inputs: Tensor) -> Any:
        """How far the student is from the teacher."""
        return self.student(inputs) - self.teacher(inputs)


class Cells(nn.Module):
    """A recurrent cell, called for each moment."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(8, 8)

    def forward(self, inputs: Tensor) -> Any:
        """The last hidden state."""
        state: Any = None
        for moment in inputs.unbind(1):
            state = self.cell(moment, state)
        return state[0]


class Looked(nn.Module):
    """A large frozen table before convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(200 * 256, 1024), requires_grad=False)
        self.layers = nn.Sequential(*(nn.Conv2d(32, 32, 3, padding=1) for _ in range(4)))

    def forward(self, inputs: Tensor) -> Any:
        """The pictures times a number of the table."""
        return self.layers(inputs * self.table[0, 0])


def update_of_a_shard() -> Piece:
    shard = nn.Parameter(torch.randn(12 * 2**20))
    shard.grad = torch.randn(12 * 2**20)
    return torch.optim.Adam([shard], lr=1e-4, foreach=True).step


def averages() -> Piece:
    """Moving averages of weights that are as large."""
    pairs = [(torch.zeros(32 * FLOATS), torch.randn(32 * FLOATS)) for _ in range(2)]
    return repeated(4, lambda: [average.lerp_(weight, 0.01) for average, weight in pairs])


def copies_for_a_queue() -> Piece:
    queue, news = torch.zeros(3, 64 * FLOATS), torch.ones(64 * FLOATS)
    return lambda: [queue[number].copy_(news) for number in range(3)]


def numbers_read_one_by_one() -> Piece:
    numbers = torch.randn(8000)
    return lambda: sum(numbers[n].item() for n in range(8000))


def checkpoint() -> Piece:
    weights = {f"layer{n}": torch.randn(64, 64) for n in range(300)}
    return lambda: torch.save(weights, io.BytesIO())


def sample_by_sample(outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.stack(
        [(output - target).square().mean() for output, target in zip(outputs, targets, strict=True)]
    ).mean()


def replay_buffer() -> Piece:
    return torch.ones(300 * FLOATS)[:64].sum


CASES: dict[str, Case] = {
    "data__dataset_that_sleeps": train(
        lambda: mlp(64, 3), (16, 64), "ddp", loader=samples(lambda _: rest(0.0015), 16, 64)
    ),
    "data__stream_of_slow_batches_fsdp2": train(
        lambda: mlp(128, 4), (32, 128), "fsdp2", loader=stream(lambda _: 0.06, 32, 128), optimizer=adam
    ),
    "data__slow_collate_before_convolutions": train(
        lambda: nn.Sequential(nn.Unflatten(1, (1, 64, 64)), nn.Conv2d(1, 4, 3, stride=4), nn.ReLU(), nn.Flatten()),
        (16, 4096),
        "bucketed",
        loader=samples(lambda _: rest(0), 16, 4096, collate_fn=collated_slowly),
    ),
    "data__one_worker_that_cannot_keep_up": train(
        lambda: mlp(64, 3),
        (8, 64),
        "ddp",
        loader=samples(lambda _: rest(0.005), 8, 64, num_workers=1, persistent_workers=True),
    ),
    "data__unpacking_in_the_dataset": train(
        lambda: nn.LSTM(32, 32, batch_first=True),
        (8, 32, 32),
        "flat",
        loader=samples(lambda _: pack(0.2), 8, 32, 32),
        optimizer=adam,
    ),
    "data__short_step_naive": train(lambda: nn.Linear(16, 4), (8, 16), "naive", loader=stream(lambda _: 0.006, 8, 16)),
    "data__step_that_loads_for_itself": step_of(
        lambda: rest(0.03), lambda: multiply(2), names=("data_wait", "forward"), samples_per_step=16
    ),
    "communication__many_small_parameters_naive": train(lambda: many_small_layers(80), (4, 8), "naive"),
    "communication__many_medium_parameters_overlap": train(lambda: many_small_layers(60, 64), (4, 64), "overlap"),
    "communication__each_micro_batch_is_averaged": train(
        lambda: many_small_layers(40, 16), (2, 16), "naive", accumulation_steps=4, no_sync=False
    ),
    "communication__strategy_that_averages_three_times": train(lambda: mlp(1024, 2), (2, 1024), averaged_thrice),
    "communication__hook_of_ddp_that_sends_in_pieces": (hook_that_sends_in_pieces, {"samples_per_step": 4}),
    "communication__large_all_reduces_of_a_step": step_of(
        lambda: multiply(1), lambda: exchange(3, 16), names=("forward", "gradient_sync")
    ),
    "communication__gathering_a_loss_at_a_time": step_of(gather, lambda: multiply(1, 256)),
    "communication__barriers_between_small_products": step_of(products_and_barriers),
    "compute__perceptron_ddp": train(lambda: mlp(512, 3), (512, 512), "ddp"),
    "compute__short_step_flat": train(lambda: mlp(256, 3), (512, 256), "flat"),
    "compute__convolutions_bucketed": train(lambda: convolutions(3, 64), (8, 64, 24, 24), "bucketed"),
    "compute__transformer_zero1": train(
        partial(nn.TransformerEncoderLayer, 256, 4, 1024, dropout=0.0, batch_first=True),
        (8, 64, 256),
        "zero1",
        optimizer=adam,
    ),
    "compute__lstm_ddp": train(lambda: nn.LSTM(256, 256, batch_first=True), (128, 16, 256), "ddp"),
    "compute__sharded_perceptron_fsdp2": train(lambda: mlp(512, 4), (1024, 512), "fsdp2", optimizer=adam),
    "compute__frozen_teacher": train(Distilled, (512, 1024), "ddp"),
    "compute__products_of_a_step": step_of(lambda: multiply(10), lambda: tinker(200)),
    "compute__accumulated_perceptron": train(lambda: mlp(512, 3), (256, 512), "ddp", accumulation_steps=3),
    "memory_bandwidth__sweeps_in_forward_ddp": train(lambda: Beside(sweep(8)), (16, 16), "ddp"),
    "memory_bandwidth__reductions_of_a_step": step_of(lambda: reduce(5), lambda: sweep(3, 128)),
    "memory_bandwidth__adam_of_a_shard_of_its_own": step_of(
        lambda: multiply(1), update_of_a_shard, names=("forward", "optimizer")
    ),
    "memory_bandwidth__moving_averages_after_the_optimizer": train(
        lambda: mlp(64, 2), (32, 64), "bucketed", optimizer=with_each_step(sgd, averages)
    ),
    "memory_bandwidth__norms_of_large_pictures": train(
        lambda: nn.Sequential(nn.BatchNorm2d(16), nn.ReLU(), nn.BatchNorm2d(16), nn.ReLU()), (8, 16, 160, 160), "ddp"
    ),
    "memory_bandwidth__layer_norm_of_long_sequences": train(
        lambda: nn.LayerNorm(512), (16, 512, 512), "naive", optimizer=adam
    ),
    "memory_bandwidth__copies_for_a_queue": train(lambda: Beside(copies_for_a_queue()), (8, 16), "fsdp2"),
    "overhead__deep_stack_of_tiny_layers": train(
        lambda: nn.Sequential(*(layer for _ in range(60) for layer in (nn.Linear(8, 8), nn.Tanh()))), (2, 8), "ddp"
    ),
    "overhead__cell_by_cell": train(Cells, (4, 100, 8), "flat"),
    "overhead__operators_of_a_step": step_of(lambda: tinker(6000)),
    "overhead__optimizer_parameter_by_parameter": train(
        lambda: many_small_layers(100),
        (2, 8),
        "ddp",
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.0001, foreach=False),
    ),
    "overhead__numbers_read_one_by_one": train(lambda: Beside(numbers_read_one_by_one()), (8, 16), "bucketed"),
    "overhead__sample_by_sample": train(lambda: nn.Linear(16, 4), (128, 16), "ddp", loss=sample_by_sample),
    "overhead__tiny_transformer": train(
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 10, enable_nested_tensor=False
        ),
        (2, 4, 8),
        "ddp",
    ),
    "overhead__many_tiny_micro_batches": train(
        lambda: mlp(16, 8), (2, 16), "ddp", optimizer=adam, accumulation_steps=24
    ),
    "straggler__more_products_on_rank_1": step_of(lambda: multiply(2), lambda: on_rank(1, lambda: multiply(12))),
    "straggler__loader_of_rank_0_is_slow": train(
        lambda: mlp(64, 3), (16, 64), "ddp", loader=stream(lambda rank: 0.03 * (rank == 0), 16, 64)
    ),
    "straggler__large_samples_on_rank_1": train(
        lambda: mlp(64, 3), (4, 64), "bucketed", loader=samples(lambda rank: pack(0.4 if rank == 1 else 0.01), 4, 64)
    ),
    "straggler__rank_1_sleeps_in_forward": train(lambda: Beside(on_rank(1, lambda: rest(0.025))), (16, 16), "ddp"),
    "straggler__larger_batch_on_rank_0": (larger_batch_on_rank_0, {"samples_per_step": 64}),
    "straggler__checkpoint_of_rank_0_in_each_step": train(
        lambda: mlp(64, 3), (16, 64), "naive", optimizer=with_each_step(adam, lambda: on_rank(0, checkpoint))
    ),
    "straggler__large_arrays_on_rank_1_fsdp2": train(
        lambda: nn.Sequential(Beside(on_rank(1, lambda: sweep(12))), mlp(16, 2)), (16, 16), "fsdp2"
    ),
    "straggler__metrics_in_python_on_rank_0": train(
        lambda: Beside(on_rank(0, lambda: tinker(8000))), (16, 16), "overlap"
    ),
    "memory_capacity__data_set_in_memory": train(
        lambda: mlp(512, 3), (512, 512), "ddp", loader=data_set_in_memory, memory_limit="402MiB"
    ),
    "memory_capacity__replay_buffer_beside_products": step_of(
        replay_buffer, lambda: multiply(12), memory_limit="316MiB"
    ),
    "memory_capacity__frozen_table_before_convolutions": train(
        Looked, (16, 32, 32, 32), "bucketed", memory_limit="400MiB"
    ),
    "oversubscribed__four_ranks_perceptron": train(lambda: mlp(512, 3), (256, 512), "ddp", world_size=4),
    "oversubscribed__four_ranks_convolutions_flat": train(
        lambda: convolutions(2, 32), (8, 32, 32, 32), "flat", world_size=4
    ),
    "oversubscribed__six_ranks_products_of_a_step": step_of(lambda: multiply(6), world_size=6),
    "unclear__sleep_in_forward": train(lambda: Beside(rest(0.025)), (16, 16), "ddp"),
    "unclear__sleep_in_a_step": step_of(lambda: rest(0.015), lambda: multiply(1, 256)),
    "unclear__sleep_in_the_optimizer": train(
        lambda: mlp(64, 3), (16, 64), "flat", optimizer=with_each_step(sgd, lambda: rest(0.04))
    ),
    "unclear__a_quarter_of_each": step_of(
        *(lambda: rest(0.008), lambda: multiply(3), lambda: sweep(2), lambda: exchange(1, 8)),
        names=("data_wait", "forward", "optimizer", "gradient_sync"),
    ),
    "data_or_compute__stream_before_a_perceptron": train(
        lambda: mlp(512, 3), (512, 512), "ddp", loader=stream(lambda _: 0.025, 512, 512)
    ),
    "data_or_communication__stream_before_many_parameters": train(
        lambda: many_small_layers(50), (4, 8), "naive", loader=stream(lambda _: 0.015, 4, 8)
    ),
    "data_or_overhead__dataset_before_tiny_operators": train(
        lambda: Beside(tinker(5000)), (8, 16), "ddp", loader=samples(lambda _: rest(0.0015), 8, 16)
    ),
    "compute_or_communication__products_and_all_reduces": step_of(
        lambda: multiply(9), lambda: exchange(2, 12), names=("forward", "gradient_sync")
    ),
    "compute_or_memory_bandwidth__products_and_sweeps_in_forward": train(
        lambda: Beside(multiply(8), sweep(7)), (16, 16), "ddp"
    ),
    "memory_bandwidth_or_overhead__sweeps_and_tiny_operators": step_of(lambda: sweep(6), lambda: tinker(7500)),
    "straggler_or_data__one_rank_waits_twice_as_long": train(
        lambda: mlp(64, 3), (16, 64), "ddp", loader=stream(lambda rank: 0.04 if rank == 1 else 0.02, 16, 64)
    ),
}


@pytest.mark.parametrize("name", CASES)
def test(ddpperf: Ddpperf, name: str) -> None:
    subject, options = CASES[name]
    ddpperf.measure(subject, **options)
