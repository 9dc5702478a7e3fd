"""Benchmarks whose bottleneck is known, because it was planted: held out from whoever writes a rule that names it.

The name of a test tells the truth about it, `test_<cause>__<what is built>`. Where two causes take about as much of the
step, it is `test_<cause>_or_<cause>__<what is built>`. The causes:

- `data`: every rank waits for its batches.
- `communication`: collectives take the largest part, and nothing hides them.
- `compute`: large matrix products or convolutions.
- `memory_bandwidth`: elementwise work and reductions on arrays that are larger than the caches.
- `overhead`: very many operators on tiny tensors.
- `straggler`: the other rank waits for one that has clearly more to do.
- `memory_capacity`: training only just fits into the memory that the test allows.
- `oversubscribed`: ranks or threads compute all the time, and are more than the cores.
- `unclear`: a wait that nothing explains, or a mix in which no cause has a third of the step.

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
FLOATS = 2**18  # of a MiB


# Pieces of work


def multiply(count: int, size: int = 512) -> Piece:
    """Square matrix products: 2.7 ms each at a size of 512."""
    matrix, out = torch.randn(size, size), torch.empty(size, size)

    def work() -> None:
        for _ in range(count):
            torch.mm(matrix, matrix, out=out)

    return work


def sweep(count: int, mib: int = 64) -> Piece:
    """Reads and writes an array again and again: 3 ms each at 64 MiB."""
    array = torch.ones(mib * FLOATS)

    def work() -> None:
        for _ in range(count):
            array.mul_(1.0)

    return work


def reduce(count: int, mib: int = 64) -> Piece:
    """Reads an array again and again: 3 ms each at 64 MiB."""
    array = torch.ones(mib * FLOATS)
    return lambda: [array.sum() for _ in range(count)]


def tinker(count: int) -> Piece:
    """Operators on four numbers: 2.5 us each."""
    numbers = torch.zeros(4)

    def work() -> None:
        for _ in range(count):
            numbers.add_(1)

    return work


def exchange(count: int, mib: float) -> Piece:
    """All-reduces, one after the other."""
    array = torch.zeros(int(mib * FLOATS))

    def work() -> None:
        for _ in range(count):
            dist.all_reduce(array)

    return work


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


def step_of(*makers: Maker, names: tuple[str, ...] = ()) -> Callable[[RankContext], Piece]:
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

    return build


class Beside(nn.Module):
    """A small layer, and a piece of work before it in each forward pass."""

    def __init__(self, *pieces: Piece) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.pieces = pieces

    def forward(self, inputs: Tensor) -> Tensor:
        """The layer's outputs."""
        for piece in self.pieces:
            piece()
        outputs: Tensor = self.layer(inputs)
        return outputs


def mean_square(outputs: Tensor, _targets: Tensor) -> Tensor:
    return outputs.square().mean()


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-3)


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-4)


def train(
    model: Callable[[], nn.Module],
    *shape: int,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = sgd,
    loader: Callable[[int, int], Iterable[Any]] | None = None,
) -> Workload:
    """Training on random inputs of a shape, whose first dimension is the batch, or on those of a loader."""

    def batch() -> tuple[Tensor, Tensor]:
        return torch.randn(*shape), torch.zeros(shape[0])

    return Workload(
        model=model,
        batch=None if loader else batch,
        loader=loader,
        loss=mean_square,
        optimizer=optimizer,
        samples_per_step=shape[0],
    )


def mlp(width: int, layers: int, inputs: int | None = None) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    first = nn.Linear(inputs or width, width)
    rest_of = (layer for _ in range(layers - 1) for layer in (nn.ReLU(), nn.Linear(width, width)))
    return nn.Sequential(first, *rest_of)


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


def samples(work: Maker, *shape: int, **options: Any) -> Callable[[int, int], Iterable[Any]]:
    """A loader of such samples: the first of the shape is the batch."""
    return lambda _rank, _size: DataLoader(Samples(work(), *shape[1:]), batch_size=shape[0], **options)


def stream(work: Maker, *shape: int) -> Callable[[int, int], Iterator[Any]]:
    """A generator of batches, each of which takes its time."""

    def batches(_rank: int, _size: int) -> Iterator[Any]:
        piece, inputs = work(), torch.randn(*shape)
        while True:
            piece()
            yield inputs, torch.zeros(shape[0])

    return batches


def collated_slowly(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Sorts each sample number by number, in Python."""
    inputs = torch.stack([torch.tensor(sorted(pair[0].tolist())) for pair in pairs])
    return inputs, torch.zeros(len(pairs))


def test_data__dataset_that_sleeps(ddpperf: Ddpperf) -> None:
    loader = samples(lambda: rest(1.5e-3), 16, 64)
    ddpperf.measure(train(lambda: mlp(64, 3), 16, 64, loader=loader), strategy="ddp")


def test_data__stream_of_slow_batches_fsdp2(ddpperf: Ddpperf) -> None:
    loader = stream(lambda: rest(60e-3), 32, 128)
    ddpperf.measure(train(lambda: mlp(128, 4), 32, 128, loader=loader, optimizer=adam), strategy="fsdp2")


def test_data__slow_collate_before_convolutions(ddpperf: Ddpperf) -> None:
    loader = samples(lambda: rest(0), 16, 4096, collate_fn=collated_slowly)
    model = lambda: nn.Sequential(nn.Unflatten(1, (1, 64, 64)), nn.Conv2d(1, 4, 3, stride=4), nn.ReLU(), nn.Flatten())  # noqa: E731
    ddpperf.measure(train(model, 16, 4096, loader=loader), strategy="bucketed")


def test_data__one_worker_that_cannot_keep_up(ddpperf: Ddpperf) -> None:
    loader = samples(lambda: rest(5e-3), 8, 64, num_workers=1, persistent_workers=True)
    ddpperf.measure(train(lambda: mlp(64, 3), 8, 64, loader=loader), strategy="ddp")


def test_data__unpacking_in_the_dataset(ddpperf: Ddpperf) -> None:
    loader = samples(lambda: pack(0.2), 8, 32, 32)
    model = lambda: nn.LSTM(32, 32, batch_first=True)  # noqa: E731
    workload = Workload(
        model=model,
        loader=loader,
        loss=lambda outputs, _targets: outputs[0].square().mean(),
        optimizer=adam,
        samples_per_step=8,
    )
    ddpperf.measure(workload, strategy="flat")


def test_data__short_step_naive(ddpperf: Ddpperf) -> None:
    loader = stream(lambda: rest(6e-3), 8, 16)
    ddpperf.measure(train(lambda: nn.Linear(16, 4), 8, 16, loader=loader), strategy="naive")


def test_data__step_that_loads_for_itself(ddpperf: Ddpperf) -> None:
    parts = step_of(lambda: rest(30e-3), lambda: multiply(2), names=("data_wait", "forward"))
    ddpperf.measure(parts, samples_per_step=16)


# Communication


def many_small_layers(layers: int, width: int = 8) -> nn.Module:
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))


def test_communication__many_small_parameters_naive(ddpperf: Ddpperf) -> None:
    ddpperf.measure(train(lambda: many_small_layers(80), 4, 8), strategy="naive")


def test_communication__many_medium_parameters_overlap(ddpperf: Ddpperf) -> None:
    ddpperf.measure(train(lambda: many_small_layers(60, 64), 4, 64), strategy="overlap")


def test_communication__each_micro_batch_is_averaged(ddpperf: Ddpperf) -> None:
    workload = train(lambda: many_small_layers(40, 16), 2, 16)
    ddpperf.measure(workload, strategy="naive", accumulation_steps=4, no_sync=False)


def test_communication__strategy_that_averages_three_times(ddpperf: Ddpperf) -> None:
    def thrice(module: nn.Module, ctx: Any) -> Parallel:
        def synchronise() -> None:
            for parameter in module.parameters():
                if parameter.grad is not None:
                    for _ in range(3):
                        dist.all_reduce(parameter.grad)
                        parameter.grad /= ctx.world_size

        for tensor in module.parameters():
            dist.broadcast(tensor.detach(), src=0)
        return Parallel(module, synchronise)

    ddpperf.measure(train(lambda: mlp(1024, 2), 2, 1024), strategy=thrice)


def test_communication__hook_of_ddp_that_sends_in_pieces(ddpperf: Ddpperf) -> None:
    def build(_ctx: RankContext) -> Piece:
        model = DistributedDataParallel(mlp(512, 4))
        model.register_comm_hook(None, lambda _state, bucket: sent_in_pieces(bucket))
        optimizer, inputs = sgd(model.parameters()), torch.randn(4, 512)

        def step() -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model(inputs).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimizer.step()
            return loss.detach()

        step.unsynchronised = model.no_sync  # type: ignore[attr-defined]
        return step

    ddpperf.measure(build, samples_per_step=4)


def sent_in_pieces(bucket: Any) -> torch.futures.Future[Tensor]:
    """Averages a bucket 4096 numbers at a time."""
    for piece in bucket.buffer().split(4096):
        dist.all_reduce(piece.div_(dist.get_world_size()))
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def test_communication__large_all_reduces_of_a_step(ddpperf: Ddpperf) -> None:
    parts = step_of(lambda: multiply(1), lambda: exchange(3, 16), names=("forward", "gradient_sync"))
    ddpperf.measure(parts, samples_per_step=8)


def test_communication__gathering_a_loss_at_a_time(ddpperf: Ddpperf) -> None:
    def gather() -> Piece:
        gathered, loss = list(torch.zeros(dist.get_world_size(), 1)), torch.zeros(1)
        return lambda: [dist.all_gather(gathered, loss) for _ in range(120)]

    ddpperf.measure(step_of(gather, lambda: multiply(1, 256)), samples_per_step=8)


def test_communication__barriers_between_small_products(ddpperf: Ddpperf) -> None:
    def parts() -> Piece:
        product = multiply(1, 64)

        def work() -> None:
            for _ in range(60):
                product()
                dist.barrier()

        return work

    ddpperf.measure(step_of(parts), samples_per_step=8)


# Compute


def test_compute__perceptron_ddp(ddpperf: Ddpperf) -> None:
    ddpperf.measure(train(lambda: mlp(512, 3), 512, 512), strategy="ddp")


def test_compute__short_step_flat(ddpperf: Ddpperf) -> None:
    ddpperf.measure(train(lambda: mlp(256, 3), 512, 256), strategy="flat")


def test_compute__convolutions_bucketed(ddpperf: Ddpperf) -> None:
    layers = lambda: nn.Sequential(*(nn.Conv2d(64, 64, 3, padding=1) for _ in range(3)), nn.Flatten())  # noqa: E731
    ddpperf.measure(train(layers, 8, 64, 24, 24), strategy="bucketed")


def test_compute__transformer_zero1(ddpperf: Ddpperf) -> None:
    layer = partial(nn.TransformerEncoderLayer, 256, 4, 1024, dropout=0.0, batch_first=True)
    ddpperf.measure(train(layer, 8, 64, 256, optimizer=adam), strategy="zero1")


def test_compute__lstm_ddp(ddpperf: Ddpperf) -> None:
    workload = Workload(
        model=lambda: nn.LSTM(256, 256, batch_first=True),
        batch=lambda: (torch.randn(128, 16, 256), torch.zeros(128)),
        loss=lambda outputs, _targets: outputs[0].square().mean(),
        optimizer=sgd,
        samples_per_step=128,
    )
    ddpperf.measure(workload, strategy="ddp")


def test_compute__sharded_perceptron_fsdp2(ddpperf: Ddpperf) -> None:
    ddpperf.measure(train(lambda: mlp(512, 4), 1024, 512, optimizer=adam), strategy="fsdp2")


class Distilled(nn.Module):
    """A large frozen teacher, from which a small layer learns."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = mlp(1024, 4).requires_grad_(requires_grad=False)
        self.student = nn.Linear(1024, 1024)

    def forward(self, inputs: Tensor) -> Tensor:
        """How far the student is from the teacher."""
        distance: Tensor = self.student(inputs) - self.teacher(inputs)
        return distance


def test_compute__frozen_teacher(ddpperf: Ddpperf) -> None:
    ddpperf.measure(train(Distilled, 512, 1024), strategy="ddp")


def test_compute__products_of_a_step(ddpperf: Ddpperf) -> None:
    ddpperf.measure(step_of(lambda: multiply(10), lambda: tinker(200)), samples_per_step=8)


def test_compute__accumulated_perceptron(ddpperf: Ddpperf) -> None:
    workload = train(lambda: mlp(512, 3), 256, 512)
    ddpperf.measure(workload, strategy="ddp", accumulation_steps=3)


# Bandwidth of memory


def test_memory_bandwidth__sweeps_in_forward_ddp(ddpperf: Ddpperf) -> None:
    ddpperf.measure(train(lambda: Beside(sweep(8)), 16, 16), strategy="ddp")


def test_memory_bandwidth__reductions_of_a_step(ddpperf: Ddpperf) -> None:
    ddpperf.measure(step_of(lambda: reduce(5), lambda: sweep(3, 128)), samples_per_step=8)


def test_memory_bandwidth__adam_of_a_shard_of_its_own(ddpperf: Ddpperf) -> None:
    def update() -> Piece:
        shard = nn.Parameter(torch.randn(12 * 2**20))
        shard.grad = torch.randn(12 * 2**20)
        return torch.optim.Adam([shard], lr=1e-4, foreach=True).step

    parts = step_of(lambda: multiply(1), update, names=("forward", "optimizer"))
    ddpperf.measure(parts, samples_per_step=8)


def averages(count: int, mib: int) -> Piece:
    """Moving averages of weights that are as large."""
    weights = [torch.randn(mib * FLOATS) for _ in range(2)]
    moving = [torch.zeros(mib * FLOATS) for _ in range(2)]

    def work() -> None:
        for _ in range(count):
            for average, weight in zip(moving, weights, strict=True):
                average.lerp_(weight, 0.01)

    return work


def test_memory_bandwidth__moving_averages_after_the_optimizer(ddpperf: Ddpperf) -> None:
    optimizer = with_each_step(sgd, lambda: averages(4, 32))
    ddpperf.measure(train(lambda: mlp(64, 2), 32, 64, optimizer=optimizer), strategy="bucketed")


class Normalised(nn.Module):
    """Norms and activations on large pictures, with few parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.BatchNorm2d(16), nn.ReLU(), nn.BatchNorm2d(16), nn.ReLU())

    def forward(self, inputs: Tensor) -> Tensor:
        """The normalised pictures."""
        outputs: Tensor = self.layers(inputs)
        return outputs


def test_memory_bandwidth__norms_of_large_pictures(ddpperf: Ddpperf) -> None:
    ddpperf.measure(train(Normalised, 8, 16, 160, 160), strategy="ddp")


def test_memory_bandwidth__layer_norm_of_long_sequences(ddpperf: Ddpperf) -> None:
    ddpperf.measure(train(lambda: nn.LayerNorm(512), 16, 512, 512, optimizer=adam), strategy="naive")


def test_memory_bandwidth__copies_for_a_queue(ddpperf: Ddpperf) -> None:
    def copies() -> Piece:
        queue, news = torch.zeros(3, 64 * FLOATS), torch.ones(64 * FLOATS)
        return lambda: [queue[number].copy_(news) for number in range(3)]

    ddpperf.measure(train(lambda: Beside(copies()), 8, 16), strategy="fsdp2")


# Overhead


def test_overhead__deep_stack_of_tiny_layers(ddpperf: Ddpperf) -> None:
    stack = lambda: nn.Sequential(*(layer for _ in range(60) for layer in (nn.Linear(8, 8), nn.Tanh())))  # noqa: E731
    ddpperf.measure(train(stack, 2, 8), strategy="ddp")


class Cells(nn.Module):
    """A recurrent cell, called for each moment."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(8, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        """The last hidden state."""
        state = None
        for moment in inputs.unbind(1):
            state = self.cell(moment, state)
        hidden: Tensor = state[0]  # type: ignore[index]
        return hidden


def test_overhead__cell_by_cell(ddpperf: Ddpperf) -> None:
    ddpperf.measure(train(Cells, 4, 100, 8), strategy="flat")


def test_overhead__operators_of_a_step(ddpperf: Ddpperf) -> None:
    ddpperf.measure(step_of(lambda: tinker(6000)), samples_per_step=8)


def test_overhead__optimizer_parameter_by_parameter(ddpperf: Ddpperf) -> None:
    optimizer = lambda parameters: torch.optim.Adam(parameters, lr=1e-4, foreach=False)  # noqa: E731
    ddpperf.measure(train(lambda: many_small_layers(100), 2, 8, optimizer=optimizer), strategy="ddp")


def test_overhead__numbers_read_one_by_one(ddpperf: Ddpperf) -> None:
    def read() -> Piece:
        numbers = torch.randn(8000)
        return lambda: sum(numbers[n].item() for n in range(8000))

    ddpperf.measure(train(lambda: Beside(read()), 8, 16), strategy="bucketed")


def test_overhead__sample_by_sample(ddpperf: Ddpperf) -> None:
    workload = Workload(
        model=lambda: nn.Linear(16, 4),
        batch=lambda: (torch.randn(128, 16), torch.zeros(128)),
        loss=lambda outputs, targets: torch.stack(
            [(output - target).square().mean() for output, target in zip(outputs, targets, strict=True)]
        ).mean(),
        optimizer=sgd,
        samples_per_step=128,
    )
    ddpperf.measure(workload, strategy="ddp")


def test_overhead__tiny_transformer(ddpperf: Ddpperf) -> None:
    layer = partial(nn.TransformerEncoderLayer, 8, 2, 16, dropout=0.0, batch_first=True)
    ddpperf.measure(
        train(lambda: nn.TransformerEncoder(layer(), 10, enable_nested_tensor=False), 2, 4, 8), strategy="ddp"
    )


def test_overhead__many_tiny_micro_batches(ddpperf: Ddpperf) -> None:
    ddpperf.measure(train(lambda: mlp(16, 8), 2, 16, optimizer=adam), strategy="ddp", accumulation_steps=24)


# One rank holds up the other


def test_straggler__more_products_on_rank_1(ddpperf: Ddpperf) -> None:
    ddpperf.measure(step_of(lambda: multiply(2), lambda: on_rank(1, lambda: multiply(12))), samples_per_step=8)


def test_straggler__loader_of_rank_0_is_slow(ddpperf: Ddpperf) -> None:
    def loader(rank: int, _size: int) -> Iterable[Any]:
        return stream(lambda: rest(30e-3 if rank == 0 else 0), 16, 64)(rank, _size)

    ddpperf.measure(train(lambda: mlp(64, 3), 16, 64, loader=loader), strategy="ddp")


def test_straggler__large_samples_on_rank_1(ddpperf: Ddpperf) -> None:
    def loader(rank: int, _size: int) -> Iterable[Any]:
        return samples(lambda: pack(0.4 if rank == 1 else 0.01), 4, 64)(rank, _size)

    ddpperf.measure(train(lambda: mlp(64, 3), 4, 64, loader=loader), strategy="bucketed")


def test_straggler__rank_1_sleeps_in_forward(ddpperf: Ddpperf) -> None:
    model = lambda: Beside(on_rank(1, lambda: rest(25e-3)))  # noqa: E731
    ddpperf.measure(train(model, 16, 16), strategy="ddp")


def test_straggler__larger_batch_on_rank_0(ddpperf: Ddpperf) -> None:
    def build(ctx: RankContext) -> Piece:
        model = DistributedDataParallel(mlp(384, 3))
        optimizer, inputs = sgd(model.parameters()), torch.randn(1536 if ctx.rank == 0 else 64, 384)

        def step() -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model(inputs).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimizer.step()
            return loss.detach()

        step.unsynchronised = model.no_sync  # type: ignore[attr-defined]
        return step

    ddpperf.measure(build, samples_per_step=64)


def test_straggler__checkpoint_of_rank_0_in_each_step(ddpperf: Ddpperf) -> None:
    def save() -> Piece:
        weights = {f"layer{n}": torch.randn(64, 64) for n in range(300)}
        return lambda: torch.save(weights, io.BytesIO())

    optimizer = with_each_step(adam, lambda: on_rank(0, save))
    ddpperf.measure(train(lambda: mlp(64, 3), 16, 64, optimizer=optimizer), strategy="naive")


def test_straggler__large_arrays_on_rank_1_fsdp2(ddpperf: Ddpperf) -> None:
    model = lambda: nn.Sequential(Beside(on_rank(1, lambda: sweep(12))), mlp(16, 2))  # noqa: E731
    ddpperf.measure(train(model, 16, 16), strategy="fsdp2")


def test_straggler__metrics_in_python_on_rank_0(ddpperf: Ddpperf) -> None:
    model = lambda: Beside(on_rank(0, lambda: tinker(8000)))  # noqa: E731
    ddpperf.measure(train(model, 16, 16), strategy="overlap")


# Memory that only just suffices


@pytest.mark.ddpperf(memory_limit="402MiB")
def test_memory_capacity__data_set_in_memory(ddpperf: Ddpperf) -> None:
    def loader(_rank: int, _size: int) -> Iterator[Any]:
        held = torch.ones(350, 512, 512)
        for number in itertools.count():
            yield held[number % 350], torch.zeros(512)

    ddpperf.measure(train(lambda: mlp(512, 3), 512, 512, loader=loader), strategy="ddp")


@pytest.mark.ddpperf(memory_limit="316MiB")
def test_memory_capacity__replay_buffer_beside_products(ddpperf: Ddpperf) -> None:
    def hold() -> Piece:
        buffer = torch.ones(300 * FLOATS)
        return buffer[:64].sum

    ddpperf.measure(step_of(hold, lambda: multiply(12)), samples_per_step=8)


@pytest.mark.ddpperf(memory_limit="400MiB")
def test_memory_capacity__frozen_table_before_convolutions(ddpperf: Ddpperf) -> None:
    class Looked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.ones(200 * 256, 1024), requires_grad=False)
            self.layers = nn.Sequential(*(nn.Conv2d(32, 32, 3, padding=1) for _ in range(4)))

        def forward(self, inputs: Tensor) -> Tensor:
            outputs: Tensor = self.layers(inputs * self.table[0, 0])
            return outputs

    ddpperf.measure(train(Looked, 16, 32, 32, 32), strategy="bucketed")


# More ranks or threads than cores


@pytest.mark.ddpperf(world_size=4)
def test_oversubscribed__four_ranks_perceptron(ddpperf: Ddpperf) -> None:
    ddpperf.measure(train(lambda: mlp(512, 3), 256, 512), strategy="ddp")


@pytest.mark.ddpperf(world_size=4)
def test_oversubscribed__four_ranks_convolutions_flat(ddpperf: Ddpperf) -> None:
    layers = lambda: nn.Sequential(*(nn.Conv2d(32, 32, 3, padding=1) for _ in range(2)), nn.Flatten())  # noqa: E731
    ddpperf.measure(train(layers, 8, 32, 32, 32), strategy="flat")


@pytest.mark.ddpperf(world_size=6)
def test_oversubscribed__six_ranks_products_of_a_step(ddpperf: Ddpperf) -> None:
    ddpperf.measure(step_of(lambda: multiply(6)), samples_per_step=8)


# Nothing that stands out


def test_unclear__sleep_in_forward(ddpperf: Ddpperf) -> None:
    ddpperf.measure(train(lambda: Beside(rest(25e-3)), 16, 16), strategy="ddp")


def test_unclear__sleep_in_a_step(ddpperf: Ddpperf) -> None:
    ddpperf.measure(step_of(lambda: rest(15e-3), lambda: multiply(1, 256)), samples_per_step=8)


def test_unclear__sleep_in_the_optimizer(ddpperf: Ddpperf) -> None:
    optimizer = with_each_step(sgd, lambda: rest(40e-3))
    ddpperf.measure(train(lambda: mlp(64, 3), 16, 64, optimizer=optimizer), strategy="flat")


def test_unclear__a_quarter_of_each(ddpperf: Ddpperf) -> None:
    parts = (lambda: rest(8e-3), lambda: multiply(3), lambda: sweep(2), lambda: exchange(1, 8))
    ddpperf.measure(step_of(*parts, names=("data_wait", "forward", "optimizer", "gradient_sync")), samples_per_step=8)


# Two causes that take about as much


def test_data_or_compute__stream_before_a_perceptron(ddpperf: Ddpperf) -> None:
    loader = stream(lambda: rest(25e-3), 512, 512)
    ddpperf.measure(train(lambda: mlp(512, 3), 512, 512, loader=loader), strategy="ddp")


def test_data_or_communication__stream_before_many_parameters(ddpperf: Ddpperf) -> None:
    loader = stream(lambda: rest(15e-3), 4, 8)
    ddpperf.measure(train(lambda: many_small_layers(50), 4, 8, loader=loader), strategy="naive")


def test_data_or_overhead__dataset_before_tiny_operators(ddpperf: Ddpperf) -> None:
    loader = samples(lambda: rest(1.5e-3), 8, 16)
    ddpperf.measure(train(lambda: Beside(tinker(5000)), 8, 16, loader=loader), strategy="ddp")


def test_compute_or_communication__products_and_all_reduces(ddpperf: Ddpperf) -> None:
    parts = step_of(lambda: multiply(9), lambda: exchange(2, 12), names=("forward", "gradient_sync"))
    ddpperf.measure(parts, samples_per_step=8)


def test_compute_or_memory_bandwidth__products_and_sweeps_in_forward(ddpperf: Ddpperf) -> None:
    ddpperf.measure(train(lambda: Beside(multiply(8), sweep(7)), 16, 16), strategy="ddp")


def test_memory_bandwidth_or_overhead__sweeps_and_tiny_operators(ddpperf: Ddpperf) -> None:
    ddpperf.measure(step_of(lambda: sweep(6), lambda: tinker(7500)), samples_per_step=8)


def test_straggler_or_data__one_rank_waits_twice_as_long(ddpperf: Ddpperf) -> None:
    def loader(rank: int, _size: int) -> Iterable[Any]:
        return stream(lambda: rest(40e-3 if rank == 1 else 20e-3), 16, 64)(rank, _size)

    ddpperf.measure(train(lambda: mlp(64, 3), 16, 64, loader=loader), strategy="ddp")
