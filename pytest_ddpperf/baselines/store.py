"""The folder of baselines: finds the record that a run is compared with, and merges new ones in."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from pytest_ddpperf.baselines.codec import BaselineFile, decode, encode
from pytest_ddpperf.baselines.fields import CURE
from pytest_ddpperf.baselines.fingerprint import counted_differences, differences, environment_key, kernel_differences
from pytest_ddpperf.baselines.folder import locked, unwritable, write
from pytest_ddpperf.baselines.naming import module_folder, test_file
from pytest_ddpperf.errors import BaselineError, SettingError
from pytest_ddpperf.judge.decision import decide_count
from pytest_ddpperf.records.counts import difference_text, quantity_texts
from pytest_ddpperf.records.measurement import Environment, Series
from pytest_ddpperf.records.results import BaselineRecord, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.settings import DEFAULT_SET
from pytest_ddpperf.units import format_change, format_count, format_difference, format_value, format_values


class Store:
    """One set of baselines: ``<root>/<environment key>/<module>/<test>.json``, other sets below ``<root>/@<name>/``."""

    def __init__(self, root: Path, name: str = DEFAULT_SET) -> None:
        self.folder = root if name == DEFAULT_SET else root / f"@{name}"
        self._name = name

    def file(self, test: str, environment: Environment) -> Path:
        """Where the records of a test (a pytest node id) in an environment lie, or would lie."""
        return self._file(test, environment_key(environment))

    def _file(self, test: str, key: str) -> Path:
        return self.folder / key / module_folder(test) / test_file(test)

    def find(self, test: str, name: str, environment: Environment) -> StoredBaseline:
        """The record to compare a benchmark with.

        Args:
            test: pytest node id.
            name: the variant's name within its test.
            environment: of the run.

        Returns:
            The record of the same environment; else the nearest one of another environment (fewest differing facts,
            then the first key), with the facts that differ; else no record and the reason. And the record to hold
            counts against: that of the same environment if it has any, else the newest of those that are equally
            comparable, of the nearest machine.

        Raises:
            BaselineError: a file that might hold the record is broken.
        """
        own = environment_key(environment)
        mine = next((record for record in self._records(test, own) if record.name == name), None)
        if mine is not None and mine.counts is not None:
            return StoredBaseline(record=mine, origin=own, counted=mine)
        others = [
            (differences(record.environment, environment), key, record)
            for key in self._keys()
            if key != own
            for record in self._records(test, key)
            if record.name == name
        ]
        nearest = _nearest_counted([record for _, _, record in others if record.counts is not None], environment)
        if mine is not None:
            return replace(nearest, record=mine, origin=own)
        if not others:
            return StoredBaseline(record=None, origin=f"no baseline for {name} of {test} in {self.folder}")
        differs, key, record = min(others, key=lambda other: (len(other[0]), other[1]))
        return replace(nearest, record=record, origin=key, differs=differs)

    def records(self, test: str) -> tuple[BaselineRecord, ...]:
        """All records of a test, of all environments.

        Raises:
            BaselineError: one of its files is broken.
        """
        return tuple(record for key in self._keys() for record in self._records(test, key))

    def files(self) -> tuple[Path, ...]:
        """All baseline files of this set, in the order of their paths."""
        return tuple(file for key in self._keys() for file in sorted((self.folder / key).glob("*/[!.]*.json")))

    def read(self, file: Path) -> BaselineFile:
        """The content of one file of this set.

        Raises:
            BaselineError: it cannot be read, is broken, or belongs to another place: a moved or copied file.
        """
        content = self._read(file)
        if content is None:
            raise BaselineError(f"baseline file {file}: there is no such file")
        return content

    def save(self, test: str, records: Sequence[BaselineRecord]) -> tuple[str, ...]:
        """Stores records of a test beside its others; a record of the same name and environment is replaced.

        Processes may save at the same time: nothing is lost, and no reader sees half a file.

        Returns:
            What changed, a line for each record and one for each of its metrics.

        Raises:
            BaselineError: a file cannot be written, or what is there is broken: it is left as it is.
        """
        groups: dict[Path, list[BaselineRecord]] = {}
        for record in records:
            group = groups.setdefault(self.file(test, record.environment), [])
            if any(other.name == record.name for other in group):
                raise BaselineError(f"{test}: two benchmarks are named {record.name!r}; give each a name of its own")
            group.append(record)
        changes: list[str] = []
        with ExitStack() as locks:
            # In one order in all processes, so that they cannot wait for each other.
            for file in sorted(groups):
                locks.enter_context(locked(file.parent))
            # All are read and rendered before the first is written: an error leaves everything as it was.
            texts = {}
            for file in sorted(groups):
                old = self._read(file)
                before = {record.name: record for record in (old.records if old else ())}
                after = before | {record.name: record for record in groups[file]}
                texts[file] = encode(BaselineFile(test, tuple(after[name] for name in sorted(after))), file)
                for record in groups[file]:
                    changes += _changes(file, before.get(record.name), record)
            for file, text in texts.items():
                write(file, text)
        return tuple(changes)

    def ensure_there(self) -> None:
        """Makes sure that a set with a name exists: beside a misspelt one everything would pass as new.

        Raises:
            SettingError: there is no such set; those there are are named.
        """
        if self._name == DEFAULT_SET or self.folder.is_dir():
            return
        folder = self.folder.parent
        known = sorted(path.name[1:] for path in folder.glob("@*") if path.is_dir())
        there = f"there are {', '.join(known)}" if known else "there are no named sets"
        raise SettingError(f"--ddpperf-baseline={self._name}: no such set in {folder}; {there}")

    def ensure_writable(self) -> None:
        """Makes sure, before anything is measured, that baselines can be saved here. Leaves nothing behind.

        Raises:
            BaselineError: they cannot.
        """
        try:
            existing = next(path for path in (self.folder, *self.folder.absolute().parents) if path.exists())
            # Permission bits say little to root and on read-only file systems: only trying tells.
            with tempfile.TemporaryFile(dir=existing):
                pass
        except OSError as error:
            raise unwritable(self.folder, error) from None

    def _keys(self) -> list[str]:
        try:
            folders = [path.name for path in self.folder.iterdir() if path.is_dir()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise BaselineError(f"baselines in {self.folder} cannot be read: {error.strerror}") from None
        return sorted(name for name in folders if name[0] not in "@.")

    def _records(self, test: str, key: str) -> tuple[BaselineRecord, ...]:
        content = self._read(self._file(test, key))
        return content.records if content else ()

    def _read(self, file: Path) -> BaselineFile | None:
        """The checked content of a file; None if there is no such file."""
        try:
            text = file.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except UnicodeDecodeError:
            raise BaselineError(f"baseline file {file}: is not text in UTF-8; {CURE}") from None
        except OSError as error:
            raise BaselineError(f"baseline file {file}: cannot be read: {error.strerror}") from None
        content = decode(text, file)
        self._require_place(content, file)
        return content

    def _require_place(self, content: BaselineFile, file: Path) -> None:
        key = file.parent.parent.name
        if (module_folder(content.test), test_file(content.test)) != (file.parent.name, file.name):
            place = self._file(content.test, key)
            raise BaselineError(
                f"baseline file {file}: field test: {content.test} belongs in {place}: the file was moved or copied, "
                f"or the test renamed; move it back, or delete it and measure again with --ddpperf-save"
            )
        for i, record in enumerate(content.records):
            true_key = environment_key(record.environment)
            if true_key != key:
                raise BaselineError(
                    f"baseline file {file}: field records[{i}].environment: it is of {true_key}, not of the folder's "
                    f"{key}: the file was moved or copied; move it back, or delete it and measure again with "
                    "--ddpperf-save"
                )


def _nearest_counted(records: Sequence[BaselineRecord], environment: Environment) -> StoredBaseline:
    """Which of the records of other environments counts are held against, and what stands against it.

    The machine does not matter to counts, so of equally comparable ones the newest: others may have been left behind.
    """
    by_likeness = sorted(records, key=lambda one: len(differences(one.environment, environment)))
    ranked = [
        StoredBaseline(
            record=None,
            origin=environment_key(record.environment),
            counted=record,
            counted_differs=counted_differences(record.environment, environment),
            kernels_differ=kernel_differences(record.environment, environment),
        )
        for record in sorted(by_likeness, key=lambda one: one.counts_from.date, reverse=True)
    ]
    return min(
        ranked,
        key=lambda one: (len(one.counted_differs), len(one.kernels_differ)),
        default=StoredBaseline(record=None, origin=""),
    )


def _changes(file: Path, old: BaselineRecord | None, new: BaselineRecord) -> list[str]:
    """What a reviewer of the file needs to know: gated metrics one by one, and of the counts those that changed."""
    before = {series.metric: series for series in old.series} if old else {}
    replaced = "" if old is None else f", replacing that of {old.date}"
    gated = [(before.get(series.metric), series) for series in new.series if series.gated]
    added = sum(series.scale == "exact" and was is None for was, series in gated)
    counted = {
        series.metric: _count_change(was, series, old, new)
        for was, series in gated
        if series.scale == "exact" and was is not None
    }
    kept = sum(not change for change in counted.values())
    return [
        f"{file}: {new.name}{replaced}",
        *(
            f"  {series.metric} {counted.get(series.metric) or _change(was, series)}"
            for was, series in gated
            if series.scale != "exact" or counted.get(series.metric)
        ),
        *([f"  {format_count(added, 'count')} new"] if added else []),
        *([f"  {format_count(kept, 'count')} as before"] if kept else []),
    ]


def _count_change(was: Series, series: Series, old: BaselineRecord | None, new: BaselineRecord) -> str:
    """What became of a count; empty for nothing."""
    if was.value != series.value:
        return " -> ".join(quantity_texts(series.metric, (was.value, series.value)))
    if old is None or old.counts is None or new.counts is None:
        return ""
    if decide_count(series.metric, old.counts, new.counts) is Verdict.UNCHANGED:
        return ""
    return "; ".join(difference_text(series.metric, old.counts, new.counts))


def _change(old: Series | None, new: Series) -> str:
    if old is None or old.unit != new.unit:
        return f"new: {format_value(new.value, new.unit)}"
    if new.scale == "ratio" and old.value > 0:
        change = format_change(new.value / old.value - 1)
    else:
        change = format_difference(new.value - old.value, new.unit)
    was, now = format_values((old.value, new.value), new.unit)
    return f"{was} -> {now} ({change})"
