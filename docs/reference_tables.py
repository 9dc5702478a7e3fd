"""A Sphinx extension: writes the settings and the commands of ``ddpperf`` into the docs, from their declarations.

A page asks for a part with a comment, ``<!-- generated: settings -->``. The comment stays in the source, so the source
holds no copy that could go stale.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from pytest_ddpperf.cli.command import COMMANDS, Command
from pytest_ddpperf.parsers import written
from pytest_ddpperf.settings import KNOBS, Knob, Settings

if TYPE_CHECKING:
    from sphinx.application import Sphinx

WIDTH = 100  # columns of a command's help
UNSET = ("auto", "none", "all")
"""Words by which settings call a default that is None in the code."""
_PLACE = re.compile(r"<!-- generated: ([a-z]+) -->")


def default_text(knob: Knob) -> str:
    """The default as a user would give it; empty where there is no word for it."""
    value = getattr(Settings(), knob.name)
    if value is None:
        return next((word for word in UNSET if _parsed(knob, word) is None), "")
    return _members_text(value) if isinstance(value, frozenset) else written(value)


def settings_table() -> str:
    """One row for each setting: its option, its default, what it means, and where it can be given."""
    rows = [
        f"| `{knob.option}` | {f'`{default_text(knob)}`' if default_text(knob) else ''} "
        f"| {knob.help.replace('%%', '%')} | {'test' if knob.per_test else 'session'} |"
        for knob in KNOBS.values()
    ]
    return "\n".join(["| option | default | meaning | for |", "|---|---|---|---|", *rows])


def commands_text() -> str:
    """The help of each subcommand of ``ddpperf``, as argparse writes it."""
    return "\n\n".join(
        f"### ddpperf {name}\n\n```text\n{text}```" for name, text in ((row.name, _help(row)) for row in COMMANDS)
    )


PARTS: Mapping[str, Callable[[], str]] = {"settings": settings_table, "commands": commands_text}


def setup(app: Sphinx) -> dict[str, bool]:
    """Have Sphinx fill in what pages ask for."""
    app.connect("source-read", _fill_in)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _fill_in(_app: Sphinx, _page: str, source: list[str]) -> None:
    """Put what is generated in place of the comments of a page."""
    source[0] = _PLACE.sub(lambda place: PARTS[place[1]](), source[0])


def _members_text(members: frozenset[Enum]) -> str:
    """The members of an enumeration, in the order of their declaration."""
    declared = type(next(iter(members)))
    return ",".join(member.value for member in declared if member in members)


def _parsed(knob: Knob, word: str) -> object:
    """What a knob makes of a word; the word itself where the knob refuses it."""
    try:
        return knob.parse(word)
    except ValueError:
        return word


def _help(row: Command) -> str:
    """The help of one subcommand."""
    formatter = partial(argparse.HelpFormatter, width=WIDTH, max_help_position=28)
    parser = argparse.ArgumentParser(prog=f"ddpperf {row.name}", description=row.help, formatter_class=formatter)
    row.add_arguments(parser)
    return parser.format_help()
