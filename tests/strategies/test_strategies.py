"""The table of strategies, without ranks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.strategies import STRATEGIES, require_world_size, resolve


@pytest.mark.parametrize("name", ["single", "naive", "ddp"])
def test_resolve_gives_the_row_of_a_name(name: str) -> None:
    row = resolve(name)
    assert row.name == name
    assert row.description
    assert row.module == f"pytest_ddpperf.strategies.{name}"


def test_an_unknown_name_is_answered_with_the_closest_and_the_list() -> None:
    with pytest.raises(
        SettingError, match=r"strategy 'naiv' is unknown: did you mean 'naive'\? known strategies: ddp, naive, single"
    ):
        resolve("naiv")


def test_a_name_like_no_other_gets_the_list_alone() -> None:
    with pytest.raises(SettingError, match=r"strategy 'zzz' is unknown: known strategies: ddp, naive, single"):
        resolve("zzz")


def test_only_single_is_for_one_rank_alone() -> None:
    assert [row.name for row in STRATEGIES.values() if row.single_rank] == ["single"]
    for row in STRATEGIES.values():
        require_world_size(row, 1)
    require_world_size(resolve("naive"), 2)
    with pytest.raises(SettingError, match=r"'single' .* needs world size 1, but the world size is 2"):
        require_world_size(resolve("single"), 2)


def test_the_table_needs_no_torch() -> None:
    code = "import pytest_ddpperf.strategies, sys; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
