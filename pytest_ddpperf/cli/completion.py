"""``ddpperf completion``: what lets a shell complete the command's words."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_ddpperf.errors import SettingError

SHELLS = ("bash", "zsh", "tcsh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what ``ddpperf completion`` takes."""
    parser.add_argument(
        "shell",
        choices=SHELLS,
        help='of bash and zsh, put into its start-up file: eval "$(ddpperf completion bash)"; '
        "of tcsh, write the output to a file, and let the start-up file source that",
    )


def run(options: argparse.Namespace, make_parser: Callable[[], argparse.ArgumentParser]) -> int:
    """Prints the script for a shell; SettingError if the package that writes it is not installed."""
    try:
        shtab: Any = importlib.import_module("shtab")
    except ModuleNotFoundError:
        raise SettingError("ddpperf completion needs the package shtab: pip install shtab") from None
    parser = make_parser()
    _complete_paths(parser, shtab)
    print(shtab.complete(parser, options.shell))
    return 0


def _complete_paths(parser: argparse.ArgumentParser, shtab: Any) -> None:
    """Lets arguments that are paths be completed by what is on disk."""
    for action in parser._actions:  # noqa: SLF001 - there is no public way
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for subparser in action.choices.values():
                _complete_paths(subparser, shtab)
        elif action.type is Path or "FILE" in str(action.metavar):
            vars(action)["complete"] = shtab.DIRECTORY if action.metavar == "DIR" else shtab.FILE
