"""All settings, each declared once; the command line, the ini file, markers and arguments use these declarations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pytest_ddpperf import parsers
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.records.verdict import Verdict

if TYPE_CHECKING:
    from pytest_ddpperf.records.loader_settings import LoaderSettings

T = TypeVar("T")
DEFAULT_SET = "default"
ACCELERATORS = ("h200", "h100", "a100", "l4")
CLUSTERS = ("nvlink-infiniband400", "pcie-ethernet100", "pcie-ethernet10", "pcie-ethernet1")
_LOCK_TIMEOUT: float | None = 600.0
_OFF: bool | Path = False
_STEP: Mapping[str, Any] = {"training": True, "given": "call"}
_WORST = frozenset({Verdict.REGRESSED, Verdict.BROKEN})


class Knob(NamedTuple):
    """The declaration of a setting."""

    name: str
    default: Any
    parse: Callable[[object], Any]  # raises ValueError with the form that it expects
    help: str  # the command line shows its first sentence, the documentation all
    metavar: str | None
    per_test: bool = True  # whether the marker and the fixture's verbs take it, too
    training: bool = False  # whether it changes the work of a step, which makes another benchmark of it
    bare: str | None = None  # the value of the bare option, such as --ddpperf-save; None if it needs a value
    flag: bool = False  # whether the option needs no value, and takes one only after =
    needs: str | None = None  # the setting without which this one has no effect
    repeats: bool = False  # whether the option may be given several times: one value per line
    example: str | None = None  # an example of an option that most users need; None for the other options
    given: str = "option"  # where users give it: "option" (or ini file), "ini" (only), "call" (or marker), "command"

    @property
    def option(self) -> str:
        """The name on the command line."""
        return f"--ddpperf-{self.name.replace('_', '-')}"

    @property
    def ini(self) -> str:
        """The name in the ini file."""
        return f"ddpperf_{self.name}"

    @property
    def spelled(self) -> str:
        """The name under which a user gives the setting: its option, its ini setting or its keyword argument."""
        names = {"option": self.option, "ini": self.ini, "call": self.name, "command": f"ddpperf {self.name}"}
        return names[self.given]

    @property
    def default_text(self) -> str:
        """The default as a user would write it; empty if a user cannot write it."""
        return vars(self.parse).get("none", "") if self.default is None else parsers.written(self.default)


def _knob(default: T, parse: Callable[[object], T], text: str, metavar: str | None = None, **more: Any) -> T:
    declared: T = field(default=default, metadata={"parse": parse, "help": text, "metavar": metavar, **more})
    return declared


def _of_session(default: T, parse: Callable[[object], T], text: str, metavar: str | None = None, **more: Any) -> T:
    """Declares a setting that a single test cannot change; ``text`` is the setting's help text."""
    return _knob(default, parse, text, metavar, per_test=False, **more)


def _switch(text: str, *, default: bool = False, **more: Any) -> bool:
    """Declares a setting that is on or off; ``text`` is the setting's help text."""
    return _knob(default, parsers.switch, text, "true|false" if default else None, flag=not default, **more)


def _training(default: T, parse: Callable[[object], T], text: str, **more: Any) -> T:
    """Declares a setting that changes what a training step does; ``text`` is the setting's help text."""
    return _knob(default, parse, text, **_STEP, **more)


def _of_records(module: str, name: str) -> Callable[[object], Any]:
    """Returns the parser ``name`` of a module in ``records``; the first call of the parser imports the module."""

    def parse(value: object) -> Any:
        return getattr(import_module(f"pytest_ddpperf.records.{module}"), name)(value)

    return parse


def _failing(value: object) -> frozenset[Verdict]:
    """Parses verdicts: ``"regressed,broken"``, a list of such words, or ``none``; ``+new`` extends the default."""
    added = isinstance(value, str) and value.strip().startswith("+")
    parts = value.strip().removeprefix("+").split(",") if isinstance(value, str) else value
    given = [str(getattr(part, "value", part)).strip() for part in parts] if isinstance(parts, Iterable) else [""]
    try:
        failing = frozenset[Verdict]() if given == ["none"] else frozenset(map(Verdict, given))
    except ValueError:
        known = ", ".join(verdict.value for verdict in Verdict)
        raise ValueError(f"none, or verdicts separated by commas, out of {known}") from None
    if failing and not added and failing.isdisjoint(_WORST):
        raise ValueError(f"a list with regressed or broken, or +{parsers.written(failing)}, which adds to these two")
    return failing | _WORST if added else failing


@dataclass(init=False, eq=False, repr=False, match_args=False)  # every pytest run pays for what is generated here
class Settings:
    """The resolved settings of one benchmark. A new setting needs one field here, and nothing anywhere else."""

    world_size: tuple[int, ...] | None = _knob(
        None,
        parsers.world_sizes,
        "number of ranks (default: one per GPU, or 2 on the CPU). Of several, scaling benchmarks use all, and other "
        "benchmarks the largest",
        "N[,N...]",
        example="--ddpperf-world-size=1,2,4",
    )
    backend: str = _knob(
        "auto",
        parsers.one_of("auto", "nccl", "gloo"),
        "backend of the process group: nccl, gloo, or auto (nccl if each rank has its own GPU)",
        "NAME",
    )
    device: str = _knob(
        "auto",
        parsers.one_of("auto", "cpu", "cuda"),
        "device of the ranks: cpu, cuda, or auto (cuda if there is a GPU)",
        "NAME",
        example="--ddpperf-device=cpu",
    )
    cpu_binding: str = _knob(
        "none",
        parsers.one_of("none", "cores"),
        "give each rank its own cores, if possible of one NUMA node (cores), or let ranks share the cores (none)",
        "NAME",
    )
    memory_limit: int | None = _knob(
        None,
        parsers.optional(parsers.byte_count, "none"),
        "limit of each rank's memory, such as 2GiB. On the CPU, memory in use before the model is built does not count",
        "BYTES",
    )
    env: tuple[tuple[str, str], ...] | None = _knob(
        None,
        parsers.optional(parsers.variables, "none"),
        "environment variables of the ranks, which baselines and reports show",
        given="call",
    )
    mesh: Mapping[str, int] | None = _knob(
        None,
        parsers.optional(parsers.mesh, "none"),
        "sizes of the dimensions of ctx.mesh, such as dp=2,tp=2. Only a function build(ctx) reads it",
        "NAME=N[,...]",
    )
    multi_node: str = _of_session(
        "auto",
        parsers.one_of("auto", "off"),
        "use all nodes of torchrun, srun or mpirun, with tests on rank 0; off: ignore the launcher",
        "auto|off",
    )
    rendezvous_dir: Path | None = _of_session(  # noqa: RUF009 - a field, declared
        None, parsers.path, "shared folder for the rendezvous under srun or mpirun", "DIR"
    )
    gpu_lock_timeout: float | None = _of_session(
        _LOCK_TIMEOUT,
        parsers.optional(parsers.duration, "off"),
        "time to wait for GPUs that another pytest session has locked; off: lock no GPUs",
        "TIME|off",
    )
    preload: tuple[str, ...] = _of_session(
        ("auto",),
        parsers.modules,
        "modules to import once for all launches: a list of names, with auto for modules of earlier ranks, or none",
        "NAME[,...]",
    )
    timeout: float = _knob(
        120.0,
        parsers.duration,
        "deadline of a launch (a fresh process group), at which the plugin shows stacks and kills ranks",
        "TIME",
        example="--ddpperf-timeout=300",
    )
    steps: int | None = _knob(
        None,
        parsers.optional(parsers.positive_int, "auto"),
        "number of timed or counted steps in a launch; auto: as in the baseline, or as many as take 1 s",
        "N",
    )
    warmup: int = _knob(5, parsers.whole_number, "untimed first steps per launch; raised to 12 on GPUs if lower", "N")
    launches: int = _knob(
        6,
        parsers.positive_int,
        "number of launches before the first verdict; more follow until it is clear or max-time is over",
        "N",
    )
    max_time: float = _knob(
        60.0,
        parsers.duration,
        "time limit of a benchmark, without imports (see budget, quick). Slow launches or likely slowdowns take longer",
        "TIME",
        example="--ddpperf-max-time=20",
    )
    budget: float | None = _of_session(
        None,
        parsers.optional(parsers.duration, "none"),
        "time limit of the session, which benchmarks share equally (max-time and quick limit each benchmark). "
        "Undecided tests run twice. The default of max-time does not apply",
        "TIME",
        example="--ddpperf-budget=10min",
    )
    quick: bool = _switch(
        "measure each benchmark with 2 launches in about 5 s (max-time and budget do not apply), and store nothing. "
        "Imports and long steps take longer",
        per_test=False,
        example="--ddpperf-quick",
    )
    interleave: bool | None = _knob(
        None,
        parsers.optional(parsers.switch, "auto"),
        "alternate blocks of steps between compared launches; auto: only on the CPU; true: also on GPUs, if all "
        "launches fit into memory",
        "auto|true|false",
    )
    communication: bool | None = _knob(
        default=None,
        parse=parsers.optional(parsers.switch, "auto"),
        text="measure exposed communication; auto: only if no ranks share a core or a GPU",
        metavar="true|false|auto",
    )
    calibrate: int | None = _of_session(
        None,
        parsers.optional(parsers.several, "none"),
        "measure each benchmark this many times side by side with itself, not with baselines",
        given="command",
    )
    profile: bool | Path = _knob(  # noqa: RUF009 - a field, declared
        default=_OFF,
        parse=parsers.switch_or_path,
        text="profile a few steps with torch; =DIR also writes traces",
        metavar="DIR",
        flag=True,
        example="--ddpperf-profile=traces",
    )
    profile_on: str = _knob(
        "always",
        parsers.one_of("always", "regression"),
        "benchmarks to profile: all (always), or those that fail (regression)",
        "NAME",
        needs="profile",
    )
    profile_steps: int = _knob(5, parsers.positive_int, "number of profiled steps", "N", needs="profile")
    profile_warmup: int = _knob(
        1, parsers.positive_int, "number of profiled warm-up steps; traces call them warmup_step", "N", needs="profile"
    )
    verify: bool = _switch("compare gradients and parameters with a single process before measuring", default=True)
    counts: str = _knob(
        "on",
        parsers.one_of("on", "off", "only"),
        "count and compare a step's collectives, FLOPs, operators and tensor bytes; only: without timing",
        "on|off|only",
        example="--ddpperf-counts=only",
    )
    simulate: tuple[int, ...] | None = _of_session(
        None,
        parsers.optional(parsers.world_sizes, "none"),
        "numbers of ranks for which to count the operations of one rank's step, under a fake process group",
        given="command",
    )
    simulate_rank: int = _of_session(0, parsers.whole_number, "number of the rank that is simulated", given="command")
    precision: str = _training(
        "fp32",
        parsers.one_of("fp32", "tf32", "bf16", "fp16"),
        "precision of training: fp32, tf32 (CUDA), bf16 or fp16 (both by autocast; fp16 with a gradient scaler)",
    )
    accumulation_steps: int = _training(
        1, parsers.positive_int, "micro-batches that are accumulated for one optimizer step"
    )
    no_sync: bool = _switch(
        "synchronise gradients only after the last micro-batch of an optimizer step", default=True, **_STEP
    )
    clip_grad_norm: float | None = _training(
        None, parsers.optional(parsers.amount, "none"), "maximal global norm of the gradients"
    )
    clip_steps: int | str | None = _training(
        None,
        parsers.optional(parsers.steps_or_warmup, "all"),
        "steps that clip gradients: N (the first N of a launch), warmup (its untimed steps) or all",
    )
    lr_warmup_steps: int | str | None = _training(
        None,
        parsers.optional(parsers.steps_or_warmup, "none"),
        "steps in which the learning rate rises linearly: N (the first N of a launch) or warmup (its untimed steps)",
    )
    compile: str = _training(
        "no",
        parsers.one_of("no", "model", "step"),
        "part that torch.compile compiles: model, step (the whole step) or no",
    )
    compile_backend: str = _training("inductor", parsers.identifier, "backend of torch.compile")
    activation_checkpointing: bool = _switch(
        "recompute the activations of the model's repeated blocks in backward instead of keeping them", **_STEP
    )
    cudnn_benchmark: bool = _switch(
        "let cuDNN try its algorithms for each new shape of a convolution, and use the fastest", **_STEP
    )
    loader: LoaderSettings | None = _training(  # noqa: RUF009 - a field, declared
        None,
        parsers.optional(_of_records("loader_settings", "loader_settings"), "none"),
        "settings of the Workload's DataLoader: workers=N, pin_memory=, prefetch_factor=, persistent_workers=, "
        "sampler=rank (a share for each rank); or auto (chosen for the machine and the data)",
    )
    tolerance: float | None = _knob(
        None,
        parsers.optional(parsers.fraction, "auto"),
        "largest worsening that passes; auto: 1.5%% compared with times of the same run, 3%% with stored values",
        "FRACTION",
        example="--ddpperf-tolerance=3%%",
    )
    must_detect: float = _knob(
        0.1,
        parsers.positive_fraction,
        "slowdown that runs must rule out, like 5%%. If a run cannot, the result is inconclusive",
        "FRACTION",
    )
    fail_on: frozenset[Verdict] = _knob(
        _WORST,
        _failing,
        "verdicts that fail a test: a list, or +VERDICT to add one to the default, or none",
        "VERDICT[,...]",
        example="--ddpperf-fail-on=+inconclusive",
    )
    require_baseline: bool = _switch(
        "fail tests without a comparable baseline; end the session if a baseline's commit cannot be measured",
        example="--ddpperf-require-baseline",
    )
    accept: Mapping[str, tuple[float, bool]] | None = _knob(
        None,
        parsers.optional(_of_records("acceptance", "worsenings"), "none"),
        "largest accepted worsening of each named metric: a share of the reference, or an amount",
        given="call",
    )
    reason: str | None = _knob(
        None, parsers.words, "reason to accept worse metrics; reports show the reason", given="call", needs="accept"
    )
    allow: tuple[tuple[str, str], ...] | None = _of_session(
        None,
        parsers.optional(_of_records("acceptance", "allowed"), "none"),
        "accept a worse metric of a test in this session; repeat for each metric. A file or class means all its tests",
        "'NODEID METRIC'",
        repeats=True,
    )
    baseline_dir: Path = _of_session(  # noqa: RUF009 - a field, declared
        Path("baselines"), parsers.path, "folder of the baselines, from the root of the project", "DIR"
    )
    baseline_set: str | None = _of_session(
        None, parsers.set_name, "set of baselines to compare with (default: the set of --ddpperf-save)", "NAME"
    )
    save: str | None = _of_session(
        None,
        parsers.set_name,
        "store the results as new baselines, in the set NAME if a name is given",
        "NAME",
        bare=DEFAULT_SET,
        example="--ddpperf-save",
    )
    force_save: bool = _switch(
        "let --ddpperf-save remove the baseline of a benchmark that no longer fits into memory",
        per_test=False,
        needs="save",
    )
    recheck: str = _knob(
        "true",
        parsers.one_of("true", "false", "fetch"),
        "measure the baseline's commit again to compare times (fetch: also fetch it), or use stored times (false)",
        "true|false|fetch",
    )
    gross: float = _of_session(
        0.5,
        parsers.positive_fraction,
        "slowdown beyond which stored times alone make a test red, on a quiet machine",
        "FRACTION",
        given="ini",
    )
    against: str | None = _of_session(
        None,
        parsers.words,
        "revision to compare with, side by side: branch, tag, commit, merge-base:BRANCH or the folder of a checkout",
        "REV",
        example="--ddpperf-against=origin/main",
    )
    against_python: str | None = _of_session(
        None,
        parsers.words,
        "interpreter that runs the reference, such as .venv-new/bin/python. Without --ddpperf-against, the "
        "reference is this checkout",
        "PATH",
    )
    against_setup: str | None = _of_session(
        None, parsers.words, "command to build the reference, such as 'pip install .'", "COMMAND"
    )
    against_tests: bool = _switch("let the reference run its own test functions", per_test=False, needs="against")
    network: str | None = _knob(
        None,
        parsers.optional(parsers.one_of(*CLUSTERS), "none"),
        "network that predictions assume: the name of a cluster, or none for the network that ddpperf network stored",
        given="ini",
    )
    accelerator: str | None = _knob(
        None,
        parsers.optional(parsers.one_of(*ACCELERATORS), "none"),
        "accelerator that predictions assume, or none to time the steps on this machine",
        given="ini",
    )
    ranks_per_node: int = _knob(
        8, parsers.positive_int, "ranks on each node of the cluster that ddpperf_network names", given="ini"
    )
    report: tuple[tuple[str, Path], ...] | None = _of_session(
        None,
        parsers.optional(parsers.reports, "none"),
        "write a report (json, html, markdown, plots, ...); repeat the option for each report (ini file: one a line)",
        "KIND:FILE",
        repeats=True,
        example="--ddpperf-report=html:report.html",
    )
    junit_properties: bool = _switch(
        "add user properties to JUnit files; false: for readers that reject properties, such as Jenkins",
        default=True,
        per_test=False,
    )
    history: Path | None = _of_session(  # noqa: RUF009 - a field, declared
        None, parsers.path, "record the run in this SQLite file for ddpperf trend", "FILE"
    )

    def __init__(self, **values: Any) -> None:
        """Sets the given settings, and all others to defaults; raises an error if ``accept`` has no reason."""
        unknown = values.keys() - KNOBS.keys()
        if unknown:
            raise TypeError(f"Settings has no field {min(unknown)}")
        vars(self).update(values)
        if self.accept and not self.reason:
            raise SettingError('accept={...} needs a reason, which reports show: add reason="..."')

    def __setattr__(self, name: str, _: object) -> None:  # cheaper than the method that frozen=True compiles
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    @property
    def recipe(self) -> Mapping[str, str]:
        """The training settings that differ from their defaults, as texts by name."""
        default = Settings()
        said = {name: getattr(self, name) for name, knob in KNOBS.items() if knob.training}
        if self.accumulation_steps == 1:
            said.pop("no_sync")  # there is nothing to skip
        if self.compile == "no":
            said.pop("compile_backend")
        if not self.lr_warmup_steps:
            said.pop("lr_warmup_steps")
        return {name: parsers.written(value) for name, value in said.items() if value != getattr(default, name)}

    @property
    def picks_loading(self) -> bool:
        """Returns whether the plugin chooses the DataLoader's settings (``loader=auto``)."""
        return self.loader is not None and self.loader.auto

    @property
    def compared(self) -> str:
        """The name of the set of baselines to compare with."""
        return self.baseline_set or self.save or DEFAULT_SET

    @property
    def accepting(self) -> bool:
        """Returns whether this run overwrites the baselines that it compares with, and so accepts worse results."""
        return self.save is not None and self.save == self.compared

    @property
    def failing(self) -> frozenset[Verdict]:
        """The verdicts that fail a test: ``fail_on``; with ``require_baseline`` also ``new`` and ``incompatible``."""
        missing = {Verdict.NEW, Verdict.INCOMPATIBLE} if self.require_baseline else set()
        return self.fail_on | missing


KNOBS: Mapping[str, Knob] = {f.name: Knob(f.name, f.default, **f.metadata) for f in dataclasses.fields(Settings)}


def overlay(settings: Settings, layer: Mapping[str, object], source: Callable[[Knob, object], str]) -> Settings:
    """Returns the settings, updated with ``layer``'s values; ``source`` describes a value's source in errors."""
    parsed = {}
    for name, raw in layer.items():
        knob = KNOBS[name]
        try:
            parsed[name] = knob.parse(raw)
        except ValueError as error:
            raise SettingError(f"{source(knob, raw)}: expected {error}") from None
    return dataclasses.replace(settings, **parsed)


def overlay_words(
    settings: Settings, words: Mapping[str, object], *, where: str, suggestions: Sequence[str] = ()
) -> Settings:
    """Returns the settings, updated with arguments of a marker or call, which ``where`` names in error messages."""
    known = [name for name, knob in KNOBS.items() if knob.per_test]
    for word in words:
        if word not in known:
            raise SettingError(f"{where}({word}=...): {_unknown(word, [*suggestions, *known])}")
    return overlay(settings, words, lambda knob, raw: f"{where}({knob.name}={raw!r})")


# Words that look like settings, and what to give instead.
_INSTEAD = {
    "json": "give --ddpperf-report=json:FILE",
    "plots": "give --ddpperf-report=plots:DIR",
    "calibrate": "run ddpperf calibrate --runs=N",
    "simulate": "run ddpperf simulate --world-size=N",
    "simulate_rank": "run ddpperf simulate --rank=N",
    "strategy": "give strategy= to the call",
}


def instead_of(name: str) -> str:
    """Returns advice for a user who gave an option or ini setting that does not exist; empty without advice."""
    if name in KNOBS and KNOBS[name].per_test:
        in_file = f", or {KNOBS[name].ini} in the ini file" * (KNOBS[name].given == "ini")
        return f"give {name}= to @pytest.mark.ddpperf or to the call{in_file}"
    return _INSTEAD.get(name) or (f"give {KNOBS[name].ini} in the ini file" if name in KNOBS else "")


def _unknown(word: str, known: list[str]) -> str:
    if word in KNOBS and KNOBS[word].given != "command":
        option = f"as {KNOBS[word].option} or " * (KNOBS[word].given == "option")
        return f"{word} holds for the whole session; give it {option}in the ini file"
    if word != "strategy" and word in _INSTEAD:
        return f"there is no such setting: {_INSTEAD[word]}"
    return f"there is no setting {word}; {parsers.instead(parsers.closest(word, known, 0.5), known)}"
