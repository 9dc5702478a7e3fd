"""How much torch.compile has compiled so far in this process."""

from __future__ import annotations

import sys


def compiled_graphs() -> int:
    """Graphs that torch.compile has captured in this process; 0 where it was never used.

    Read from torch._dynamo's own statistics, which have no public reader.
    """
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])
