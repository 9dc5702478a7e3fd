"""Files that reports are written to: a failure names its option, and a document is whole or not there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from pytest_ddpperf.baselines.files import require_writable, require_writable_folder, write_file
from pytest_ddpperf.errors import SettingError

_HEAD = 1024  # bytes of a file that tell whether it is JSON


@contextmanager
def _writing(path: Path, option: str) -> Iterator[None]:
    """Within, a failure to write a file is a SettingError, which names its option."""
    try:
        yield
    except OSError as error:
        why = "its folder is a file" if isinstance(error, FileExistsError) else error.strerror or error
        raise SettingError(f"{option}: {path} cannot be written: {why}; name another file") from None


@contextmanager
def writing_into(folder: Path, option: str, what: str) -> Iterator[None]:
    """Within, a failure to write into a folder is a SettingError, which says what was to be written there."""
    try:
        yield
    except OSError as error:
        raise SettingError(
            f"{option}={folder}: {what} cannot be written there: {error.strerror or error}; make it writable, or name "
            "another folder"
        ) from None


def ensure_folder(folder: Path, option: str, what: str) -> None:
    """Makes sure, before anything is measured, that files can be written into a folder: SettingError if not."""
    with writing_into(folder, option, what):
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(0, "it is a file")
        require_writable_folder(folder)


def ensure_text(path: Path, option: str) -> None:
    """Makes sure, before anything is measured, that a text can be written there: SettingError if not."""
    with _writing(path, option):
        require_writable(path)


def ensure_writable(path: Path, option: str) -> None:
    """Makes sure, as ``ensure_text`` does, that results can be written there.

    They replace nothing but JSON: an option without a value takes the test file behind it for one.
    """
    ensure_text(path, option)
    special = path.parts[1:2] in {("dev",), ("proc",)}  # standard output may be a log that has begun
    with _writing(path, option):
        if special or not path.is_file() or not path.stat().st_size:
            return
        with path.open("rb") as file:
            if not file.read(_HEAD).lstrip().startswith((b"{", b"[")):
                raise OSError(0, "it holds something else than JSON")


def write_text(path: Path, text: str, option: str, *, append: bool = False) -> None:
    """Writes a text, as ``write`` does a document; ``append``: behind what the file has."""
    with _writing(path, option):
        path.parent.mkdir(parents=True, exist_ok=True)
        if append:
            with path.open("a", encoding="utf-8") as file:
                file.write(text)
        else:
            write_file(path, text)


def write(path: Path, document: dict[str, Any], option: str) -> None:
    """Writes a document, whole or not at all, in a folder that is made if need be; SettingError if that fails.

    ``-`` is standard output, and devices and pipes are written to, as ``baselines.files.write_file`` does it.
    """
    ensure_writable(path, option)
    write_text(path, document_text(document), option)


def document_text(document: Mapping[str, Any]) -> str:
    """Returns the text of a document: a line for each field, and for each item of its lists."""

    def flat(value: Any) -> str:
        return msgspec.json.encode(value, order="sorted").decode()

    def text(value: Any) -> str:
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return "[\n" + ",\n".join(map(flat, value)) + "\n]"
        return flat(value)

    return "{\n" + ",\n".join(f"{flat(name)}: {text(document[name])}" for name in sorted(document)) + "\n}\n"
