"""Twenty training steps with a planted cause each: written by a person who knew the list of causes alone.

The name of a test holds the true cause: `test_<cause>__<what>`. The first half are own steps, the second half are
training scripts as a user has them, which never end by themselves.
"""

import json
import random
import textwrap
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


def train(model: nn.Module, inputs: Tensor) -> Step:
    """A step that trains the model on the same inputs again and again."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(inputs).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        return loss.detach()

    return step


def write_script(tmp_path: Path, source: str) -> Script:
    """Write a training script and return what runs it."""
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(source).lstrip(), encoding="utf-8")
    return Script(str(path))


# Own steps


def build_products(ctx: RankContext) -> Step:
    """Eight products of 1024x512x512, about 45 ms; the ranks exchange a scalar alone."""
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).to(
        ctx.device
    )
    train_step = train(model, torch.randn(1024, 512, device=ctx.device))

    def step() -> Tensor:
        loss = train_step()
        dist.all_reduce(loss)
        return loss / ctx.world_size

    return step


def test_compute__products(ddpperf: Ddpperf) -> None:
    ddpperf.measure(build_products, verify=False)


def build_convolutions(ctx: RankContext) -> Step:
    """Three convolutions, whose 330 KiB of gradients DDP reduces."""
    model = nn.Sequential(
        nn.Conv2d(16, 64, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, kernel_size=3, padding=1),
    ).to(ctx.device)
    return train(DistributedDataParallel(model), torch.randn(8, 16, 32, 32, device=ctx.device))


def test_compute__convolutions(ddpperf: Ddpperf) -> None:
    ddpperf.measure(build_convolutions, verify=False)


def build_averaged_weights(ctx: RankContext) -> Step:
    """A local step of a small layer, then the average of 32 MiB of weights over the ranks."""
    train_step = train(nn.Linear(32, 32).to(ctx.device), torch.randn(16, 32, device=ctx.device))
    weights = torch.randn(8 * 2**20, device=ctx.device)

    def step() -> Tensor:
        loss = train_step()
        dist.all_reduce(weights)
        weights.div_(ctx.world_size)
        return loss

    return step


def test_communication__averaged_weights(ddpperf: Ddpperf) -> None:
    ddpperf.measure(build_averaged_weights, verify=False)


def build_parameter_server(ctx: RankContext) -> Step:
    """Rank 0 collects 16 MiB of gradients and sends 16 MiB of weights back."""
    train_step = train(nn.Linear(32, 32).to(ctx.device), torch.randn(16, 32, device=ctx.device))
    gradients = torch.zeros(4 * 2**20, device=ctx.device)
    weights = torch.randn(4 * 2**20, device=ctx.device)

    def step() -> Tensor:
        loss = train_step()
        dist.reduce(gradients, dst=0)
        dist.broadcast(weights, src=0)
        return loss

    return step


def test_communication__parameter_server(ddpperf: Ddpperf) -> None:
    ddpperf.measure(build_parameter_server, verify=False)


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


def build_parsed_samples(ctx: RankContext) -> Step:
    """The loader parses 16 samples in the process of the rank; the model is a single small layer."""
    model = DistributedDataParallel(nn.Linear(8192, 4).to(ctx.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = epochs(DataLoader(JsonSamples(), batch_size=16, shuffle=True))

    def step() -> Tensor:
        inputs = next(batches).to(ctx.device)
        optimizer.zero_grad()
        loss: Tensor = model(inputs).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        return loss.detach()

    return step


def test_data__parsed_samples(ddpperf: Ddpperf) -> None:
    ddpperf.measure(build_parsed_samples, verify=False)


def build_chain_of_operators(ctx: RankContext) -> Step:
    """A chain of 3000 operators on four numbers, forward and backward."""
    weight = torch.full((4,), 0.9, device=ctx.device, requires_grad=True)
    start = torch.full((4,), 0.5, device=ctx.device)
    optimizer = torch.optim.SGD([weight], lr=1e-6)

    def step() -> Tensor:
        optimizer.zero_grad()
        value = start
        for _ in range(1500):
            value = torch.cos(value * weight)
        loss = value.sum()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        dist.all_reduce(weight.grad)
        optimizer.step()
        return loss.detach()

    return step


def test_overhead__chain_of_operators(ddpperf: Ddpperf) -> None:
    ddpperf.measure(build_chain_of_operators, verify=False)


def build_many_tiny_parameters(ctx: RankContext) -> Step:
    """Adam, one parameter at a time, over 400 parameters of four numbers."""
    parameters = nn.ParameterList(nn.Parameter(torch.randn(4)) for _ in range(400)).to(ctx.device)
    optimizer = torch.optim.Adam(parameters.parameters(), lr=1e-3, foreach=False)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = torch.stack([parameter.square().mean() for parameter in parameters]).sum()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        return loss.detach()

    return step


def test_overhead__many_tiny_parameters(ddpperf: Ddpperf) -> None:
    ddpperf.measure(build_many_tiny_parameters, verify=False)


def build_momentum_by_hand(ctx: RankContext) -> Step:
    """Four sweeps over arrays of 64 MiB, in place."""
    size = 16 * 2**20
    weights = torch.rand(size, device=ctx.device)
    gradients = torch.rand(size, device=ctx.device)
    momentum = torch.zeros(size, device=ctx.device)

    def step() -> Tensor:
        momentum.mul_(0.9)
        momentum.add_(gradients)
        weights.add_(momentum, alpha=-1e-4)
        loss = weights.mean()
        dist.all_reduce(loss)
        return loss / ctx.world_size

    return step


def test_memory_bandwidth__momentum_by_hand(ddpperf: Ddpperf) -> None:
    ddpperf.measure(build_momentum_by_hand, verify=False)


def build_uneven_batches(ctx: RankContext) -> Step:
    """Rank 1 has a batch of 2048, eight times that of rank 0."""
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).to(ctx.device)
    batch_size = 2048 if ctx.rank == 1 else 256
    return train(DistributedDataParallel(model), torch.randn(batch_size, 512, device=ctx.device))


def test_straggler__larger_batch_on_rank_1(ddpperf: Ddpperf) -> None:
    ddpperf.measure(build_uneven_batches, verify=False)


def test_oversubscribed__four_ranks_on_two_cores(ddpperf: Ddpperf) -> None:
    ddpperf.measure(build_products, world_size=4, verify=False)


# Training scripts


def test_compute__script_with_shared_layer(ddpperf: Ddpperf, tmp_path: Path) -> None:
    """DDP reduces 510 KiB of gradients; six products forward and eleven backward take most of the step."""
    script = write_script(
        tmp_path,
        """
        import torch
        import torch.distributed as dist
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel


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
    )
    ddpperf.measure(script, samples_per_step=8, verify=False)


def test_communication__script_with_large_embedding(ddpperf: Ddpperf, tmp_path: Path) -> None:
    """DDP reduces 29 MiB of gradients, ready only at the end of a backward pass over a batch of four."""
    script = write_script(
        tmp_path,
        """
        import torch
        import torch.distributed as dist
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel

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
    )
    ddpperf.measure(script, samples_per_step=8, verify=False)


def test_communication__script_reducing_each_gradient(ddpperf: Ddpperf, tmp_path: Path) -> None:
    """Eighty small all-reduces by hand, each of which waits for the one before."""
    script = write_script(
        tmp_path,
        """
        import torch
        import torch.distributed as dist
        from torch import nn

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
    )
    ddpperf.measure(script, samples_per_step=8, verify=False)


def test_data__script_reading_slow_storage(ddpperf: Ddpperf, tmp_path: Path) -> None:
    """Each of eight samples takes 4 ms to arrive, and no worker reads ahead."""
    script = write_script(
        tmp_path,
        """
        import time

        import torch
        import torch.distributed as dist
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel
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
    )
    ddpperf.measure(script, samples_per_step=8, verify=False)


def test_data__script_with_slow_worker(ddpperf: Ddpperf, tmp_path: Path) -> None:
    """One worker per rank tokenizes text, far slower than the small model trains on it."""
    script = write_script(
        tmp_path,
        """
        import torch
        import torch.distributed as dist
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel
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


        if __name__ == "__main__":
            main()
        """,
    )
    ddpperf.measure(script, samples_per_step=8, verify=False)


def test_overhead__script_with_recurrent_cell(ddpperf: Ddpperf, tmp_path: Path) -> None:
    """A recurrent cell of eight units walks over 400 time steps in Python; DDP reduces half a KiB."""
    script = write_script(
        tmp_path,
        """
        import torch
        import torch.distributed as dist
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel


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
    )
    ddpperf.measure(script, samples_per_step=8, verify=False)


def test_memory_bandwidth__script_with_moving_average(ddpperf: Ddpperf, tmp_path: Path) -> None:
    """Sweeps over two tables of 64 MiB, in place, next to a small model in DDP."""
    script = write_script(
        tmp_path,
        """
        import torch
        import torch.distributed as dist
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel

        dist.init_process_group("gloo")
        torch.manual_seed(dist.get_rank())
        model = DistributedDataParallel(nn.Linear(64, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        table = torch.rand(16 * 2**20)
        average = table.clone()
        for step in range(10**9):
            inputs = torch.randn(16, 64)
            loss: Tensor = model(inputs).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            table.mul_(0.9999)
            table.add_(1e-4)
            average.lerp_(table, 0.01)
            average.clamp_(-1, 1)
            drift = average.sum() - table.sum()
        """,
    )
    ddpperf.measure(script, samples_per_step=8, verify=False)


def test_straggler__script_with_five_micro_batches_on_rank_0(ddpperf: Ddpperf, tmp_path: Path) -> None:
    """Rank 0 accumulates the gradients of five micro-batches, rank 1 those of one."""
    script = write_script(
        tmp_path,
        """
        import contextlib

        import torch
        import torch.distributed as dist
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel

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
    )
    ddpperf.measure(script, samples_per_step=8, verify=False)


def test_unclear__script_that_sleeps(ddpperf: Ddpperf, tmp_path: Path) -> None:
    """A sleep of 32 ms takes about 84 % of the step; DDP and the products share the rest."""
    script = write_script(
        tmp_path,
        """
        import time

        import torch
        import torch.distributed as dist
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel

        dist.init_process_group("gloo")
        torch.manual_seed(dist.get_rank())
        model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for step in range(10**9):
            inputs = torch.randn(512, 256)
            loss: Tensor = model(inputs).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.032)
        """,
    )
    ddpperf.measure(script, samples_per_step=8, verify=False)


def test_unclear__script_with_sleeping_optimizer(ddpperf: Ddpperf, tmp_path: Path) -> None:
    """The optimizer sleeps for 25 ms before it updates the small model, whose batches come from a fast loader."""
    script = write_script(
        tmp_path,
        """
        import time

        import torch
        import torch.distributed as dist
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel
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
    )
    ddpperf.measure(script, samples_per_step=8, verify=False)
