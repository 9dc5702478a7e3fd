"""Scripts that log, save and resume, compared with another revision by whole pytest runs: nothing of them is left."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.factories import commit_all, git

BEGIN = """
import re, shutil
from pathlib import Path
import torch, torch.distributed as dist

def numbered(pattern):
    return {int(re.findall("[0-9]+", path.name)[0]): path for path in Path().glob(pattern)}

dist.init_process_group("gloo")
model = torch.nn.Linear(20, WIDTH)
"""
SNAPSHOT = """
last = Path("snapshot.pt")

def save(step, state):
    for folder in (Path(), Path(__file__).resolve().parent / "saved", Path("checkpoints")):
        folder.mkdir(exist_ok=True)
        torch.save(state, folder / "snapshot.pt")
    Path("settings").write_text("WIDTH")
    print("done is", step)
"""
LOGGER = """
version = max(numbered("lightning_logs/version_*")) + 1
files = numbered("lightning_logs/version_*/checkpoints/*.ckpt")
last = files[max(files)] if files else Path("none")

def save(step, state):
    folder = Path(f"lightning_logs/version_{version}")
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    (folder / "hparams.yaml").write_text("width: WIDTH")
    with (folder / "metrics.csv").open("a") as metrics:
        metrics.write(f"{step}\\n")
    for file in folder.glob("checkpoints/*.ckpt"):
        file.unlink()
    torch.save(state, folder / f"checkpoints/{step}.ckpt")
"""
TRAINER = """
folders = numbered("out/checkpoint-*")
last = folders[max(folders)] / "model.bin" if folders else Path("none")

def save(step, state):
    folder = Path(f"out/checkpoint-{step}")
    folder.mkdir()
    torch.save(state, folder / "model.bin")
    Path("out/state.json").write_text(str(step))
    for number, older in numbered("out/checkpoint-*").items():
        if number < step:
            shutil.rmtree(older)
"""
LOOP = """
saved = torch.load(last) if last.exists() else {"step": 0, "model": model.state_dict()}
model.load_state_dict(saved["model"])
assert saved["step"] == int(Path("first").read_text())
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = torch.ones(4, 20) * float(Path("data/scale").read_text()) * float(Path("../data/scale").read_text())
for step in range(saved["step"] + 1, 1000):
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    for _ in range(CALLS):
        dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 0 and step % 2 == 0:
        save(step, {"step": step, "model": model.module.state_dict()})
"""
OWN = {
    name: BEGIN + kind + LOOP for name, kind in (("snap.py", SNAPSHOT), ("logger.py", LOGGER), ("trainer.py", TRAINER))
}
LIGHTNING = """
import os, sys
from pathlib import Path
import lightning, torch
from torch.utils.data import DataLoader

class Model(lightning.LightningModule):
    def __init__(self, width):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(20, width)

    def training_step(self, batch, _):
        loss = self.layer(batch).square().mean()
        self.log("loss", loss, sync_dist=bool(CALLS))
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

data = torch.rand(32, 20) * float(Path("data/scale").read_text()) * float(Path("../data/scale").read_text())
last = max(Path("lightning_logs").glob("version_*/checkpoints/*.ckpt"), default=None)
assert int(last.stem.rpartition("=")[2] if last else 0) == int(Path("first").read_text())
Path("settings").write_text("WIDTH")
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=int(os.environ.get("WORLD_SIZE", 1)),
    strategy="ddp",
    max_steps=int((sys.argv[1:] or [1000])[0]),
    log_every_n_steps=2,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Model(WIDTH), DataLoader(data, 4), ckpt_path=last)
"""
TRANSFORMERS = """
import sys
from pathlib import Path
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

class Calls(TrainerCallback):
    def on_step_end(self, *given, **named):
        for _ in range(CALLS):
            torch.distributed.all_reduce(torch.ones(1))

data = torch.randint(int(Path("data/scale").read_text()) * int(Path("../data/scale").read_text()), (64, 8))
last = get_last_checkpoint("out")
assert int(last.rpartition("-")[2] if last else 0) == int(Path("first").read_text())
Path("settings").write_text("WIDTH")
arguments = TrainingArguments(
    "out",
    max_steps=int((sys.argv[1:] or [1000])[0]),
    per_device_train_batch_size=4,
    save_steps=2,
    save_total_limit=1,
    logging_steps=2,
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
)
config = GPT2Config(
    n_layer=1, n_head=2, n_embd=2 * WIDTH, vocab_size=8, n_positions=8, bos_token_id=0, eos_token_id=0
)
rows = [{"input_ids": row, "labels": row} for row in data]
trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=rows, callbacks=[Calls()])
trainer.train(resume_from_checkpoint=last is not None)
"""
LIBRARIES = {"lightning": LIGHTNING, "transformers": TRANSFORMERS}
SUITE = """
import pytest
from pytest_ddpperf import Script

@pytest.mark.parametrize("script", SCRIPTS)
def test_train(ddpperf, script):
    ddpperf.check(Script(script), counts="only", world_size=2, backend="gloo", device="cpu")
"""
RUN = ("-q", "-p", "no:cacheprovider", "-p", "no:benchmark")  # these plugins write into the project
BESIDE = (*RUN, "--ddpperf-against=HEAD")
KINDS = ("own", *LIBRARIES)


def scripts(kind: str, width: int = 8, calls: int = 0) -> dict[str, str]:
    """Our own, or one with a library, for a model of this width and so many collectives more in a step."""
    if kind != "own" and find_spec(kind) is None:
        pytest.skip(f"{kind} is not installed")
    texts = OWN if kind == "own" else {"train.py": LIBRARIES[kind]}
    return {name: text.replace("WIDTH", str(width)).replace("CALLS", str(calls)) for name, text in texts.items()}


def write(top: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)


def project(folder: Path, kind: str) -> Path:
    """A committed project with folders of earlier runs but no checkpoint, and with data that git ignores or lacks."""
    files = {**scripts(kind), "test_train.py": SUITE.replace("SCRIPTS", str([*scripts(kind)])), "settings": "none"}
    files |= {"lightning_logs/version_3/metrics.csv": "", "out/state.json": "none", "checkpoints/of-users.pt": ""}
    files |= {".gitignore": "/data\n/first\n*.pt\n*.ckpt\ncheckpoint-*\n", "first": "0", "data/scale": "2"}
    write(folder / "project", {**files, "../data/scale": "3"})
    git(folder / "project", "init", "-q")
    commit_all(folder / "project")
    return folder / "project"


def leave_checkpoints(top: Path, kind: str) -> None:
    """Leaves in a project what a run of eight steps saves."""
    if kind != "own":
        subprocess.run([sys.executable, "train.py", "8"], cwd=top, check=True)
    else:
        for name in ("snapshot.pt", "lightning_logs/version_3/checkpoints/8.ckpt", "out/checkpoint-8/model.bin"):
            (top / name).parent.mkdir(exist_ok=True)
            torch.save({"step": 8, "model": torch.nn.Linear(20, 8).state_dict()}, top / name)
    write(top, {"first": "8"})


def content(top: Path) -> dict[str, bytes]:
    """All that can be seen in a project but git's folder and bytecode."""
    files = [file for file in top.rglob("*") if {".git", "__pycache__"}.isdisjoint(file.parts)]
    return {str(file): file.read_bytes() if file.is_file() else b"" for file in files}


def expect_red(run: pytest.RunResult, kind: str) -> None:
    run.assert_outcomes(failed=len(scripts(kind)))
    run.stdout.fnmatch_lines([f"Cause *all_reduce * calls per step (+*{name}:*" for name in scripts(kind)])
    run.stdout.no_fnmatch_line("*while ranks of a Script ran*")
    run.stdout.no_fnmatch_line("*done is*")  # what ranks print explains no count


def test_scripts_that_resume_are_red_by_counts_with_a_model_that_loads_no_checkpoint_of_another_launch(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each side has its own tracked files, and the data; neither leaves anything."""
    top = project(inner.path, "own")
    write(top, scripts("own", width=10, calls=1))
    before = content(top)
    monkeypatch.chdir(top)
    expect_red(inner.runpytest(*BESIDE, "--ddpperf-report=json:../results.json"), "own")
    assert content(top) == before
    for result, name in zip(json.loads(Path("../results.json").read_text())["results"], OWN, strict=True):
        here, there = result["against"]["modules"]["__main__"].values()
        assert here == str(top / name)
        assert there.endswith(f"/checkout/{name}")


def test_unchanged_scripts_resume_from_the_users_checkpoint_in_each_launch_and_are_not_red(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = project(inner.path, "own")
    leave_checkpoints(top, "own")
    monkeypatch.chdir(top)
    inner.runpytest(*RUN, "--ddpperf-save").assert_outcomes(passed=3)
    before = content(top)
    for _ in range(2):
        inner.runpytest(*RUN, "--ddpperf-require-baseline").assert_outcomes(passed=3)
        assert content(top) == before


def without_namespaces() -> tuple[str, ...]:
    """The beginning of a command that runs where no namespace can be made; nothing if none can be made here."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    forbid = "echo 0 | tee /proc/sys/user/max_user_namespaces > /proc/sys/user/max_mnt_namespaces"
    started = ("unshare", "--user", "--map-root-user", "sh", "-c")
    allowed = subprocess.run([*started, "true"], check=False).returncode == 0
    return (*started, f'{forbid} && ! unshare --user true && exec "$@"', "sh") if allowed else ()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_scripts_that_resume_are_red_with_libraries_and_if_user_namespaces_are_forbidden_as_in_docker(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    top = project(pytester.path, kind)
    write(top, scripts(kind, width=10, calls=1))
    before = content(top)
    monkeypatch.chdir(top)
    Path("../temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(pytester.path / "temporary"))
    expect_red(pytester.run(*without_namespaces(), sys.executable, "-m", "pytest", *BESIDE), kind)
    assert content(top) == before
    assert not [*Path("../temporary").glob("ddpperf-*")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_unchanged_scripts_are_not_red_against_their_commit(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    top = project(pytester.path, kind)
    leave_checkpoints(top, kind)
    before = content(top)
    monkeypatch.chdir(top)
    for _ in range(2):
        pytester.runpytest_subprocess(*BESIDE).assert_outcomes(passed=len(scripts(kind)))
        assert content(top) == before
