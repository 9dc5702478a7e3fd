"""ddpperf completion: what a shell is told to complete."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_ddpperf.cli.command import COMMANDS, main
from pytest_ddpperf.cli.completion import SHELLS


def completed(script: str, *words: str) -> list[str]:
    """What bash offers for the last of these words."""
    place = f"COMP_WORDS=({' '.join(map(repr, words))}); COMP_CWORD={len(words) - 1}; COMP_LINE={' '.join(words)!r}"
    ask = f"{script}\n{place}; COMP_POINT=${{#COMP_LINE}}\n_shtab_ddpperf; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str]) -> str:
    pytest.importorskip("shtab")
    assert main(["completion", "bash"]) == 0
    return capsys.readouterr().out


def test_bash_completes_commands_options_and_choices(script: str) -> None:
    assert completed(script, "ddpperf", "") == [command.name for command in COMMANDS]
    assert completed(script, "ddpperf", "li") == ["list"]
    assert completed(script, "ddpperf", "show", "--ba") == ["--baselines"]
    assert completed(script, "ddpperf", "init", "--ci", "gi") == ["github", "gitlab"]


def test_bash_completes_paths(script: str, pytester: pytest.Pytester) -> None:
    pytester.mkdir("baselines")
    pytester.makefile(".json", run="{}")
    assert completed(script, "ddpperf", "list", "--baselines", "ba") == ["baselines"]
    assert completed(script, "ddpperf", "report", "ru") == ["run.json"]


def test_the_script_makes_itself_known_to_bash(script: str) -> None:
    done = subprocess.run(["bash", "-c", f"{script}\ncomplete -p ddpperf"], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "ddpperf"


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_has_a_script_with_all_commands(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert [command.name for command in COMMANDS if command.name not in out] == []


def test_the_package_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)  # as if it were not installed
    assert main(["completion", "bash"]) == 2
    assert capsys.readouterr().err == (
        "ddpperf: error: ddpperf completion needs the package shtab: pip install shtab\n"
    )
