"""Options of the command line: values that a parser of settings reads, and the folder of the baselines."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_ddpperf.parsers import argument
from pytest_ddpperf.settings import KNOBS, Settings


def add_option(
    parser: argparse.ArgumentParser, name: str, parse: Callable[[object], Any], metavar: str, text: str, **more: Any
) -> None:
    """Declares an option whose value ``parse`` reads; its help is ``text``, with the default if there is one."""
    default = " (default: %(default)s)" if "default" in more else ""
    parser.add_argument(name, type=argument(parse), metavar=metavar, help=f"{text}{default}", **more)


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Declares the option for the folder of the stored baselines, which the command gets as ``folder``."""
    default = f"{KNOBS['baseline_dir'].ini} of the ini file, else {Settings().baseline_dir}"
    text = f"folder of the stored baselines (default: {default})"
    parser.add_argument("--baselines", type=Path, metavar="DIR", help=text)
