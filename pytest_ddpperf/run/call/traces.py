"""The files of traces: their names, reading them, and writing merged traces and summaries next to them."""

from __future__ import annotations

import glob
import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from pytest_ddpperf.analysis.traces.clocks import align, merged_trace
from pytest_ddpperf.analysis.traces.difference import difference
from pytest_ddpperf.analysis.traces.reading import RankTrace, rank_in_name, read_trace
from pytest_ddpperf.errors import TraceError
from pytest_ddpperf.reports.files import write_text, writing
from pytest_ddpperf.reports.lines import file_stem
from pytest_ddpperf.reports.table import render
from pytest_ddpperf.reports.traces import alignment_line, difference_table, summary_table
from pytest_ddpperf.run.call.variants import Variant
from pytest_ddpperf.settings import KNOBS
from pytest_ddpperf.training.jobs import rank_file

MOST_BYTES = 2_000_000_000  # of a trace that is read, unpacked
MOST_CHANGES = 20  # that are shown, unless more are asked for
NamedFiles: TypeAlias = "tuple[str, list[Path]]"
"""The name of a benchmark, and the files with its traces."""


def file_name(test: str, variant: Variant) -> str:
    """Returns the prefix of the names of a benchmark's trace files."""
    side = ".reference" * variant.of_reference
    ranks = f" w{variant.world_size}"
    stem = file_stem(f"{test}.{variant.name.removesuffix(ranks)}.{ranks.strip()}{side}")
    return stem if stem.endswith(side) else stem + side


def write_beside(folder: Path, name: str, ranks: int, beside: str = "") -> list[str]:
    """Merges ranks' traces and writes a summary; compares it with the reference's traces, if ``beside`` names them."""
    with writing(folder, KNOBS["profile"].option):
        folder.mkdir(parents=True, exist_ok=True)
        merged = folder / f"{name}_merged_trace.json"
        merged.unlink(missing_ok=True)  # of an earlier run
        try:
            told = list(_told(folder, name, ranks, beside, merged))
        except TraceError as error:
            told = [str(error)]
        (folder / f"{name}_summary.txt").write_text("\n\n".join(told) + "\n", encoding="utf-8")
    return told


def _told(folder: Path, name: str, ranks: int, beside: str, merged: Path) -> Iterator[str]:
    files, others = ([folder / rank_file(each, rank) for rank in range(ranks)] for each in (name, beside))
    there = [file for file in files if file.is_file()]
    if not there:
        raise TraceError(f"this node has no trace of {name} in {folder}; look into the same folder on other nodes")
    missing = [str(rank_in_name(file.name)) for file in files if file not in there]
    if missing:
        yield f"the traces of ranks {', '.join(missing)} are on other nodes, in a folder of the same name"
    traces = read_traces(there)
    yield merge(traces, merged, KNOBS["profile"].option)
    yield render(summary_table(name, traces))
    if beside and not missing and all(file.is_file() for file in others):
        found = difference(read_traces(others), traces)
        yield f"A: the reference; B: this checkout\n{render(difference_table(found, MOST_CHANGES))}"


def merge(traces: Sequence[RankTrace], file: Path, option: str) -> str:
    """Merges the ranks' traces into ``file``; returns how clocks were aligned, or why no file was written."""
    try:
        alignment = align(traces)
    except TraceError as error:
        return str(error)
    write_text(file, json.dumps(merged_trace(traces, alignment), separators=(",", ":")), option)
    return alignment_line(traces, alignment)


def read_traces(files: Sequence[Path]) -> list[RankTrace]:
    """Returns the traces of one benchmark in the order of the ranks; raises TraceError for a file that is no trace."""
    return sorted((read_trace(_document(file), str(file)) for file in files), key=lambda trace: trace.rank)


def _document(file: Path) -> Any:
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
            content = opened.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise TraceError(f"{file} has more than {MOST_BYTES:.3g} bytes: trace fewer steps")
        return json.loads(content.decode("utf-8", "replace"), strict=False)
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"trace {file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{file} is not a Chrome trace: {error}") from None


def groups_of(paths: Sequence[Path]) -> dict[str, list[Path]]:
    """Groups trace files by benchmark; a path is a file, a folder, or the common start of the names of several files.

    Files with names that the plugin did not give are grouped by folder. Raises TraceError if a path has no file.
    """
    groups: dict[str, list[Path]] = {}
    for path in paths:
        if path.is_dir():
            found = [file for file in sorted(path.iterdir()) if rank_in_name(file.name) is not None]
        elif path.is_file():
            found = [path]
        else:
            found = sorted(path.parent.glob(f"{glob.escape(path.name)}_rank_*_trace.json*"))
        found = [file for file in found if file.is_file()]  # nobody may write into a pipe
        if not found:
            raise TraceError(f"there is no trace at {path}: name a folder that {KNOBS['profile'].option}=DIR wrote")
        for file in found:
            ours = rank_in_name(file.name) is not None
            name = file.with_name(file.name.rpartition("_rank_")[0]) if ours else file.parent
            groups.setdefault(str(name), []).append(file)
    return groups


def pairs_of(before: Path, after: Path) -> list[tuple[NamedFiles, NamedFiles]]:
    """Pairs benchmarks at ``before`` and ``after`` that have equal names; raises TraceError if there is no pair.

    If each path has a single benchmark, these two form a pair. ``NamedFiles`` is (benchmark's name, trace files).
    """
    first, second = (
        {Path(name).name: (name, files) for name, files in groups_of([path]).items()} for path in (before, after)
    )
    if len(first) == len(second) == 1:
        return [(first.popitem()[1], second.popitem()[1])]
    common = [name for name in first if name in second]
    if not common:
        reason = f"{before} and {after} have no benchmark of the same name"
        raise TraceError(f"{reason}: name one benchmark of each folder, such as {next(iter(first.values()))[0]}")
    return [(first[name], second[name]) for name in common]
