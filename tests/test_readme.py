"""The README is true: its examples run, its settings are the ones that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.settings import KNOBS, Settings
from pytest_ddpperf.strategies.table import STRATEGIES
from pytest_ddpperf.training.correctness.tolerances import FALL, UPDATE, tolerance

README = (Path(__file__).parents[1] / "README.md").read_text()


def example(name: str) -> str:
    (code,) = re.findall(rf"<!-- example: {name} -->\n```python\n(.*?)```", README, re.DOTALL)
    return str(code)


@pytest.mark.slow
def test_the_examples_run(inner: pytest.Pytester) -> None:
    code = "\n\n".join(
        map(example, ("workload", "trainer", "compare", "scaling", "group", "strategy", "batch size", "expect"))
    )
    inner.makepyfile(test_readme=code)
    options = ["--ddpperf-world-size=2", "--ddpperf-launches=2", "--ddpperf-steps=5", "--ddpperf-warmup=1"]
    run = inner.runpytest(*options, "--ddpperf-device=cpu", "--ddpperf-max-time=10")
    run.assert_outcomes(passed=9)


def test_the_table_of_settings_is_the_table_in_the_code() -> None:
    table = re.findall(r"^\| `(--ddpperf-[a-z-]+)` \|(.*)\|$", README, re.MULTILINE)
    assert [option for option, _ in table] == [knob.option for knob in KNOBS.values()]
    for knob, (_, row) in zip(KNOBS.values(), table, strict=True):
        default, text, where = (cell.strip() for cell in row.split(" | "))
        assert text == knob.help.replace("%%", "%")
        assert where == ("test" if knob.per_test else "session")
        shown = default.strip("`")
        if shown:
            assert knob.parse(shown) == getattr(Settings(), knob.name)


def test_the_table_of_strategies_is_the_table_in_the_code() -> None:
    table = re.findall(r"^\| `([a-z0-9_]+)` \| (.*) \| (.*) \|$", README.partition("## Strategies")[2], re.MULTILINE)
    rows = [(name, text, set(re.findall(r"`([a-z0-9_]+)`", options))) for name, text, options in table]
    assert rows[: len(STRATEGIES)] == [(row.name, row.description, set(row.options)) for row in STRATEGIES.values()]


def test_every_verdict_is_explained() -> None:
    assert set(re.findall(r"^\| `([a-z]+)` \|.*\|.*\|$", README, re.MULTILINE)) >= {
        verdict.value for verdict in Verdict
    }


def test_the_tolerances_are_those_in_the_code() -> None:
    said = README.partition("Relative errors may be")[2]
    numbers = dict(zip(("fp32", "fp16", "bf16"), map(float, re.findall(r"\d+e-\d+", said)), strict=False))
    assert numbers == {precision: tolerance(precision) for precision in numbers}
    assert tolerance("tf32") == tolerance("fp16")
    assert f"parameters {UPDATE:g}".replace("0.001", "1e-3") in said
    assert FALL == 1 / 5
