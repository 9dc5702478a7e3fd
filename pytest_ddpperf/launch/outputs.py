"""The output of ranks, in files without a name: no crash can leave one behind."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO

LIMIT = 64 * 1024


@dataclass(frozen=True)
class RankOutput:
    """The text that a rank has printed, cut to the last 64 KiB of each stream."""

    stdout: str = ""
    stderr: str = ""


def open_file() -> IO[bytes]:
    """Open a file for one stream of one rank."""
    return tempfile.TemporaryFile(prefix="ddpperf-", buffering=0)


def read(file: IO[bytes], title: str, limit: int = LIMIT) -> str:
    """Read the last ``limit`` bytes of a stream without moving the writer's position."""
    size = os.fstat(file.fileno()).st_size
    start = max(0, size - limit)
    text = os.pread(file.fileno(), limit, start).decode(errors="replace")
    if start == 0:
        return text
    return f"[the first {start} of {size} bytes of {title} are cut here]\n{text}"


def titled(outputs: Iterable[tuple[int, RankOutput]]) -> tuple[tuple[str, str], ...]:
    """Give each stream that is not empty a title for the test's report, such as ``rank 1 stderr``."""
    return tuple(
        (f"rank {rank} {name}", text)
        for rank, output in outputs
        for name, text in (("stdout", output.stdout), ("stderr", output.stderr))
        if text.strip()
    )
