"""Writes the files of reports completely or not at all. Errors name the option that gave the path."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from pytest_ddpperf.baselines.files import require_writable, require_writable_folder, write_file
from pytest_ddpperf.baselines.jsonfile import rounded
from pytest_ddpperf.errors import SettingError

# Texts, which stay as they are; numbers with more digits than a measurement holds; the end of whole ones.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+\.\d{9,}(?:[eE][-+]?\d+)?|(?<=\d)\.0(?=[,\]}\s])')
_HEAD = 1024  # bytes of a file that tell whether it is JSON


@contextmanager
def writing(place: Path, option: str) -> Iterator[None]:
    """Converts an OSError that occurs in this context to a SettingError that names ``place`` and ``option``."""
    try:
        yield
    except OSError as error:
        why = "the folder of this path is a file" if isinstance(error, FileExistsError) else error.strerror or error
        cure = "make this path writable, or name another"
        raise SettingError(f"{option}: {place} cannot be written: {why}; {cure}") from None


def ensure_folder(folder: Path, option: str) -> None:
    """Checks before the measurement that files can be written into a folder; raises SettingError if not."""
    with writing(folder, option):
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(0, "this is a file")
        require_writable_folder(folder)


def ensure_text(path: Path, option: str) -> None:
    """Checks before the measurement that a text can be written to a file; raises SettingError if not."""
    with writing(path, option):
        require_writable(path)


def ensure_writable(path: Path, option: str) -> None:
    """Checks that results can be written to a file; raises SettingError if not.

    Only JSON files may be overwritten, because an option without its value takes the next argument, often a test file.
    """
    ensure_text(path, option)
    special = path.parts[1:2] in {("dev",), ("proc",)}  # standard output may be a log that has begun
    with writing(path, option):
        if special or not path.is_file() or not path.stat().st_size:
            return
        with path.open("rb") as file:
            if not file.read(_HEAD).lstrip().startswith((b"{", b"[")):
                raise OSError(0, "the file exists and is not JSON")


def write_text(path: Path, text: str, option: str, *, append: bool = False) -> None:
    """Writes a text to a file, and creates the file's folder; raises SettingError on failure.

    The file is replaced completely or not at all. ``append``: whether to add the text to its end instead.
    """
    with writing(path, option):
        path.parent.mkdir(parents=True, exist_ok=True)
        if append:
            with path.open("a", encoding="utf-8") as file:
                file.write(text)
        else:
            write_file(path, text)


def document_text(document: Mapping[str, Any]) -> str:
    """Returns a document as text, with a line for each field and list item; floats have nine significant digits."""
    flat = msgspec.json.encode

    def text(value: Any) -> bytes:
        return b"[\n" + b",\n".join(map(flat, value)) + b"\n]" if isinstance(value, list) and value else flat(value)

    made = b",\n".join(flat(name) + b": " + text(value) for name, value in document.items())
    return _TOKEN.sub(_short, b"{\n" + made + b"\n}\n").decode()


def _short(token: re.Match[bytes]) -> bytes:
    """Shortens a number to nine significant digits, and 4.0 to 4; returns a string unchanged."""
    found = token[0]
    return found if found[:1] == b'"' else b"" if found == b".0" else repr(rounded(float(found))).encode()
