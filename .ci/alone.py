"""Makes a virtual environment with a wheel and what it declares alone, out of what is installed here: ``WHEEL FOLDER``.

Packages are linked and not installed again, because torch takes a minute. What the wheel needs without declaring it is
missing there.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

from packaging.metadata import parse_email
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

_NOT_LINKED = {"..", "__pycache__"}


def declared(requirements: list[str], found: set[str]) -> set[str]:
    """The names of the packages that are required, and of those that these require."""
    for requirement in map(Requirement, requirements):
        needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if needed and requirement.name.lower() not in found:
            found.add(requirement.name.lower())
            declared(distribution(requirement.name).requires or [], found)
    return found


def requirements_of(wheel: Path) -> list[str]:
    """What the metadata of a wheel require."""
    name, version, _, _ = parse_wheel_filename(wheel.name)
    with ZipFile(wheel) as archive:
        metadata, _ = parse_email(archive.read(f"{name.replace('-', '_')}-{version}.dist-info/METADATA"))
    return metadata["requires_dist"]


def main() -> None:
    """Makes the environment."""
    wheel, folder = map(Path, sys.argv[1:])
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in declared(requirements_of(wheel), set()):
        files = distribution(name)
        for top in {file.parts[0] for file in files.files or () if file.parts[0] not in _NOT_LINKED}:
            if not (packages / top).exists():
                (packages / top).symlink_to(str(files.locate_file(top)))
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(folder / "bin" / "python"),
        "install",
        "--quiet",
        "--no-deps",
    ]
    subprocess.run([*install, str(wheel)], check=True)


if __name__ == "__main__":
    main()
