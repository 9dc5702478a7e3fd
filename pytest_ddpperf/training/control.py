"""The control step: fixed work between blocks of timed steps, which tells how fast the machine is meanwhile."""

from __future__ import annotations

import torch
import torch.distributed as dist

from pytest_ddpperf.instruments.clock import CPU_CLOCK
from pytest_ddpperf.instruments.torch_internals import meet

SIZE = 128  # rows of a matrix: the three fit into the second cache of a core
PRODUCTS = 32  # some 4 ms on a core of 2020


class ControlStep:
    """Products of matrices and a sum over all ranks, timed; the same on every machine and for every training.

    The numbers have 64 bits: autocast and the precision that a training sets for its own products leave them alone.
    Nothing is allocated in a step, and no random numbers of the training are drawn.
    """

    def __init__(self) -> None:
        generator = torch.Generator(device="cpu").manual_seed(0)
        shape = (SIZE, SIZE)
        self._left, self._right = (
            torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu") for _ in range(2)
        )
        self._product = torch.zeros(shape, dtype=torch.float64, device="cpu")
        self._sum = torch.zeros(1, dtype=torch.float64, device="cpu")
        self.seconds: tuple[float, ...] = ()  # of each control step so far, on this rank

    def run(self, steps: int, group: dist.ProcessGroup | None, _progress: float) -> None:
        """Times so many control steps between two blocks of steps; a collective, after which ranks go on together.

        They begin when all ranks have ended their block, and after a product that displaces what is in the cache.
        """
        meet(group)
        self._multiply(1)
        marks = [CPU_CLOCK.mark()]
        for _ in range(steps):
            self._multiply(PRODUCTS)
            dist.all_reduce(self._sum, group=group)
            marks.append(CPU_CLOCK.mark())
        self.seconds += CPU_CLOCK.seconds(marks)

    def _multiply(self, times: int) -> None:
        with torch.no_grad():
            for _ in range(times):
                torch.mm(self._left, self._right, out=self._product)
