"""A Sphinx extension: writes settings, commands, hooks and public records into the docs, from their declarations.

A page asks for a part with a comment, ``<!-- generated: settings -->`` or ``<!-- generated: record Result -->``. The
comment stays in the source, so the source holds no copy that could go stale.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest_ddpperf
from pytest_ddpperf.cli.command import COMMANDS, Command
from pytest_ddpperf.metrics.table import Metric
from pytest_ddpperf.parsers import written
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import Launch, RankLaunch
from pytest_ddpperf.records.measurement import Measurement, MetricRules, Series
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.settings import KNOBS, Knob, Settings

if TYPE_CHECKING:
    from sphinx.application import Sphinx

WIDTH = 100  # columns of a command's help
UNSET = ("auto", "none", "all")
"""Words by which settings call a default that is None in the code."""
RECORDS: Mapping[str, type[Any]] = {
    record.__name__: record
    for record in (Measurement, Launch, RankLaunch, Series, Metric, MetricRules, Result, Comparison, Finding)
}
"""What hooks give and are given."""
HOOKS: Mapping[str, ast.FunctionDef] = {
    node.name: node
    for node in ast.parse((Path(pytest_ddpperf.__file__).parent / "hookspecs.py").read_text()).body
    if isinstance(node, ast.FunctionDef)
}
_PLACE = re.compile(r"<!-- generated: ([a-z]+)(?: (\w+))? -->")
_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises):$", re.MULTILINE)
_ENTRY = re.compile(r"^(\w+): ", re.MULTILINE)


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


def hook_text(name: str) -> str:
    """One hook: its signature, what it does, its arguments and what it returns."""
    node = HOOKS[name]
    assert node.returns is not None  # noqa: S101 - the hooks are typed
    summary, sections = docstring_parts(ast.get_docstring(node) or "")
    signature = f"{name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns)}"
    arguments = [f"- `{argument}`: {text}" for argument, text in entries(sections.get("Args", "")).items()]
    returned = [f"Returns: {_joined(sections['Returns'])}"] if "Returns" in sections else []
    return "\n\n".join(
        [f"```text\n{signature}\n```", summary, *(["\n".join(arguments)] if arguments else []), *returned]
    )


def record_table(name: str) -> str:
    """One row for each documented attribute of a record: its name, its type and its meaning."""
    rows = [
        f"| `{attribute}` | `{kind.replace('|', chr(92) + '|')}` | {text} |"
        for attribute, (kind, text) in attributes(RECORDS[name]).items()
    ]
    return "\n".join(["| attribute | type | meaning |", "|---|---|---|", *rows])


def attributes(record: type[Any]) -> dict[str, tuple[str, str]]:
    """The attributes that a record and its bases document, the bases' first: type and meaning of each.

    A field that nobody can give, such as a cache, is left out. A name that the record does not have is a KeyError.
    """
    documented = {
        name: text
        for base in reversed(record.__mro__)
        for name, text in entries(docstring_parts(base.__doc__ or "")[1].get("Attributes", "")).items()
    }
    types = {field.name: str(field.type) for field in dataclasses.fields(record)}
    types |= {
        name: value.fget.__annotations__["return"]
        for name, value in inspect.getmembers(record, lambda value: isinstance(value, property))
    }
    private = {field.name for field in dataclasses.fields(record) if not field.init}
    return {name: (types[name], text) for name, text in documented.items() if name not in private}


def docstring_parts(text: str) -> tuple[str, dict[str, str]]:
    """A docstring's text, and its sections by name."""
    summary, *rest = _SECTION.split(inspect.cleandoc(text))
    return summary.strip(), dict(zip(rest[::2], map(_dedented, rest[1::2]), strict=True))


def entries(section: str) -> dict[str, str]:
    """The entries of a docstring's section: text by name."""
    _, *rest = _ENTRY.split(section)
    return {name: _joined(text) for name, text in zip(rest[::2], rest[1::2], strict=True)}


PARTS: Mapping[str, Callable[..., str]] = {
    "settings": settings_table,
    "commands": commands_text,
    "hook": hook_text,
    "record": record_table,
}


def setup(app: Sphinx) -> dict[str, bool]:
    """Have Sphinx fill in what pages ask for."""
    app.connect("source-read", _fill_in)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _fill_in(_app: Sphinx, _page: str, source: list[str]) -> None:
    """Put what is generated in place of the comments of a page."""
    source[0] = _PLACE.sub(lambda place: PARTS[place[1]](*filter(None, [place[2]])), source[0])


def _dedented(section: str) -> str:
    """A section of a docstring without its indentation and what follows it."""
    return inspect.cleandoc(section.partition("\n\n")[0].strip("\n"))


def _joined(text: str) -> str:
    """A text in one line."""
    return " ".join(text.split())


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
