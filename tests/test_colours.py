"""Colours are for terminals: whoever reads a file or asks for none gets none, by the rules of pytest."""

from __future__ import annotations

import pytest

SUITE = """
def boom(ctx):
    raise ValueError("boom")


def test_step(ddpperf):
    ddpperf.check(boom, world_size=1, device="cpu", backend="gloo", counts='only')
"""


@pytest.mark.parametrize(
    ("environment", "options", "coloured"),
    [
        ({}, (), False),  # what pytest writes to is no terminal
        ({}, ("--color=yes",), True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, (), False),
    ],
)
def test_verdicts_have_colours_if_pytest_has_them(
    inner: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    options: tuple[str, ...],
    *,
    coloured: bool,
) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "PY_COLORS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    inner.makepyfile(test_suite=SUITE)
    text = inner.runpytest("-q", *options).stdout.str()
    (row,) = [line for line in text.splitlines() if "test_step custom" in line]
    assert row.startswith("\x1b[31mtest_step custom" if coloured else "test_step custom")
    assert " broken" in row
    assert ("\x1b" in text) is coloured
