"""Lists of packages, and the changes between two of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddpperf.cli.bisect.bisector import expected_probes
from pytest_ddpperf.cli.bisect.package_search import prepared
from pytest_ddpperf.cli.bisect.packages import PackageRange, read_pins, together
from pytest_ddpperf.errors import SettingError

OLD = {"a": "a==1", "b": "b==1", "c": "c==1", "same": "same==5"}
NEW = {"a": "a==2", "b": "b==2", "d": "d[x]==3.0", "same": "same==5"}
RANGE = PackageRange(OLD, NEW, (("a",), ("b", "c"), ("d",)), ("old.txt", "new.txt"))


def test_a_list_is_read_as_pip_freeze_writes_it(tmp_path: Path) -> None:
    file = tmp_path / "old.txt"
    file.write_text(
        "# made by pip freeze\n\nSome_Lib.x==1.5\ntorch==2.13.0+cpu  # from a wheel\n-e git+ssh://host/me/project.git\n"
        'local @ file:///wheels/local-1.0-py3-none-any.whl\ndemo[fast]==1.0 ; python_version > "3.9"\n'
        "hashed==1.0 \\\n    --hash=sha256:00\npytest-ddpperf==0.1.0\n"
    )
    assert read_pins(file, "old.txt") == {
        "some-lib-x": "Some_Lib.x==1.5",
        "torch": "torch==2.13.0+cpu",
        "local": "local @ file:///wheels/local-1.0-py3-none-any.whl",
        "demo": 'demo[fast]==1.0 ; python_version > "3.9"',
        "hashed": "hashed==1.0      --hash=sha256:00",
    }


@pytest.mark.parametrize("line", ["torch>=2", "torch", "torch==2.*", "-r more.txt"])
def test_what_is_not_pinned_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "old.txt").write_text(f"numpy==2.0\n{line}\n")
    with pytest.raises(SettingError) as caught:
        read_pins(tmp_path / "old.txt", "old.txt")
    assert str(caught.value).startswith(f"--packages old.txt: line 2 is {line}: expected a pinned package, such as")


def test_a_list_that_is_not_there_and_lists_that_are_the_same_are_told(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"^--packages gone.txt: No such file or directory; write it with pip"):
        read_pins(tmp_path / "gone.txt", "gone.txt")
    with pytest.raises(SettingError, match=r"^--packages /dev/zero: this is a pipe or a device: name a file; write it"):
        read_pins(Path("/dev/zero"), "/dev/zero")
    file = tmp_path / "both.txt"
    file.write_text("torch==2.13.0\n")
    with pytest.raises(SettingError, match="both files list the same packages; name files that"):
        prepared((str(file), str(file)), "", (), base=False)


def test_a_state_has_the_changes_up_to_it_or_one_alone() -> None:
    assert dict(RANGE.pins("0")) == OLD
    assert dict(RANGE.pins("1")) == {**OLD, "a": "a==2"}
    assert dict(RANGE.pins("2")) == {"a": "a==2", "b": "b==2", "same": "same==5"}
    assert dict(RANGE.pins("3")) == NEW
    assert dict(RANGE.pins("alone 2")) == {"a": "a==1", "b": "b==2", "same": "same==5"}
    assert RANGE.changes("2") == "b 1 -> 2, c 1 -> none"
    assert RANGE.short("3") == "new.txt"
    assert RANGE.short("1") == "1 of 3 changes, up to a 1 -> 2"
    assert RANGE.parents == {"1": "0", "2": "1", "3": "2"}


@pytest.mark.parametrize("number", [1, 2, 3, 9])
def test_every_culprit_is_found_in_as_many_probes_as_halving_takes(number: int) -> None:
    names = [f"p{i}" for i in range(number)]
    for culprit in range(1, number + 1):
        found = PackageRange({}, {}, tuple((name,) for name in names), ("old", "new"))
        least = expected_probes(found)
        probes = 0
        while (state := found.next) is not None:
            found = found.answered(state, "bad" if int(state) >= culprit else "good")
            probes += 1
        assert found.suspects == (str(culprit),)
        assert probes <= least == (number - 1).bit_length()


def test_packages_that_need_each_other_s_versions_change_together() -> None:
    old = {"torch": ("2.11.0", ["triton==3.6.0", "sympy>=1.13"]), "triton": ("3.6.0", []), "sympy": ("1.13", [])}
    new = {"torch": ("2.13.0", ["triton==3.7.1", "sympy>=1.13"]), "triton": ("3.7.1", []), "sympy": ("1.14", [])}
    assert together(["sympy", "torch", "triton"], old, new) == (("sympy",), ("torch", "triton"))
    # A package that comes with another one is needed by it; extras and other systems need nothing here.
    new["torch"] = ("2.13.0", ["fresh", "triton>=3.6", 'absent; sys_platform == "win32"', 'other; extra == "x"'])
    new["fresh"] = ("1", [])
    old["torch"] = ("2.11.0", ["triton>=3.6"])
    groups = together(["fresh", "other", "sympy", "torch", "triton"], old, new)
    assert groups == (("fresh", "torch"), ("other",), ("sympy",), ("triton",))
    # Metadata that no longer counts as valid asks for nothing.
    new["torch"] = ("2.13.0", ["sympy>=1.8.*", "fresh", "triton>=3.6"])
    groups = together(["fresh", "sympy", "torch", "triton"], old, new)
    assert groups == (("fresh", "torch"), ("sympy",), ("triton",))
