"""Writes settings, commands, hooks, their examples and public records into the pages, from their declarations.

``python docs/reference_tables.py`` writes what stands between ``<!-- generated: settings -->``, or
``<!-- generated: record Result -->``, and the end that follows. A test compares the pages with the declarations.
Declarations have no page to read on, and no example of what few users need: both are here.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest_ddpperf
from pytest_ddpperf.cli.command import COMMANDS
from pytest_ddpperf.metrics.table import Metric
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import Launch, RankLaunch
from pytest_ddpperf.records.measurement import Measurement, MetricRules, Series
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.reports.formats.kinds import KINDS
from pytest_ddpperf.settings import KNOBS, Knob

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
EXAMPLE_TEXT = (Path(__file__).parents[1] / "examples" / "ddpperf_extras" / "ddpperf_extras.py").read_text("utf-8")
EXAMPLE = ast.parse(EXAMPLE_TEXT)
MORE: Mapping[str, tuple[str, str]] = {  # of each setting a value, if its declaration has no example, and a page
    "world_size": ("", "ranks"),
    "backend": ("gloo", "ranks"),
    "device": ("", "ranks"),
    "cpu_binding": ("cores", "ranks"),
    "memory_limit": ("2GiB", "comparing"),
    "env": ('{"NCCL_ALGO": "Ring"}', "comparing"),
    "mesh": ("dp=2,tp=2", "writing-benchmarks"),
    "multi_node": ("off", "nodes"),
    "rendezvous_dir": ("/shared/rendezvous", "nodes"),
    "gpu_lock_timeout": ("off", "ranks"),
    "preload": ("auto,transformers", "ranks"),
    "timeout": ("", "ranks"),
    "steps": ("100", "metrics"),
    "warmup": ("10", "metrics"),
    "launches": ("12", "how-it-decides"),
    "max_time": ("", "how-it-decides"),
    "budget": ("", "how-it-decides"),
    "quick": ("", "how-it-decides"),
    "interleave": ("true", "against"),
    "communication": ("true", "metrics"),
    "profile": ("", "traces"),
    "profile_on": ("regression", "traces"),
    "profile_steps": ("3", "traces"),
    "profile_warmup": ("5", "traces"),
    "verify": ("false", "correctness"),
    "counts": ("", "counts"),
    "precision": ('"bf16"', "writing-benchmarks"),
    "accumulation_steps": ("4", "writing-benchmarks"),
    "no_sync": ("False", "writing-benchmarks"),
    "clip_grad_norm": ("1.0", "writing-benchmarks"),
    "clip_steps": ('"warmup"', "writing-benchmarks"),
    "lr_warmup_steps": ("100", "writing-benchmarks"),
    "compile": ('"model"', "writing-benchmarks"),
    "compile_backend": ('"eager"', "writing-benchmarks"),
    "activation_checkpointing": ("True", "writing-benchmarks"),
    "cudnn_benchmark": ("True", "writing-benchmarks"),
    "loader": ('"workers=4,pin_memory=true"', "writing-benchmarks"),
    "tolerance": ("", "how-it-decides"),
    "must_detect": ("5%", "how-it-decides"),
    "fail_on": ("", "ci"),
    "require_baseline": ("", "ci"),
    "accept": ('{"step_time": "+20%", "collective_calls": "+2"}', "baselines"),
    "reason": ('"exact attention"', "baselines"),
    "allow": ("'perf/test_a.py::test_step step_time'", "baselines"),
    "baseline_dir": ("perf/baselines", "baselines"),
    "baseline_set": ("h100", "baselines"),
    "save": ("", "baselines"),
    "force_save": ("", "baselines"),
    "recheck": ("fetch", "how-it-decides"),
    "gross": ("0.3", "how-it-decides"),
    "against": ("", "against"),
    "against_python": (".venv-new/bin/python", "against"),
    "against_setup": ("'pip install .'", "against"),
    "against_tests": ("", "against"),
    "network": ('"pcie-ethernet100"', "planning"),
    "accelerator": ('"h100"', "planning"),
    "ranks_per_node": ("4", "planning"),
    "report": ("", "reports"),
    "junit_properties": ("false", "reports"),
    "history": ("history.sqlite", "over-time"),
}
COMMAND_PAGES: Mapping[str, str] = {
    "init": "getting-started",
    "list": "baselines",
    "show": "baselines",
    "report": "reports",
    "compare": "reports",
    "schema": "reports",
    "trend": "over-time",
    "history": "over-time",
    "calibrate": "over-time",
    "network": "network",
    "simulate": "planning",
    "advise": "planning",
    "trace": "traces",
    "bisect": "bisect",
}
_GROUPS: Mapping[str, Callable[[Knob], bool]] = {
    "Options that most users need": lambda knob: knob.example is not None,
    "Other options": lambda knob: knob.given == "option" and knob.example is None,
    "Arguments of the marker and of calls": lambda knob: knob.given == "call",
    "Settings of the ini file": lambda knob: knob.given == "ini",
}
_PLACE = re.compile(
    r"(?P<begin><!-- generated: (?P<kind>[a-z]+)(?: (?P<name>\w+))? -->).*?(?P<end><!-- end of what is generated -->)",
    re.DOTALL,
)
_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises):$", re.MULTILINE)
_ENTRY = re.compile(r"^(\w+): ", re.MULTILINE)


def settings_list() -> str:
    """A line for each setting, by group: how it is given, its default, its meaning, and where to read on."""
    return "\n\n".join(
        "\n".join([f"### {title}", "", *map(setting_line, filter(belongs, KNOBS.values()))])
        for title, belongs in _GROUPS.items()
    )


def setting_line(knob: Knob) -> str:
    """Returns one setting, given as an example."""
    value, page = MORE[knob.name]
    form = {"option": f"{knob.option}={value}", "ini": f"{knob.ini} = {value}", "call": f"{knob.name}={value}"}
    given = knob.example or (form[knob.given] if value else knob.option)
    notes = [f"`{knob.default_text}`"] * bool(knob.default_text) + ["session"] * (not knob.per_test)
    default = f" ({', '.join(notes)})" if notes else ""
    return f"- [`{given}`]({page}.md){default}: {knob.help}.".replace("%%", "%")


def commands_list() -> str:
    """Returns a line for each subcommand of ``ddpperf``, and where to read on."""
    rows = ((name, text, COMMAND_PAGES[name]) for name, (text, _) in COMMANDS.items())
    return "\n".join(f"- [`ddpperf {name}`]({page}.md): {text}." for name, text, page in rows)


def kinds_table() -> str:
    """One row for each kind of file that results are written as."""
    rows = [f"| `{name}` | {kind.help} |" for name, kind in KINDS.items()]
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
    """A function of the example plugin."""
    (node,) = (node for node in EXAMPLE.body if getattr(node, "name", "") == name)
    return "\n".join(["```python", *EXAMPLE_TEXT.splitlines()[node.lineno - 1 : node.end_lineno], "```"])


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
    "settings": settings_list,
    "commands": commands_list,
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


if __name__ == "__main__":
    write()
