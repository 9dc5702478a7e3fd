"""What a newcomer gets wrong, a row each: the status of the run, and one line with the cause and the cure.

Nothing is launched here: what is wrong is refused before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.cli.command import main
from pytest_ddpperf.launch.context import Gpus, TorchMachine
from pytest_ddpperf.launch.launchers import Launchers
from pytest_ddpperf.run.session import sides

USAGE, FAILED, COMMAND = 4, 1, 2  # statuses of pytest, and of ddpperf
PASSING = "def test_it(): pass\n"
SUBJECTS = """
import pytest
from pytest_ddpperf import Strategy, Workload

workload = Workload(
    model=lambda: None, batch=lambda: (1, 2), loss=lambda outputs, targets: None, optimizer=lambda parameters: None,
    samples_per_step=4,
)


def build(ctx):
    return lambda: 0.0
"""


class NoLaunchers(Launchers):
    """Launchers that know the machine and launch nothing."""

    def __init__(self) -> None:
        super().__init__(lambda _: pytest.fail("something was launched"))

    def __getitem__(self, number: int) -> Any:
        return self

    def start(self, number: int = 0) -> None:
        """Start nothing."""

    def counts(self, world_size: int, *_: object) -> tuple[int, ...]:
        """All ranks on one node."""
        return (world_size,)

    def machine(self, *, gpus: bool = True) -> TorchMachine:
        """A machine without GPUs."""
        return TorchMachine(torch="2.13.0", cuda=None, gpus=Gpus(), backends=("gloo",))


@pytest.fixture
def project(inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project whose runs launch nothing."""
    monkeypatch.setattr(sides, "Launchers", lambda *_: NoLaunchers())
    return inner


def require_one_clear_line(printed: str, line: str) -> None:
    """Cause and cure in one line, and no line of our own code."""
    assert [each for each in printed.splitlines() if re.search(line, each)], printed
    assert "Traceback" not in printed, printed
    assert "INTERNALERROR" not in printed, printed
    assert not re.search(r"pytest_ddpperf/\S+\.py:\d+: (in )?\w+$", printed, re.MULTILINE), printed


@dataclass(frozen=True)
class Wrong:
    """A wrong use of pytest."""

    name: str
    line: str  # a regular expression that one line of the output has to match
    arguments: tuple[str, ...] = ()
    test: str = PASSING  # the test file
    files: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    status: int = USAGE


FILES = {"perf/test_perf.py": PASSING, "baselines/@nightly/x": "", "file": ""}
OPTIONS = {
    "--ddpperf-wrold-size=2": r"--ddpperf-wrold-size: .*did you mean --ddpperf-world-size\?",
    "--ddperf-save": r"--ddperf-save: .*did you mean --ddpperf-save\?",
    "--ddpperf-xyz": r"--ddpperf-xyz: there is no such option; pytest --help lists all of them$",
    "--ddpperf-json=run.json": r"--ddpperf-json: .*: give --ddpperf-report=json:FILE$",
    "--ddpperf-calibrate=5": r"--ddpperf-calibrate: .*: run ddpperf calibrate --runs=N$",
    "--ddpperf-world-size test_wrong.py": r"--ddpperf-world-size=test_wrong.py: .* write --ddpperf-world-size=N",
    "--ddpperf-max-time": r".*--ddpperf-max-time: expected one argument",
    "--ddpperf-require-baseline=perhaps": r".*argument --ddpperf-require-baseline: ignored explicit argument 'perhaps'",
    "--ddpperf-profile-steps=2": r"--ddpperf-profile-steps is only for profiled benchmarks, .* add --",
    "--ddpperf-profile=test_wrong.py": r"--ddpperf-profile: .*test_wrong.py cannot be written: this is a file",
    "--ddpperf-backend=mpi": r"--ddpperf-backend=mpi: expected one of auto, nccl, gloo$",
    "--ddpperf-precision=bf16": (
        r"--ddpperf-precision: there is no such option: give precision= to @pytest.mark.ddpperf or to the call$"
    ),
    "--ddpperf-strategy=ddp": r"--ddpperf-strategy: there is no such option: give strategy= to the call$",
    "--ddpperf-gross=1": r"--ddpperf-gross: .*: give ddpperf_gross in the ini file$",
    "--ddpperf-simulate=8": r"--ddpperf-simulate: there .*: run ddpperf simulate --world-size=N$",
    "-oddpperf_calibrate=3 --ddpperf-save": r"ddpperf calibrate .*--ddpperf-save .*give only one",
    "--ddpperf-save test_wrong.py": r"--ddpperf-save=test_wrong.py: .*put --ddpperf-save last",
    "--ddpperf-save perf/": r"--ddpperf-save=perf/: expected a name of .* perf/ is a test, file or folder: put --ddppe",
    "--ddpperf-launches perf": r"--ddpperf-launches=perf: expected a whole number .* perf is a test, .*: write --ddppe",
    "--ddpperf-baseline-set=nigthly": r"--ddpperf-baseline-set=nigthly: .* has no set of this name; give one of nigh",
    "--ddpperf-report=json:test_wrong.py": (
        r"--ddpperf-report=json:test_wrong.py: .*test_wrong.py cannot be written: the file exists and is not JSON"
    ),
    "--ddpperf-report=json:file/out.json": (
        r"--ddpperf-report=json:file/out.json: .*file/out.json cannot be written: .*; make this path writable, or name"
    ),
    "--ddpperf-report=markdwon:a.md": r".*=markdwon:a.md: there is no kind of report markdwon; did you mean markdown\?",
    "--ddpperf-quick --ddpperf-save": r"--ddpperf-quick has .* stores nothing, so --ddpperf-save does not fit: give ",
    "--ddpperf-quick --ddpperf-history=a.db": r"--ddpperf-quick has .*, so --ddpperf-history does not fit: give only",
    "--ddpperf-history test_wrong.py": r"history file .*test_wrong.py: .*the file is broken, or is not a history",
    "--ddpperf-save --ddpperf-baseline-dir=file/x": r"baselines cannot be saved in .*file.*--ddpperf-baseline-dir",
    "--ddpperf-against=main": r"--ddpperf-against=main: .* is in no git repository; name the folder",
}
"""Arguments of pytest, and what it says."""
SETTINGS = {
    "ddpperf_wrold_size = 2": r"ddpperf_wrold_size: there is no such setting; did you mean ddpperf_world_size\?$",
    "ddpperf_plots = out": r"ddpperf_plots: .*: give --ddpperf-report=plots:DIR$",
    "ddpperf_compile = no": r"ddpperf_compile: .*: give compile= to @pytest.mark.ddpperf or to the call$",
    "ddpperf_xyz = 2": r"ddpperf_xyz: there is no such setting; pytest --help lists",
    "ddpperf_launches = none": r"ddpperf_launches = none \(.*pytest.ini\): expected a whole number of at least 1$",
    "ddpperf_launches = 3 # few": r"ddpperf_launches = 3 # few \(.*\): expected a whole number",
    'ddpperf_backend = "gloo"': r"ddpperf_backend = \"gloo\" \(.*\): expected one of",
}
"""Lines of pytest.ini."""
MARKS = {
    "ddperf(tolerance=0.1)": r"@pytest.mark.ddperf is not .*did you mean ddpperf\?",
    "ddpperf(tolerence=0.1)": r".*test_it: @pytest.mark.ddpperf\(tolerence=...\): .*did you mean tolerance\?",
    "ddpperf(world_size=0)": r".*test_it: @pytest.mark.ddpperf\(world_size=0\): expected a number of ranks",
    "ddpperf(accept={'step_time': '+20%'})": r"accept={...} needs a reason, which reports show: add reason=",
    "ddpperf(accept='step_time', reason='r')": r".*accept='step_time'\): expected worsenings by metric, such as ",
    "ddpperf(2)": r"@pytest.mark.ddpperf of .*test_it has positional arguments: use key",
    "ddpperf(save='x')": r".*@pytest.mark.ddpperf\(save=...\): save holds for the whole session; .*--ddpperf-save",
    "ddpperf(gross=0.3)": r".*@pytest.mark.ddpperf\(gross=...\): gross holds for the whole session; give it in the ini",
}
WRONG = [
    *(
        Wrong(words, rf"^(ERROR: |pytest\.main\(\): ){line}", tuple(words.split()), files=FILES)
        for words, line in OPTIONS.items()
    ),
    *(Wrong(one, f"^ERROR: {line}", files={"pytest.ini": f"[pytest]\n{one}\n"}) for one, line in SETTINGS.items()),
    *(
        Wrong(mark, f"^ERROR: {line}", ("-W", "ignore"), f"import pytest\n\n@pytest.mark.{mark}\n{PASSING}")
        for mark, line in MARKS.items()
    ),
    Wrong(
        "TOML type",
        r"^ERROR: ddpperf_max_time = True \(.*pyproject.toml\): expected a time above 0",
        files={"pyproject.toml": "[tool.pytest]\nddpperf_max_time = true\n"},
    ),
    Wrong(
        "fixture called",
        r".*",
        test="from pytest_ddpperf.plugin import ddpperf\n\ndef test_it(): ddpperf.check(None)\n",
        status=FAILED,
    ),
    Wrong("fixture misspelt", r"E .*fixture 'ddperf' not found", test="def test_it(ddperf): pass\n", status=FAILED),
    Wrong(
        "fixture of a session",
        r".*ScopeMismatch.*",
        test="import pytest\n\n@pytest.fixture(scope='module')\ndef mine(ddpperf): pass\n\ndef test_it(mine): pass\n",
        status=FAILED,
    ),
    Wrong("workload misspelt", r".*", test="from pytest_ddpperf import Workload\nWorkload(modle=1)\n", status=2),
    Wrong(
        "workload called",
        r".*",
        test="from pytest_ddpperf import Workload\nWorkload(model=3, batch=4, loss=5, optimizer=6)\n",
        status=2,
    ),
    Wrong(
        "launcher",
        r"ERROR: srun started 2 processes, perhaps on several nodes.* name .*--ddpperf-rendezvous-dir=DIR",
        test="def test_it(ddpperf): pass\n",
        environ={"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"},
    ),
]
CALLS = {
    "ddpperf.check(build, tolerence=1)": r"ddpperf.check\(tolerence=...\): .*did you mean tolerance\?",
    "ddpperf.check(workload, strategies=['ddp'])": r"ddpperf.check\(strategies=...\): .*did you mean strategy\?",
    "ddpperf.check(build, launches=0)": r"ddpperf.check\(launches=0\): expected a whole number of at least 1",
    "ddpperf.check()": r".*missing 1 required positional argument: 'subject'",
    "ddpperf.check(None)": r"a NoneType cannot be measured: expected a Workload, .* or a function build\(ctx\)",
    "import torch; ddpperf.check(torch.nn.Linear(1, 1))": r"a Linear cannot be measured: expected a Workload",
    "ddpperf.check(0.5)": r"a float cannot be measured: expected a Workload",
    "ddpperf.check(lambda: None)": r"<lambda> \(test_wrong.py:\d+\) takes \(\) and is called as <lambda>\(ctx\)",
    "ddpperf.check(workload, strategy='dpp')": r".*'dpp'.*did you mean ddp\?",
    "ddpperf.check(workload, strategy='ddp[bucket_cap=5]')": r".*bucket_cap.*bucket_cap_mb",
    "ddpperf.check(build, strategy='ddp')": r"strategy='ddp' is only for a Workload; a step",
    "ddpperf.check(build, precision='bf16')": r"precision='bf16' is only for a Workload; set it in the code of",
    "ddpperf.check(build, name=3)": r"name=3: expected a str, such as name='3'",
    "ddpperf.check(build, samples_per_step=0)": r"samples_per_step=0: expected a number above 0",
    "ddpperf._names.add(('custom', 2)); ddpperf.check(build)": r".*two benchmarks named 'custom'; give each another",
    "ddpperf.check(build, device='cuda')": r"device=cuda needs a GPU, .*backend=gloo and device=cpu",
    "ddpperf.check(workload, clip_steps=3)": r"clip_steps=3 has no effect alone; give clip_grad_norm, too",
    "ddpperf.check(workload, loader='workers=2')": r"loader='workers=2': this Workload uses one batch",
    "ddpperf.check(build, mesh='dp=2,tp=2', world_size=2)": r"mesh=dp=2,tp=2 needs 4 ranks, but world_size is 2; ",
    "ddpperf.check(workload, mesh={'dp': 1})": r"mesh=dp=1 has no effect on a Workload or Script, only on a function",
    "ddpperf.check(build, mesh={})": r"ddpperf.check\(mesh={}\): expected the sizes of dimensions by name, such as dp=",
    "ddpperf.check(build, json='x')": r"ddpperf.check\(json=...\): .*: give --ddpperf-report=json:FILE$",
    "ddpperf.measure(build, world_sizes=2)": r"ddpperf.measure\(world_sizes=...\): .*did you mean world_size\?",
    "ddpperf.scaling(build, world_sizes=[2])": r"ddpperf.scaling\(world_sizes=\[2\]\): expected two or more numbers",
    "ddpperf.scaling(build, world_sizes=2)": r"ddpperf.scaling\(world_sizes=2\): expected a list of numbers of ranks",
    "ddpperf.scaling(lambda n: workload, mode='strong')": r"ddpperf.scaling\(mode='strong'\): a function ranks -> W",
    "ddpperf.scaling(lambda n: workload, counts='off')": r"ddpperf.scaling\(counts='off'\): a function ranks -> W",
    "ddpperf.scaling(lambda n: build)": r"<lambda> \(.*\) returned a function for ranks 1; return a Workload",
    "ddpperf.scaling(build, world_sizes=[2, 2])": r"ddpperf.scaling\(world_sizes=\[2, 2\]\): expected two or more numb",
    "ddpperf.scaling(build, world_sizes='12')": r"ddpperf.scaling\(world_sizes='12'\): expected a list of numbers of r",
    "ddpperf.scaling(build, mod='strong')": r"ddpperf.scaling\(mod=...\): there is no setting mod; did you mean mode\?",
    "ddpperf.advise(workload, measured=True)": r"ddpperf.advise\(measured=...\): .*; did you mean measure\?",
    "ddpperf.scaling(build, mode='wide')": r"ddpperf.scaling\(mode='wide'\): expected one of strong, weak",
    "ddpperf.compare(workload, strategies=['ddp'])": r"ddpperf.compare\(strategies=\['ddp'\]\): expected two or more s",
    "ddpperf.compare(workload)": r"ddpperf.compare: .* strategies, .*, a dictionary of functions or .* or a di",
    "ddpperf.compare(build, strategies=['ddp', 'naive'])": r"ddpperf.compare: expected a Workload and a list of strate",
    "ddpperf.compare(workload, strategies=['ddp', 'naive'], over='flat')": r"ddpperf.compare\(.*over='flat': expected",
    "ddpperf.compare(workload, strategies=['ddp', 'ddp'])": r"ddpperf.compare\(.*ddp is given twice",
    "ddpperf.compare(workload, strategies='ddp')": r"ddpperf.compare: expected a Workload and a list of strategies",
    "ddpperf.compare(workload, strategies=5)": r"ddpperf.compare: expected a Workload and a list of strategies",
    "ddpperf.compare(workload, variants={'a': {}})": r"ddpperf.compare\(variants=\['a'\]\): expected two or more varia",
    "ddpperf.compare(workload, variants=['bf16'])": r"ddpperf.compare\(variants=\['bf16'\]\): expected a dict of setti",
    "ddpperf.compare(workload, variants={'a': 'bf16', 'b': {}})": r"ddpperf.compare\(.*: expected a dict of settings",
    "ddpperf.compare(workload, strategies=['ddp', 'flat'], variants={'a': {}, 'b': {}})": r".*give only one of the two",
    "ddpperf.compare({'o': build, 'n': build}, variants={'a': {}, 'b': {}})": r".*is for one Workload, Script or step;",
    "ddpperf.compare(workload, variants={'a': {}, 'b': {'precision': 'fp8'}})": r".*{'b': ...}\)\(precision='fp8'\): e",
    "ddpperf.compare(workload, variants={'a': {}, 'b': {'presicion': 1}})": r".*{'b': ...}\).*did you mean precision\?",
    "ddpperf.compare(workload, variants={'a': {}, 'b': {'max_time': 5}})": r".*\): max_time must be the same for all v",
    "ddpperf.compare(workload, variants={'a': {}, 'b': {'clip_steps': 3}})": r"clip_steps=3 has no effect alone; gi",
    "ddpperf.compare(workload, variants={'a': {}, 'b': {'env': 'X=1'}})": r".*\(env='X=1'\): expected environment vari",
    "ddpperf.check(build, env={'A': 1, 'RANK': 1})": r"env={'RANK': ...}: the plugin sets RANK for ranks; leave RANK",
    "ddpperf.check(build, env={'SLURM_PROCID': 1})": r".*the plugin sets SLURM_PROCID for ranks",
    "ddpperf.check(build, env={'CUDA_VISIBLE_DEVICES': 1})": r".*the plugin sets CUDA_VISIBLE_DEVICES for ranks",
    "ddpperf.check(build, env={'PYTHONHASHSEED': 1})": r".*Python reads PYTHONHASHSEED at start; set PYTHONHASHSEED b",
    "ddpperf.check(workload, strategy=build)": r"strategy build \(test_wrong.py:.*\) .* build\(module, ctx\): too many",
    "ddpperf.check(Workload)": r"the class Workload cannot be measured: give an instance, Workload\(model=..., ...\)",
    "from dataclasses import replace; ddpperf.check(replace(workload, scheduler=print), lr_warmup_steps=3)": (
        r"lr_warmup_steps=3: this Workload has a scheduler, which sets the learning rate"
    ),
    "ddpperf.expect()": r"ddpperf.expect: no expectation is given; name counts, such as",
    "ddpperf.expect(collectives={'all_reduce': 1})": r"ddpperf.expect: nothing was counted; call check",
    "ddpperf.find_batch_size(workload)": r"ddpperf.find_batch_size: expected a function batch_size -> Workload, not a",
    "ddpperf.find_batch_size(lambda n: workload)": r"find_batch_size on the CPU needs memory_limit, .* memory_limit=.2",
    "ddpperf_group.run(lambda: None)": r"ddpperf_group.run: <lambda> \(.*\) takes \(\) and is called as <lambda>\(ctx",
    "ddpperf_group.run(lambda ctx: None, 1)": r"ddpperf_group.run: .* is called as <lambda>\(ctx, argument 1\): too ma",
    "ddpperf_group.run(3)": r"ddpperf_group.run: expected a function\(ctx, \*arguments\), not a int",
    "ddpperf.check(workload, strategy=3)": r"strategy=3: expected a name such as 'ddp', a Strategy, or a function",
    "ddpperf.compare({'old': build})": r"ddpperf.compare\(\['old'\]\): expected two or more subjects",
    "ddpperf.compare({'a': build, 'b': build}, strategy='ddp')": r"ddpperf.compare\(strategy='ddp'\) is only for",
    "ddpperf.scaling(build, world_sizes=['two'])": r"ddpperf.scaling\(world_sizes=\['two'\]\): expected a number",
    "ddpperf.check(build, world_size='2x')": r"ddpperf.check\(world_size='2x'\): expected a number of ranks",
    "ddpperf.check(workload, world_size=1, strategy='fsdp2[reshard=1]')": r"strategy fsdp2.*no option reshard",
    "ddpperf.check(build, backend='nccl')": r"backend=nccl needs a GPU.*=gloo",
    "ddpperf.check(build, tolerance=-1)": r"ddpperf.check\(tolerance=-1\): expected a fraction",
    "ddpperf.find_batch_size(lambda n: workload, memory_limit='much')": r".*memory_limit='much'\): expected a number",
    "ddpperf.find_batch_size(lambda n: workload, memory_limit='1GiB', start=0)": r"find_batch_size\(start=0\): expecte",
    "ddpperf.find_batch_size(lambda n: workload, memory_limit=9, limit=0)": r"find_batch_size\(limit=0\): expected",
    "ddpperf.find_batch_size(lambda n: workload, memory_limit=9, start=8, limit=4)": r".*: start must not be above lim",
}


@pytest.mark.parametrize("wrong", WRONG, ids=[wrong.name for wrong in WRONG])
def test_a_wrong_use_of_pytest_is_answered_with_one_line(
    project: pytest.Pytester, wrong: Wrong, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in wrong.environ.items():
        monkeypatch.setenv(name, value)
    for path, content in wrong.files.items():
        file = project.path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    project.makepyfile(test_wrong=wrong.test)
    run = project.runpytest_inprocess("-p", "no:cacheprovider", *wrong.arguments)
    require_one_clear_line(f"{run.stdout}\n{run.stderr}", wrong.line)
    assert run.ret == wrong.status
    assert project.path.joinpath("test_wrong.py").read_text().strip() == wrong.test.strip()


@pytest.mark.parametrize("name", ["nightly", "nightly.py", "default"])
def test_a_set_may_have_the_name_of_a_folder_and_of_no_file(project: pytest.Pytester, name: str) -> None:
    project.mkdir("nightly")
    project.makepyfile(test_right=PASSING)
    project.runpytest_inprocess("-p", "no:cacheprovider", f"--ddpperf-save={name}").assert_outcomes(passed=1)


def test_a_wrong_call_fails_its_test_with_one_line(project: pytest.Pytester) -> None:
    """All of them in one run, because a run takes longer than a call."""
    bodies = [f"def test_{number}(ddpperf, ddpperf_group):\n    {code}\n" for number, code in enumerate(CALLS)]
    project.makepyfile(test_wrong="\n\n".join((SUBJECTS, *bodies)))
    run = project.inline_run("-p", "no:cacheprovider")
    assert run.ret == FAILED
    reports = [report for report in run.getreports("pytest_runtest_logreport") if report.when == "call"]
    assert len(reports) == len(CALLS)
    for report, (code, line) in zip(reports, CALLS.items(), strict=True):
        assert report.outcome == "failed", code
        require_one_clear_line(report.longreprtext, f"^(E +)?{line}")


COMMANDS: Mapping[tuple[str, ...], str] = {
    (): r"ddpperf: error: the following arguments are required: COMMAND",
    ("lsit",): r".*invalid choice: 'lsit'",
    ("list", "-k", "small"): r"ddpperf: error: unrecognized arguments: -k small",
    ("list", "--set", "a/b"): r".*argument --set: expected a name of letters",
    ("list",): r"ddpperf: error: the folder of baselines baselines does not exist; .*--ddpperf-save, .*--baselines",
    ("list", "--baselines", "none"): r"ddpperf: error: the folder of baselines none does not exist; .*--baselines",
    ("show",): r".*the following arguments are required: TEST\|FILE",
    ("show", "test_x"): r"ddpperf: error: the folder of baselines baselines does not exist",
    ("show", "text.txt"): r"ddpperf: error: the folder of baselines baselines does not exist; write baselines",
    (
        "trend",
        "--history",
        "text.txt",
    ): r"ddpperf: error: history file text.txt: .*the file is broken, or is not a history; ",
    ("trend", "--last", "0"): r".*argument --last: expected a whole number of at least 1",
    ("trend", "--least", "2"): r".*argument --least: expected a fraction",
    ("calibrate", "--runs", "1"): r".*argument --runs: expected a whole number of at least 2",
    ("simulate", "perf"): r".*the following arguments are required: --world-size",
    ("simulate", "--world-size", "0"): r".*argument --world-size: expected a number of ranks of at least 1",
    ("network", "--min-size=0"): r".*argument --min-size: expected a number of bytes above 0, such as 2GiB",
    ("network", "--world-size=1"): r".*expected a number of ranks of at least 2, or several separated by commas, such",
    ("bisect", "--good=v0", "--packages", "a", "b"): r".*argument --packages: not allowed with argument --good",
    (
        "bisect",
        "--packages",
        "a",
        "b",
        "--pip-args='-i",
    ): r".*expected arguments as a shell takes them: No closing quot",
    ("bisect",): r"ddpperf bisect: error: one of the arguments --good --packages is required",
    ("bisect", "test_x.py::test_it"): r"ddpperf bisect: error: one of the arguments --good --packages is required",
    (
        "bisect",
        "--good",
        "main",
        "test_x.py::test_it",
    ): r"ddpperf: error: .*in no git repository; run bisect in a git checkout",
}


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_wrong_command_is_answered_with_one_line(
    tmp_path: Path, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("no such thing\n" * 100)
    try:
        status = main(arguments)
    except SystemExit as ended:  # argparse
        status = int(ended.code or 0)
    require_one_clear_line("".join(capsys.readouterr()), f"^{COMMANDS[arguments]}")
    assert status == COMMAND
