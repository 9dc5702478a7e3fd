"""Twenty training steps with a planted cause each: written by a person who knew the list of causes alone.

The name of a training holds the true cause: `<cause>__<what>`. The first half are own steps, the second half are
training scripts as a user has them, which never end by themselves.
"""

import json
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from pytest_ddpperf import Ddpperf, RankContext, Script

pytestmark = pytest.mark.ddpperf(max_time=2, launches=2, warmup=3)

Step = Callable[[], Tensor]


def train(model: nn.Module, inputs: Callable[[], Tensor]) -> Step:
    """A step that trains the model on these inputs."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> Tensor:
        batch = inputs()
        optimizer.zero_grad()
        loss: Tensor = model(batch).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        return loss.detach()

    return step


def perceptron(layers: int) -> nn.Module:
    more = (layer for _ in range(layers - 1) for layer in (nn.ReLU(), nn.Linear(512, 512)))
    return nn.Sequential(nn.Linear(512, 512), *more)


def always(*shape: int) -> Callable[[], Tensor]:
    """The same random inputs again and again."""
    inputs = torch.randn(*shape)
    return lambda: inputs


def before(train_step: Step, work: Callable[[], object]) -> Step:
    """A step, and work after it."""

    def step() -> Tensor:
        loss = train_step()
        work()
        return loss

    return step


# Own steps


def build_products(_ctx: RankContext) -> Step:
    """Eight products of 1024x512x512, about 45 ms; the ranks exchange a scalar alone."""
    loss = torch.zeros(1)
    return before(train(perceptron(3), always(1024, 512)), lambda: dist.all_reduce(loss))


def build_convolutions(_ctx: RankContext) -> Step:
    """Three convolutions, whose 330 KiB of gradients DDP reduces."""
    first, *others = (nn.Conv2d(width, 64, kernel_size=3, padding=1) for width in (16, 64, 64))
    model = nn.Sequential(first, *(layer for other in others for layer in (nn.ReLU(), other)))
    return train(DistributedDataParallel(model), always(8, 16, 32, 32))


def build_averaged_weights(ctx: RankContext) -> Step:
    """A local step of a small layer, then the average of 32 MiB of weights over the ranks."""
    weights = torch.randn(8 * 2**20)

    def average() -> None:
        dist.all_reduce(weights)
        weights.div_(ctx.world_size)

    return before(train(nn.Linear(32, 32), always(16, 32)), average)


def build_parameter_server(_ctx: RankContext) -> Step:
    """Rank 0 collects 16 MiB of gradients and sends 16 MiB of weights back."""
    gradients, weights = torch.zeros(4 * 2**20), torch.randn(4 * 2**20)

    def exchange() -> None:
        dist.reduce(gradients, dst=0)
        dist.broadcast(weights, src=0)

    return before(train(nn.Linear(32, 32), always(16, 32)), exchange)


class JsonSamples(Dataset[Tensor]):
    """Samples of 8192 numbers, kept as JSON text and parsed when they are asked for."""

    def __init__(self) -> None:
        generator = random.Random(0)  # noqa: S311  no secret
        self.lines = [json.dumps([generator.random() for _ in range(8192)]) for _ in range(64)]

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(json.loads(self.lines[index]))


def epochs(loader: Iterable[Tensor]) -> Iterator[Tensor]:
    """The batches of one epoch after the other, without an end."""
    while True:
        yield from loader


def build_parsed_samples(_ctx: RankContext) -> Step:
    """The loader parses 16 samples in the process of the rank; the model is a single small layer."""
    batches = epochs(DataLoader(JsonSamples(), batch_size=16, shuffle=True))
    return train(DistributedDataParallel(nn.Linear(8192, 4)), lambda: next(batches))


class Chain(nn.Module):
    """A chain of 3000 operators on four numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), 0.9))

    def forward(self, value: Tensor) -> Tensor:
        """The last of the numbers."""
        for _ in range(1500):
            value = torch.cos(value * self.weight)
        return value


def build_chain_of_operators(_ctx: RankContext) -> Step:
    """That chain, forward and backward."""
    model = Chain()
    return before(train(model, lambda: torch.full((4,), 0.5)), lambda: dist.all_reduce(model.weight.grad))


def build_many_tiny_parameters(_ctx: RankContext) -> Step:
    """Adam, one parameter at a time, over 400 parameters of four numbers."""
    parameters = nn.ParameterList(nn.Parameter(torch.randn(4)) for _ in range(400))
    optimizer = torch.optim.Adam(parameters.parameters(), lr=1e-3, foreach=False)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = torch.stack([parameter.square().mean() for parameter in parameters]).sum()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        return loss.detach()

    return step


def build_momentum_by_hand(ctx: RankContext) -> Step:
    """Four sweeps over arrays of 64 MiB, in place."""
    size = 16 * 2**20
    weights, gradients, momentum = torch.rand(size), torch.rand(size), torch.zeros(size)

    def step() -> Tensor:
        momentum.mul_(0.9)
        momentum.add_(gradients)
        weights.add_(momentum, alpha=-1e-4)
        loss = weights.mean()
        dist.all_reduce(loss)
        return loss / ctx.world_size

    return step


def build_uneven_batches(ctx: RankContext) -> Step:
    """Rank 1 has a batch of 2048, eight times that of rank 0."""
    return train(DistributedDataParallel(perceptron(2)), always(2048 if ctx.rank == 1 else 256, 512))


OWN = {
    "compute__products": build_products,
    "compute__convolutions": build_convolutions,
    "communication__averaged_weights": build_averaged_weights,
    "communication__parameter_server": build_parameter_server,
    "data__parsed_samples": build_parsed_samples,
    "overhead__chain_of_operators": build_chain_of_operators,
    "overhead__many_tiny_parameters": build_many_tiny_parameters,
    "memory_bandwidth__momentum_by_hand": build_momentum_by_hand,
    "straggler__larger_batch_on_rank_1": build_uneven_batches,
    "oversubscribed__four_ranks_on_two_cores": build_products,
}


@pytest.mark.parametrize("name", OWN)
def test(ddpperf: Ddpperf, name: str) -> None:
    ddpperf.measure(OWN[name], world_size=4 if name.startswith("oversubscribed") else 2, verify=False)


# Training scripts

HEAD = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
"""
"""What each script begins with."""

SCRIPTS = {
    # DDP reduces 510 KiB of gradients; six products forward and eleven backward take most of the step.
    "compute__script_with_shared_layer": """
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(360, 360)
        self.head = nn.Linear(360, 1)

    def forward(self, hidden):
        for _ in range(6):
            hidden = torch.relu(self.layer(hidden))
        return self.head(hidden)

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(Recurrent())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(10**9):
    inputs = torch.randn(1024, 360)
    loss = (model(inputs) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    # DDP reduces 29 MiB of gradients, ready only at the end of a backward pass over a batch of four.
    "communication__script_with_large_embedding": """
ITEMS = 60_000

class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, 128)
        self.head = nn.Linear(128, 1)

    def forward(self, history):
        return self.head(self.items(history).mean(dim=1))

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(Recommender(), gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(10**9):
    history = torch.randint(ITEMS, (4, 10))
    liked = torch.randint(2, (4, 1)).float()
    loss = nn.functional.binary_cross_entropy_with_logits(model(history), liked)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    # Eighty small all-reduces by hand, each of which waits for the one before.
    "communication__script_reducing_each_gradient": """
dist.init_process_group("gloo")
torch.manual_seed(0)
layers = []
for _ in range(40):
    layers += [nn.Linear(64, 64), nn.ReLU()]
model = nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

torch.manual_seed(dist.get_rank())
for step in range(10**9):
    inputs = torch.randn(4, 64)
    loss = (model(inputs) - inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    optimizer.step()
""",
    # Each of eight samples takes 4 ms to arrive, and no worker reads ahead.
    "data__script_reading_slow_storage": """
import time

from torch.utils.data import DataLoader, Dataset, DistributedSampler

class RemoteImages(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        time.sleep(0.004)  # the latency of the storage
        return torch.full((3, 16, 16), index / 4096), index % 10

dist.init_process_group("gloo")
dataset = RemoteImages()
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
model = DistributedDataParallel(nn.Sequential(nn.Flatten(), nn.Linear(768, 64), nn.ReLU(), nn.Linear(64, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for epoch in range(10**9):
    sampler.set_epoch(epoch)
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
""",
    # One worker per rank tokenizes text, far slower than the small model trains on it.
    "data__script_with_slow_worker": """
from torch.utils.data import DataLoader, IterableDataset

WORDS = 1024

class Documents(IterableDataset):
    def __init__(self):
        self.text = " ".join(str(17 * position % WORDS) for position in range(40_000))

    def __iter__(self):
        while True:
            words = [int(word) for word in self.text.split()]
            yield torch.bincount(torch.tensor(words), minlength=WORDS) / len(words)

def main():
    dist.init_process_group("gloo")
    loader = DataLoader(Documents(), batch_size=8, num_workers=1)
    model = DistributedDataParallel(nn.Linear(WORDS, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for counts in loader:
        optimizer.zero_grad()
        loss = model(counts).square().mean()
        loss.backward()
        optimizer.step()

main()
""",
    # A recurrent cell of eight units walks over 400 time steps in Python; DDP reduces half a KiB.
    "overhead__script_with_recurrent_cell": """
class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.RNNCell(4, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, series):
        hidden = torch.zeros(len(series), 8)
        for values in series.unbind(dim=1):
            hidden = self.cell(values, hidden)
        return self.head(hidden)

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(Forecaster())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(10**9):
    series = torch.randn(2, 400, 4)
    loss = (model(series) - series[:, -1, :1]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    # Sweeps over two tables of 64 MiB, in place, next to a small model in DDP.
    "memory_bandwidth__script_with_moving_average": """
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
table = torch.rand(16 * 2**20)
average = table.clone()
for step in range(10**9):
    inputs = torch.randn(16, 64)
    loss = model(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    table.mul_(0.9999)
    table.add_(1e-4)
    average.lerp_(table, 0.01)
    average.clamp_(-1, 1)
    drift = average.sum() - table.sum()
""",
    # Rank 0 accumulates the gradients of five micro-batches, rank 1 those of one.
    "straggler__script_with_five_micro_batches_on_rank_0": """
import contextlib

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
micro_batches = [torch.randn(512, 512) for _ in range(5 if rank == 0 else 1)]
for step in range(10**9):
    optimizer.zero_grad()
    for number, inputs in enumerate(micro_batches, start=1):
        last = number == len(micro_batches)
        with contextlib.nullcontext() if last else model.no_sync():
            loss = model(inputs).square().mean() / len(micro_batches)
            loss.backward()
    optimizer.step()
""",
    # A sleep of 32 ms takes about 84 % of the step; DDP and the products share the rest.
    "unclear__script_that_sleeps": """
import time

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(10**9):
    inputs = torch.randn(512, 256)
    loss = model(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.032)
""",
    # The optimizer sleeps for 25 ms before it updates the small model, whose batches come from a fast loader.
    "unclear__script_with_sleeping_optimizer": """
import time

from torch.utils.data import DataLoader, TensorDataset

class PatientSGD(torch.optim.SGD):
    def step(self, closure=None):
        time.sleep(0.025)
        return super().step(closure)

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
loader = DataLoader(TensorDataset(torch.randn(2048, 128)), batch_size=8, shuffle=True)
model = DistributedDataParallel(nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128)))
optimizer = PatientSGD(model.parameters(), lr=1e-2)
for epoch in range(10**9):
    for (inputs,) in loader:
        optimizer.zero_grad()
        loss = (model(inputs) - inputs).square().mean()
        loss.backward()
        optimizer.step()
""",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_script(ddpperf: Ddpperf, tmp_path: Path, name: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(HEAD + SCRIPTS[name], encoding="utf-8")
    ddpperf.measure(Script(str(path)), samples_per_step=8, verify=False)
