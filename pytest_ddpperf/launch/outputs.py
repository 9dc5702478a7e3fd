"""What ranks print: files without a name, which no crash can leave behind."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO

LIMIT = 64 * 1024


@dataclass(frozen=True)
class RankOutput:
    """What a rank has printed; of more than 64 KiB, the end."""

    stdout: str
    stderr: str


def open_file() -> IO[bytes]:
    """A file for one stream of one rank."""
    return tempfile.TemporaryFile(prefix="ddpperf-", buffering=0)


def read(file: IO[bytes], title: str, limit: int = LIMIT) -> str:
    """The last ``limit`` bytes of a stream, behind a line that says what was cut. Does not move the writer's place."""
    size = os.fstat(file.fileno()).st_size
    start = max(0, size - limit)
    text = os.pread(file.fileno(), limit, start).decode(errors="replace")
    if start == 0:
        return text
    return f"[the first {start} of {size} bytes of {title} are cut here]\n{text}"


def titled(outputs: Iterable[tuple[int, RankOutput]]) -> tuple[tuple[str, str], ...]:
    """Title and text of what each rank printed, by rank, without what is empty."""
    return tuple(
        (f"rank {rank} {name}", text)
        for rank, output in outputs
        for name, text in (("stdout", output.stdout), ("stderr", output.stderr))
        if text.strip()
    )
