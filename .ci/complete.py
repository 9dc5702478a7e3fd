"""Checks that a release has all it needs: ``FOLDER`` with one wheel and one sdist.

An sdist ships the tests, so it has to have each file of the repository that a test may read. Both have the licence.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path
from zipfile import ZipFile


def lacking(folder: Path, tracked: Iterable[str]) -> list[str]:
    """Returns what wheel and sdist in the folder lack, if the repository has these ``tracked`` files."""
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        there = {name.partition("/")[2] for name in archive.getnames()}
    with ZipFile(wheel) as archive:
        licences = [name for name in archive.namelist() if name.endswith(".dist-info/licenses/LICENSE")]
    missing = [f"{sdist.name} lacks {name}" for name in sorted({"LICENSE", *tracked} - there)]
    return missing if licences else [*missing, f"{wheel.name} lacks LICENSE"]


def main() -> None:
    """Exits with status 1 and what is missing, if anything is."""
    listed = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True, text=True).stdout
    sys.exit("\n".join(lacking(Path(sys.argv[1]), filter(None, listed.split("\0")))) or 0)


if __name__ == "__main__":
    main()
