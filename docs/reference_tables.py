"""Writes settings, commands, hooks, their examples and public records into the pages, from their declarations.

``python docs/reference_tables.py`` writes what stands between ``<!-- generated: settings -->``, or
``<!-- generated: record Result -->``, and the end that follows. A test compares the pages with the declarations.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest_ddpperf
from pytest_ddpperf.cli.command import COMMANDS, Command
from pytest_ddpperf.metrics.table import Metric
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import Launch, RankLaunch
from pytest_ddpperf.records.measurement import Measurement, MetricRules, Series
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.reports.formats.kinds import KINDS
from pytest_ddpperf.settings import KNOBS

WIDTH = 100  # columns of a command's help
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
_EXAMPLES = Path(__file__).parents[1] / "examples"
_EXTRAS = _EXAMPLES / "ddpperf_extras"
EXAMPLE_TEXT = (_EXTRAS / "ddpperf_extras.py").read_text(encoding="utf-8")
EXAMPLE = ast.parse(EXAMPLE_TEXT)
PROJECT = (_EXTRAS / "pyproject.toml").read_text(encoding="utf-8").partition("\n\n")[2].partition("\n\n[tool.")[0]
_PLACE = re.compile(
    r"(?P<begin><!-- generated: (?P<kind>[a-z]+)(?: (?P<name>\w+))? -->).*?(?P<end><!-- end of what is generated -->)",
    re.DOTALL,
)
_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises):$", re.MULTILINE)
_ENTRY = re.compile(r"^(\w+): ", re.MULTILINE)


def settings_tables() -> str:
    """A table for each section: the option of each setting, its default, meaning, and where it can be given.

    A setting without an option has its name there.
    """
    lines: list[str] = []
    for knob in KNOBS.values():
        if knob.section is not None:
            title = f"### {knob.section.capitalize()}"
            lines += [*([""] if lines else []), title, "", "| option | default | meaning | for |", "|---|---|---|---|"]
        if knob.given == "command":
            continue
        default = f"`{knob.default_text}`" if knob.default_text else ""
        where = "test" if knob.per_test else "session"
        lines.append(f"| `{knob.spelled}` | {default} | {knob.help.replace('%%', '%')} | {where} |")
    return "\n".join(lines)


def commands_text() -> str:
    """The help of each subcommand of ``ddpperf``, as argparse writes it."""
    return "\n\n".join(
        f"### ddpperf {name}\n\n```text\n{text}```" for name, text in ((row.name, _help(row)) for row in COMMANDS)
    )


def kinds_table() -> str:
    """One row for each kind of file that results are written as."""
    rows = [f"| `{kind.name}` | {kind.help} |" for kind in KINDS.values()]
    return "\n".join(["| kind | what it is |", "|---|---|", *rows])


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


def example_text(name: str) -> str:
    """A function of the example plugin, its imports, its package, or the tests or conftest.py of another example."""
    if name == "package":
        return f"```toml\n{PROJECT}\n```"
    if (_EXAMPLES / name).is_dir():
        return tests_text(name)
    if (tracker := _EXAMPLES / "trackers" / f"ddpperf_{name}.py").is_file():
        return f"```python\n{tracker.read_text(encoding='utf-8').partition(chr(10) * 2)[2]}```"
    nodes = EXAMPLE.body
    chosen = [node for node in nodes if getattr(node, "name", "") == name]
    if name == "imports":
        chosen = nodes[1 : [isinstance(node, ast.FunctionDef) for node in nodes].index(True)]  # all but its docstring
    lines = EXAMPLE_TEXT.splitlines()[chosen[0].lineno - 1 : chosen[-1].end_lineno]
    return "\n".join(["```python", *lines, "```"])


def tests_text(project: str) -> str:
    """The tests of an example project, without their docstring and imports."""
    text = (_EXAMPLES / project / "test_speed.py").read_text(encoding="utf-8")
    _, *nodes = (node for node in ast.parse(text).body if not isinstance(node, ast.Import | ast.ImportFrom))
    first = min(node.lineno for node in (nodes[0], *getattr(nodes[0], "decorator_list", ())))
    return "\n".join(["```python", *text.splitlines()[first - 1 :], "```"])


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
    "settings": settings_tables,
    "commands": commands_text,
    "kinds": kinds_table,
    "hook": hook_text,
    "example": example_text,
    "record": record_table,
}


def filled_in(page: str) -> str:
    """The text of a page with all of its generated parts as the declarations are now."""
    return _PLACE.sub(_part, page)


def write() -> None:
    """Write the generated parts into the pages."""
    for file in sorted(Path(__file__).parent.rglob("*.md")):
        file.write_text(filled_in(file.read_text(encoding="utf-8")), encoding="utf-8")


def _part(place: re.Match[str]) -> str:
    kind, name = place["kind"], place["name"]
    text = PARTS[kind](*filter(None, [name]))
    return f"{place['begin']}\n\n{text}\n\n{place['end']}"


def _dedented(section: str) -> str:
    """A section of a docstring without its indentation and what follows it."""
    return inspect.cleandoc(section.partition("\n\n")[0].strip("\n"))


def _joined(text: str) -> str:
    """A text in one line."""
    return " ".join(text.split())


def _help(row: Command) -> str:
    """The help of one subcommand."""
    formatter = partial(argparse.HelpFormatter, width=WIDTH, max_help_position=28)
    parser = argparse.ArgumentParser(prog=f"ddpperf {row.name}", description=row.help, formatter_class=formatter)
    row.add_arguments(parser)
    nested = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))  # noqa: SLF001
    texts = [parser.format_help()]
    for subparser in (each for action in nested for each in action.choices.values()):
        subparser.formatter_class = formatter
        texts.append(subparser.format_help())
    return "\n".join(texts)


if __name__ == "__main__":
    write()
