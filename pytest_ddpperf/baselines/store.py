"""The folder of baselines: finds the record that a run is compared with, and merges new records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_ddpperf.baselines import fingerprint
from pytest_ddpperf.baselines.codec import BASELINE, BaselineFile, decode, encode
from pytest_ddpperf.baselines.files import locked, remove_drafts, require_writable_folder, saving, write_file
from pytest_ddpperf.baselines.jsonfile import read_text
from pytest_ddpperf.errors import BaselineError, SettingError
from pytest_ddpperf.metrics.findings import busy_baseline, thin_baseline
from pytest_ddpperf.records.measurement import Environment, Measurement
from pytest_ddpperf.records.results import BaselineRecord, Provenance, Result, StoredBaseline, record_of
from pytest_ddpperf.settings import DEFAULT_SET

_MAX_LENGTH = 100  # characters of a name; file systems take 255, and paths have their own limits
_MODULE = re.compile(r"[A-Za-z0-9_-]+(?:/[A-Za-z0-9_-]+)*\.py")
_TEST = re.compile(r"\w+(?:::\w+)*(?:\[[A-Za-z0-9._-]+\])?", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedRecord:
    """A record that was saved (``new``), and the record that it replaced (``old``; None if there was none)."""

    file: Path
    old: BaselineRecord | None
    new: BaselineRecord


class Store:
    """One set of baselines: ``<root>/<environment key>/<module>/<test>.json``, other sets below ``<root>/@<name>/``."""

    def __init__(self, root: Path, name: str = DEFAULT_SET) -> None:
        self.folder = root if name == DEFAULT_SET else root / f"@{name}"
        self._name = name

    def file(self, test: str, environment: Environment) -> Path:
        """Returns the path of a test's baseline file, which may not exist; ``test`` is a node id."""
        return self._file(test, fingerprint.environment_key(environment))

    def _file(self, test: str, key: str) -> Path:
        return self.folder / key / module_folder(test) / test_file(test)

    def find(self, test: str, name: str, environment: Environment) -> StoredBaseline:
        """Returns the baseline of a benchmark in ``environment``, or else in the most similar environment."""
        own, mine = fingerprint.environment_key(environment), self.own(test, name, environment)
        recorded = () if mine is None else fingerprint.recorded_differences(mine.environment, environment)
        if mine is not None and mine.counts is not None:
            return StoredBaseline(record=mine, origin=own, counted=mine, recorded_differ=recorded)
        others = [
            (fingerprint.differences(record.environment, environment), key, record)
            for key in self._keys()
            if key != own
            for record in self._records(test, key)
            if record.name == name and record.environment.simulated == environment.simulated
        ]
        nearest = _nearest_counted([record for _, _, record in others if record.counts is not None], environment)
        if mine is not None:
            return replace(nearest, record=mine, origin=own, recorded_differ=recorded)
        timed = [other for other in others if other[2].timed]
        if not timed:
            what = "no baseline of times" if others else "no baseline"
            return replace(nearest, origin=f"{what} in {_told(self.folder)}")
        differs, key, record = min(timed, key=lambda other: (len(other[0]), other[1]))
        recorded = fingerprint.recorded_differences(record.environment, environment)
        return replace(nearest, record=record, origin=key, differs=differs, recorded_differ=recorded)

    def own(self, test: str, name: str, environment: Environment) -> BaselineRecord | None:
        """Returns the record of a benchmark in exactly this environment; None if there is none."""
        records = self._records(test, fingerprint.environment_key(environment))
        return next((record for record in records if record.name == name), None)

    def records(self, test: str) -> tuple[BaselineRecord, ...]:
        """Returns all records of a test, of all environments."""
        return tuple(record for key in self._keys() for record in self._records(test, key))

    def files(self) -> tuple[Path, ...]:
        """Returns all baseline files of this set, in the order of their paths."""
        return tuple(file for key in self._keys() for file in sorted((self.folder / key).glob("*/[!.]*.json")))

    def read(self, file: Path) -> BaselineFile:
        """Returns the content of one file of this set; raises BaselineError if there is no such file."""
        content = self._read(file)
        if content is None:
            raise BaselineError(f"baseline file {file} does not exist; pytest --ddpperf-save writes baselines")
        return content

    def remove(self, test: str, name: str, environment: Environment) -> bool:
        """Removes the record of a benchmark; returns whether there was one."""
        file = self.file(test, environment)
        if self.own(test, name, environment) is None:
            return False
        with locked(self.folder), saving(file):
            content = self.read(file)
            kept = tuple(record for record in content.records if record.name != name)
            if kept:
                write_file(file, encode(replace(content, records=kept), file))
            else:
                file.unlink()
        return True

    def save(self, test: str, records: Sequence[BaselineRecord]) -> tuple[SavedRecord, ...]:
        """Adds records to a test's stored records; each replaces a stored record of the same name and environment.

        Processes may save at the same time: nothing is lost, and no reader sees half a file.
        """
        groups: dict[Path, dict[str, BaselineRecord]] = {}
        for record in records:
            group = groups.setdefault(self.file(test, record.environment), {})
            if record.name in group:
                raise BaselineError(f"{test}: two benchmarks are named {record.name!r}; give them different names")
            group[record.name] = record
        saved: list[SavedRecord] = []
        # One lock for all files: where folders cannot be locked, all locks are the same one of this user.
        with locked(self.folder):
            # All are read and rendered before the first is written: an error leaves all files unchanged.
            texts = {}
            for file in sorted(groups):
                content = self._read(file)
                before = {record.name: record for record in content.records} if content else {}
                after = sorted((before | groups[file]).items())
                texts[file] = encode(BaselineFile(test=test, records=tuple(record for _, record in after)), file)
                saved += [SavedRecord(file=file, old=before.get(name), new=new) for name, new in groups[file].items()]
            for file, text in texts.items():
                with saving(file):
                    file.parent.mkdir(parents=True, exist_ok=True)
                    remove_drafts(file)
                    write_file(file, text)
        return tuple(saved)

    def ensure_there(self) -> None:
        """Ensures that a named set exists, because with a misspelt name every benchmark would pass as new."""
        if self._name == DEFAULT_SET or self.folder.is_dir():
            return
        folder = self.folder.parent
        known = sorted(path.name[1:] for path in folder.glob("@*") if path.is_dir())
        there = f"give one of {', '.join(known)}" if known else "--ddpperf-save=NAME writes one"
        raise SettingError(f"--ddpperf-baseline-set={self._name}: {folder} has no set of this name; {there}")

    def ensure_writable(self) -> None:
        """Ensures, before anything is measured, that baselines can be saved here; leaves nothing behind."""
        with saving(self.folder):
            require_writable_folder(self.folder)

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
        text = read_text(file, BASELINE)
        if text is None:
            return None
        content, key = decode(text, file), file.parent.parent.name
        if (module_folder(content.test), test_file(content.test)) != (file.parent.name, file.name):
            place = self._file(content.test, key)
            raise BaselineError(
                f"baseline file {file}: field test is {content.test}, so the file belongs at {place}: the file was "
                "moved or copied, or the test was renamed; move the file there, or delete it and use --ddpperf-save"
            )
        for i, record in enumerate(content.records):
            true_key = fingerprint.environment_key(record.environment)
            if true_key != key:
                where = f"field records[{i}].environment is {true_key}, but the file is in the folder of {key}"
                cure = "the file was moved or copied; move it back, or delete it and run with --ddpperf-save"
                raise BaselineError(f"baseline file {file}: {where}: {cure}")
        return content


def _told(folder: Path) -> str:
    """Returns the folder's relative path, or only its name, because an absolute path may contain a user's name."""
    with suppress(OSError, ValueError):  # the current folder is gone, or does not hold it
        return str(folder.absolute().relative_to(Path.cwd()))
    return f".../{folder.name}"


def _nearest_counted(records: Sequence[BaselineRecord], environment: Environment) -> StoredBaseline:
    """Returns the record whose counts are most comparable with counts in ``environment``; the newest of several."""
    by_likeness = sorted(records, key=lambda record: len(fingerprint.differences(record.environment, environment)))
    ranked = [
        StoredBaseline(
            record=None,
            origin=fingerprint.environment_key(record.environment),
            counted=record,
            counted_differs=fingerprint.counted_differences(record.environment, environment),
            kernels_differ=fingerprint.kernel_differences(record.environment, environment),
        )
        for record in sorted(by_likeness, key=lambda record: record.counts_from.date, reverse=True)
    ]
    return min(
        ranked,
        key=lambda stored: (len(stored.counted_differs), len(stored.kernels_differ)),
        default=StoredBaseline(record=None, origin=""),
    )


def module_folder(nodeid: str) -> str:
    """Returns the folder's name for a test's module: ``perf_tests/test_a.py::test_b`` gives ``perf_tests.test_a``."""
    module = nodeid.partition("::")[0]
    return _named(module.removesuffix(".py").replace("/", "."), whole=module, lossless=_MODULE.fullmatch(module))


def test_file(nodeid: str) -> str:
    """Returns a test's file name, without module: ``...::TestC::test_d[x-1]`` gives ``TestC.test_d-x-1.json``."""
    test = nodeid.partition("::")[2]
    slug = test.replace("::", ".").replace("[", "-").removesuffix("]")
    return _named(slug, whole=test, lossless=_TEST.fullmatch(test)) + ".json"


def _named(slug: str, *, whole: str, lossless: re.Match[str] | None) -> str:
    """Returns a safe file name from ``slug``, the short form of ``whole``.

    If the slug is too long, or if ``lossless`` is None (other texts may have this slug), a hash of ``whole`` is added.
    """
    if lossless and len(slug) <= _MAX_LENGTH:
        return slug
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", slug).strip(".-")[:_MAX_LENGTH]
    return f"{safe}~{fingerprint.digest(whole)}"


def warned(result: Result) -> Result:
    """Returns a result that was saved as a baseline, with warnings if its launches are few or the machine was busy."""
    measured = result.measurement
    warnings = thin_baseline(measured), busy_baseline(measured)
    return replace(result, findings=(*result.findings, *filter(None, warnings)))


def baseline_record(measured: Measurement, now: Provenance, old: BaselineRecord | None) -> BaselineRecord:
    """Returns the record to store in place of ``old``; it keeps old times or counts that the measurement lacks."""
    new = record_of(measured, now)
    if old is None or fingerprint.training_differences(old, measured.strategy, measured.recipe):
        return new
    timed, counted = (
        tuple(series for series in old.series if (series.scale == "exact") is exact) for exact in (False, True)
    )
    if not measured.launches:
        return replace(old, series=(*timed, *measured.series), counts=measured.counts, counted=now)
    if measured.counts is None and old.counts is not None:
        return replace(new, series=(*measured.series, *counted), counts=old.counts, counted=old.counts_from)
    return new
