"""What ``ddpperf init`` writes: a test file, and a CI job from the template in this folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from pytest_ddpperf.cli.init.project import Project, TrainingScript
from pytest_ddpperf.reports.lines import printable

STEPS = 20  # that a launch times, where nobody knows how long a script trains
MODELS = 5  # that are named
CI_FILES: Mapping[str, Path] = MappingProxyType(
    {"github": Path(".github/workflows/performance.yml"), "gitlab": Path(".gitlab/performance.yml")}
)
_HEAD = '"""Is training as fast as it was? Written by ddpperf init: change it as you like."""\n'
_SCRIPT = """
from pytest_ddpperf import Script


def test_training(ddpperf):
{remarks}    ddpperf.check({call})
"""
_WORKLOAD = """
import torch
from torch import nn

from pytest_ddpperf import Workload

# Put your own model, batch, loss and optimizer in place of these.
{remarks}workload = Workload(
    model=lambda: nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)),
    batch=lambda: (torch.randn(32, 64), torch.randint(10, (32,))),
    loss=nn.functional.cross_entropy,
    optimizer=lambda parameters: torch.optim.AdamW(parameters),
    samples_per_step=32,
)


def test_training(ddpperf):
    ddpperf.check(workload, strategy="ddp")
"""


def from_here(file: Path) -> str:
    """A path of the project as the current folder names it."""
    return Path(os.path.relpath(file)).as_posix()


def found_text(project: Project) -> str:
    """What was found in a project, in a sentence."""
    script = _usable(project)
    if script is not None:
        return f"{from_here(project.root / script.file)} trains with {script.framework}: the test runs it as it is"
    if project.scripts:
        first = project.scripts[0]
        needs = ", ".join(first.needs)
        file = from_here(project.root / first.file)
        return f"{file} trains, but does not run without {needs}: the test trains a small model in place of it"
    return f"no script in {project.root} trains: the test trains a small model, which yours is to replace"


def test_text(project: Project, folder: Path) -> str:
    """The test file of a project, in a folder from its root."""
    script = _usable(project)
    if script is not None:
        return _HEAD + _SCRIPT.format(
            remarks="".join(f"    # {printable(line)}\n" for line in _script_remarks(script)),
            call=", ".join(_arguments(script, project, folder)),
        )
    lines = [f"from {module} import {name}" for module, name in project.models[:MODELS]]
    if project.scripts:
        file = _path(project.scripts[0], project, folder)
        lines.append(f"{file} is measured as it is with its arguments: ddpperf.check(Script({file!r}, ...))")
    return _HEAD + _WORKLOAD.format(remarks="".join(f"#   {printable(line)}\n" for line in lines))


def ci_text(kind: str, project: Project, folder: Path) -> str:
    """The CI job of a kind in ``CI_FILES``."""
    template = (Path(__file__).parent / f"{kind}.yml").read_text(encoding="utf-8")
    own = ["-r requirements.txt"] * project.requirements + ["-e ."] * project.installable
    script = _usable(project)
    if not own and script is not None and script.framework != "torch":
        own = [script.framework]
    return template.replace("PACKAGES", " ".join([*own, "pytest-ddpperf"])).replace("TESTS", folder.as_posix())


def _usable(project: Project) -> TrainingScript | None:
    return next((script for script in project.scripts if not script.needs), None)


def _script_remarks(script: TrainingScript) -> list[str]:
    """What a reader has to know of the call."""
    own_loop = script.framework in {"torch", "accelerate"}
    lines = [
        "Each rank runs the script with the environment of torchrun; a step ends where optimizer.step() has returned."
        if own_loop
        else f"Each rank runs the script with the environment of torchrun; {script.framework} makes the steps."
    ]
    if script.longer:
        lines.append("What follows the file becomes sys.argv. A launch stops the script when it has enough steps.")
    else:
        lines.append(f"A launch times {STEPS} steps; let the script train for longer, and leave steps out, for more.")
    if script.framework == "lightning" and not script.devices:
        lines.append("world_size is the number of processes of Trainer(devices=..., num_nodes=...): keep them equal.")
    if script.framework == "transformers":
        lines.append("Without GPUs the Trainer joins its ranks only with TrainingArguments(use_cpu=True).")
    return lines


def _arguments(script: TrainingScript, project: Project, folder: Path) -> list[str]:
    words = [_literal(_path(script, project, folder)), *(f'"{word}"' for word in script.longer[:1])]
    words += script.longer[1:]
    single = script.framework == "lightning"
    if single and script.devices:
        words += [f'"{script.devices}"', "2"]
    ranks = [f"world_size={2 if script.devices else script.processes}"] if single else []
    return [f"Script({', '.join(words)})", *ranks, *([] if script.longer else [f"steps={STEPS}"])]


def _literal(text: str) -> str:
    """Text as code; what is not printable is escaped."""
    return json.dumps(text, ensure_ascii=False) if text.isprintable() else repr(text)


def _path(script: TrainingScript, project: Project, folder: Path) -> str:
    """The path of a script as a test in a folder names it: from pytest's root, where pytest finds that."""
    return script.file.as_posix() if project.rooted else Path(os.path.relpath(script.file, folder)).as_posix()
