"""What ddpperf init sees in a project's files, without running any of them."""

from __future__ import annotations

import os
import textwrap
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pytest_ddpperf.cli.init import project as looking
from pytest_ddpperf.cli.init.project import Project, TrainingScript, look_at

LOOP = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("-n", "--num-epochs", type=int, default=1)
parser.add_argument("--out", default=".")
for batch in [1]:
    loss.backward()
    optimizer.step()
raise SystemExit("nobody may run this")
"""
LIBRARY = """
import torch

class Net(torch.nn.Module): ...
class _Hidden(torch.nn.Module): ...
class Other: ...

def fit_once():
    loss.backward()
    optimizer.step()
"""


def project(tmp_path: Path, files: dict[str, str]) -> Project:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    return look_at(tmp_path)


def test_a_loop_that_runs_is_found_with_the_option_that_lets_it_train_for_longer(tmp_path: Path) -> None:
    found = project(tmp_path, {"train.py": LOOP, "pyproject.toml": "", "requirements.txt": ""})
    assert found == Project(
        root=tmp_path,
        rooted=True,
        scripts=(TrainingScript(file=Path("train.py"), framework="torch", longer=("--num-epochs", "1000")),),
        installable=True,
        requirements=True,
    )


def test_a_script_may_train_by_a_module_of_the_project(tmp_path: Path) -> None:
    files = {
        "src/kit/loop.py": LIBRARY,
        "src/kit/__init__.py": "",
        "src/kit/steps.py": "from kit.loop import fit_once\n",
        "scripts/train_net.py": "from kit.steps import fit_once\nif __name__ == '__main__':\n    fit_once()\n",
    }
    found = project(tmp_path, files)
    assert [script.file for script in found.scripts] == [Path("scripts/train_net.py")]
    assert not found.rooted
    assert not found.installable


@pytest.mark.parametrize(
    ("argument", "needs"),
    [
        ('"data", default="x"', ("data",)),
        ('"data", nargs=2, default="x"', ("data",)),
        ('"data", nargs="?"', ()),
        ('"data", nargs="*", default="x"', ()),
        ('"opts", nargs=argparse.REMAINDER', ()),
        ('"opts", nargs="..."', ()),
        ('"--data", required=True', ("--data",)),
        ('"--data", required=False', ()),
    ],
)
def test_arguments_that_a_script_requires_are_named(tmp_path: Path, argument: str, needs: tuple[str, ...]) -> None:
    code = LOOP.replace('"--out", default="."', argument)
    assert [script.needs for script in project(tmp_path, {"train.py": code}).scripts] == [needs]


def test_the_likeliest_script_comes_first(tmp_path: Path) -> None:
    needing = LOOP.replace('"--out", default="."', '"data"')
    files = {"train.py": needing, "a/train.py": LOOP, "main.py": LOOP, "pretrain.py": LOOP, "tools/x.py": LOOP}
    found = project(tmp_path, files)
    order = ["a/train.py", "pretrain.py", "main.py", "tools/x.py", "train.py"]
    assert [script.file.as_posix() for script in found.scripts] == order


def test_files_that_are_not_training_code_of_the_project_are_omitted(tmp_path: Path) -> None:
    files = {
        "tests/train.py": LOOP,
        "perf/train.py": LOOP,
        ".hidden/train.py": LOOP,
        "env/pyvenv.cfg": "",
        "env/lib/train.py": LOOP,
        "test_train.py": LOOP,
        "broken.py": "def (",
        "plain.py": "import torch\nmodel(1)\n",
        "library.py": LIBRARY,
    }
    assert project(tmp_path, files).scripts == ()


@pytest.mark.parametrize(
    "code",
    [
        b"x = " + b"-" * 200_000 + b"1",  # MemoryError
        b"x = '\0'",
        b"# coding: none-such\n",
        b"x = '\xff'",
        b"x = '" + b"y" * looking.MOST_BYTES + b"'\n" + LIBRARY.encode(),
    ],
    ids=["signs", "NUL", "coding", "no text", "data"],
)
def test_a_file_that_cannot_be_parsed_is_omitted(tmp_path: Path, code: bytes) -> None:
    (tmp_path / "odd.py").write_bytes(code)
    found = project(tmp_path, {"train.py": LOOP})
    assert [script.file.as_posix() for script in found.scripts] == ["train.py"]


def test_a_file_that_is_nested_as_deep_as_can_be_parsed_is_read(tmp_path: Path) -> None:
    deep = "a" + "+a" * 700
    nested = f"{LIBRARY}\nclass Deep({deep}, torch.nn.Module): ...\nif {deep} == '__main__':\n    fit_once()\n"
    found = project(tmp_path, {"train.py": nested})
    assert [script.file.as_posix() for script in found.scripts] == ["train.py"]


def test_no_more_code_is_read_than_a_limit_for_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"a.py": LIBRARY, "b.py": LOOP, "deeper/train.py": LOOP}
    monkeypatch.setattr(looking, "MOST_BYTES_OF_ALL", len(LIBRARY) + 2 * len(LOOP))
    assert [script.file.as_posix() for script in project(tmp_path, files).scripts] == ["deeper/train.py", "b.py"]
    monkeypatch.setattr(looking, "MOST_BYTES_OF_ALL", len(LIBRARY) + 2 * len(LOOP) - 1)
    assert [script.file.as_posix() for script in look_at(tmp_path).scripts] == ["b.py"]


def test_warnings_of_python_about_parsed_code_are_ignored(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = project(tmp_path, {"train.py": f'{LOOP}\nx = "\\d" is 1\n'})
    assert [script.file.as_posix() for script in found.scripts] == ["train.py"]


def test_a_folder_that_cannot_be_read_is_omitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def refusing(folder: str | Path) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
        if Path(folder).name == "locked":  # chmod does not stop root
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refusing)
    found = project(tmp_path, {"a/train.py": LOOP, "locked/train.py": LOOP, "z/train.py": LOOP})
    assert [script.file.as_posix() for script in found.scripts] == ["a/train.py", "z/train.py"]


def test_a_folder_of_data_does_not_keep_the_code_from_being_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = {f"data/{number}.png": "" for number in range(30)}
    monkeypatch.setattr(looking, "MOST_IN_FOLDER", 10)
    monkeypatch.setattr(looking, "MOST_ENTRIES", 20)
    found = project(tmp_path, {**images, "src/train.py": LOOP, "src/deeper/kit/train.py": LOOP})
    assert [script.file.as_posix() for script in found.scripts] == ["src/train.py", "src/deeper/kit/train.py"]
    monkeypatch.setattr(looking, "MOST_ENTRIES", 14)  # 2 of the root, 10 of data, 2 of src
    found = look_at(tmp_path)
    assert [script.file.as_posix() for script in found.scripts] == ["src/train.py"]


STEP = "    loss.backward()\n    optimizer.step()\n"
GUARD = "if __name__ == '__main__':\n"
LOOP_OF = f"import torch\n{{joins}}\ndef main():\n{STEP}{GUARD}    main()\n"
PLAIN, DDP = LOOP_OF.format(joins=""), LOOP_OF.format(joins="torch.distributed.init_process_group()")
SPAWN = DDP.replace("    main()\n", "    torch.multiprocessing.spawn(main)\n")
HYDRA = """
import hydra
from lightning import Trainer

@hydra.main(config_path="configs", config_name="train")
def main(cfg):
    trainer: Trainer = hydra.utils.instantiate(cfg.trainer)
    trainer.{what}(model)

if __name__ == "__main__":
    main()
"""
FABRIC = f"import lightning as L\nfabric = L.Fabric(devices=2)\nfor _ in data:\n{STEP}".replace("loss.", "fabric.")
CLASS = """
from torch.nn.parallel import DistributedDataParallel
import torch

class Trainer:
    def __init__(self, model):
        self.model = DistributedDataParallel(model)

    def run(self):
        self.loss.backward()
        self.optimizer.step()

    def evaluate(self):
        self.model.eval()
"""
TRAINS = f"{CLASS}\n{GUARD}    Trainer().run()\n"
RUNS = "from {of} import Trainer\nif __name__ == '__main__':\n    trainer = Trainer(model)\n    trainer.{what}()\n"
SFT = "from trl import SFTTrainer\n\ndef main():\n    trainer = SFTTrainer(model)\n    trainer.train()\n\nmain()\n"
OWN = "import transformers\n\nclass MyTrainer(transformers.Trainer):\n    def compute_loss(self, model, inputs): ...\n"
REPOSITORIES = {
    "a neighbour's Trainer": (
        {
            "projects/adder/adder.py": RUNS.format(of="trainer", what="run"),
            "projects/adder/score.py": RUNS.format(of="trainer", what="evaluate"),
            "projects/adder/trainer.py": CLASS,
        },
        ["projects/adder/adder.py torch"],
    ),
    "TRL": (
        {
            "scripts/sft.py": SFT.replace(
                "def main():\n", "def main():\n    from trl import TrlParser\n    TrlParser()\n"
            ),
            "scripts/dpo.py": SFT.replace("SFT", "DPO"),
            "scripts/own.py": "from ours import MyTrainer\nMyTrainer().train()\n",
            "scripts/ours.py": OWN,
        },
        ["scripts/dpo.py trl", "scripts/own.py transformers", "scripts/sft.py trl"],
    ),
    "a converter": (
        {
            "train.py": "def load(): ...\n" + SFT.replace("trl", "transformers").replace("SFT", ""),
            "convert.py": "from train import load\nif __name__ == '__main__':\n    load().train()\n",
        },
        ["train.py transformers"],
    ),
    "DDP tutorial": (
        {"multigpu.py": SPAWN, "multigpu_torchrun.py": DDP, "single_gpu.py": PLAIN},
        ["multigpu_torchrun.py torch", "multigpu.py torch", "single_gpu.py torch"],
    ),
    "DINO": (
        {"eval_linear.py": DDP, "main_dino.py": DDP, "run_with_submitit.py": "import main_dino\nmain_dino.main()\n"},
        ["main_dino.py torch", "run_with_submitit.py torch", "eval_linear.py torch"],
    ),
    "a launcher of Slurm jobs": (
        {
            "kit/run/train.py": "import submitit\nfrom kit.train import main\nsubmitit.AutoExecutor().submit(main)\n",
            "kit/train.py": DDP,
            "README.md": "python kit/run/train.py --nodes 4\n",
        },
        ["kit/train.py torch", "kit/run/train.py torch"],
    ),
    "recipes": (
        {
            "recipes/lora_single_device.py": DDP,
            "recipes/full_distributed.py": DDP,
            "README.md": "[a recipe](recipes/lora_single_device.py)\n",
        },
        ["recipes/full_distributed.py torch", "recipes/lora_single_device.py torch"],
    ),
    "a console script": (
        {
            "kit/__main__.py": "from kit.pretrain import main\nmain()\n",
            "kit/pretrain.py": f"import lightning as L\ndef main():\n    L.Fabric()\n    fit()\ndef fit():\n{STEP}",
            "extra/xla/train.py": FABRIC,
            "extra/xla/README.md": "python train.py\n",
            "pyproject.toml": "[project.scripts]\nkit = 'kit.__main__:main'\n",
        },
        ["kit/__main__.py fabric", "extra/xla/train.py fabric"],
    ),
    "a shorter name": ({"a_plain_train_net.py": DDP, "train_net.py": DDP}, ["train_net.py torch"]),
    "names of arguments": (
        {
            "train.py": f"{DDP.replace('def main', 'def train')[: -len('main()') - 1]}train()\n",
            "score.py": "from train import Net\ndef main(train=True):\n    Net(train)\nmain()\n",
        },
        ["train.py torch"],
    ),
    "a class in a class": (
        {
            "train.py": TRAINS.replace("    def evaluate", "    class Config: ...\n\n    def evaluate"),
            "score.py": "from train import Trainer\nprint(isinstance(x, Trainer.Config), x.run())\n",
        },
        ["train.py torch"],
    ),
    "what only reads": (
        {"train.py": TRAINS, "infer/infer.py": RUNS.format(of="train", what="run"), "numerical_tests_kit.py": DDP},
        ["train.py torch"],
    ),
    "Accelerate": (
        {
            "src/accelerate/accelerator.py": f"class Accelerator:\n    def backward(self):\n    {STEP}",
            "src/accelerate/__init__.py": "from .accelerator import Accelerator\n",
            "examples/by_feature/megatron_lm_gpt_pretraining.py": "from accelerate import Accelerator\n" + DDP,
            "examples/nlp_example.py": "from accelerate import Accelerator\nAccelerator()\n" + PLAIN,
            "examples/inference/llama.py": "from accelerate import Accelerator\nAccelerator().prepare(model)\n",
            "examples/README.md": "accelerate launch ./nlp_example.py\n",
            "examples/a_example.py": "from accelerate import Accelerator\nAccelerator()\n" + PLAIN,
        },
        ["examples/nlp_example.py accelerate", "examples/a_example.py accelerate"],
    ),
    "a function with the name of a framework": (
        {"train.py": f"def accelerate(model):\n{STEP}\ndef main():\n    accelerate(Net())\nmain()\n"},
        ["train.py accelerate"],
    ),
    "a neighbour with the name of a framework": (
        {
            "transformers.py": DDP.replace("def main", "def fit").replace("    main()", "    ..."),
            "train.py": "from transformers import fit\nfit()\n",
        },
        ["train.py torch"],
    ),
    "named at the root": (
        {
            "apps/a/train.py": DDP,
            "apps/a/README.md": "python apps/a/train.py\n",
            "apps/b/train.py": DDP,
            "README.md": "torchrun --nproc-per-node 8 -m apps.b.train config=debug.yaml\n",
        },
        ["apps/b/train.py torch", "apps/a/train.py torch"],
    ),
    "DeepSpeed": (
        {"a.py": PLAIN, "b_deepspeed.py": f"import deepspeed\ndeepspeed.init_distributed()\n{PLAIN}"},
        ["b_deepspeed.py torch", "a.py torch"],
    ),
    "Ignite": (
        {"a.py": PLAIN, "b.py": f"import ignite.distributed as idist\nidist.auto_model(Net())\n{PLAIN}"},
        ["b.py torch", "a.py torch"],
    ),
    "a scaler that steps": (
        {
            "main.py": "from engine import train_one_epoch\nfrom timm.utils import NativeScaler\n"
            "train_one_epoch(NativeScaler())\n",
            "engine.py": "import torch\ndef train_one_epoch(scaler):\n    scaler(loss, optimizer)\n",
        },
        ["main.py torch"],
    ),
    "hydra": (
        {"src/train.py": HYDRA.format(what="fit"), "src/eval.py": HYDRA.format(what="test")},
        ["src/train.py lightning"],
    ),
    "Lightning": (
        {
            "cli.py": "from lightning.pytorch.cli import LightningCLI\nLightningCLI(Model)\n",
            "main.py": HYDRA.format(what="fit").replace("lightning", "pytorch_lightning"),
        },
        ["main.py lightning", "cli.py lightning"],
    ),
    "Lightning's own repository": (
        {
            "src/lightning/__init__.py": "from lightning.launcher import Trainer\n",
            "src/lightning/launcher.py": "import torch\nclass Trainer:\n    def fit(self):\n"
            "        torch.multiprocessing.spawn(run)\n",
            "examples/cli.py": "from lightning.pytorch.cli import LightningCLI\nLightningCLI(Model)\n",
            "examples/main.py": HYDRA.format(what="fit"),
        },
        ["examples/main.py lightning", "examples/cli.py lightning"],
    ),
    "a module that can be run": (
        {"kit/trainer.py": TRAINS, "kit/registry.py": "from kit.trainer import Trainer\nALL = [Trainer]\n"},
        ["kit/trainer.py torch"],
    ),
    "a package that python -m runs": (
        {"src/kit/__main__.py": f"from .loop import Trainer\n{GUARD}    Trainer().run()\n", "src/kit/loop.py": CLASS},
        ["src/kit/__main__.py torch"],
    ),
    "nothing that trains": (
        {
            "kit/model.py": f"import torch\n\nclass Net(torch.nn.Module): ...\n\n{GUARD}    Net()(torch.ones(1))\n",
            "serve.py": "from kit.model import Net\nimport torch\nNet().eval()\n",
        },
        [],
    ),
    "a command of typer": (
        {"cli.py": f"import torch, typer\napp = typer.Typer()\n@app.command()\ndef train():\n{STEP}{GUARD}    app()\n"},
        ["cli.py torch"],
    ),
    "one that the README starts": (
        {"train.py": DDP, "kit/go.py": PLAIN, "README.md": "See train.py.\n```\npython kit/go.py --lr 1\n```\n"},
        ["kit/go.py torch", "train.py torch"],
    ),
    "several that the README starts": (
        {"a.py": PLAIN, "kit/b.py": PLAIN, "c.py": PLAIN, "README.md": "```\npython kit/b.py\npython a.py\n```\n"},
        ["kit/b.py torch", "a.py torch", "c.py torch"],
    ),
    "one that a README starts, behind one that another README names": (
        {
            "train_b.py": DDP,
            "examples/a/README.md": "`train_b.py`",
            "examples/b/pretrain_a.py": DDP,
            "examples/b/README.md": "```\ntorchrun pretrain_a.py\n```",
        },
        ["examples/b/pretrain_a.py torch", "train_b.py torch"],
    ),
    "a module that DeepSpeed starts": (
        {"kit/a.py": DDP, "kit/b.py": DDP, "README.md": "deepspeed --module kit.b --bf16\n"},
        ["kit/b.py torch", "kit/a.py torch"],
    ),
    "commands whose arguments the code does not show": (
        {
            "a.py": "import click\n" + PLAIN.replace("def", "@click.group()\ndef"),
            "b.py": f"import fire\n{PLAIN}    fire.Fire(main)\n",
            "c.py": PLAIN,
        },
        ["c.py torch", "a.py torch", "b.py torch"],
    ),
    "a command whose arguments the README shows": (
        {"a.py": f"import fire\n{PLAIN}    fire.Fire(main)\n", "b.py": PLAIN, "README.md": "`python a.py run`\n"},
        ["a.py torch", "b.py torch"],
    ),
    "a star": (
        {"main.py": "import torch\nfrom engine import *\nfit_once()\n", "engine.py": LIBRARY},
        ["main.py torch"],
    ),
}


@pytest.mark.parametrize("name", REPOSITORIES)
def test_the_scripts_of_public_repositories_are_ranked(tmp_path: Path, name: str) -> None:
    files, ranked = REPOSITORIES[name]
    found = [f"{script.file.as_posix()} {script.framework}" for script in project(tmp_path, files).scripts]
    assert found[: len(ranked)] == ranked
    assert bool(found) is bool(ranked)
    told = {script.split()[0] for script in found}
    assert not told & {
        "convert.py",
        "projects/adder/score.py",
        "examples/inference/llama.py",
        "src/eval.py",
        "serve.py",
        "score.py",
        "infer/infer.py",
        "numerical_tests_kit.py",
    }
    assert "kit/registry.py" not in told


@pytest.mark.parametrize(
    ("options", "longer"),
    [
        # A rollout's steps, in reinforcement learning: 100,000 of them come before the first optimizer step.
        (("--num-steps", "--total-timesteps", "--update-epochs"), ("--total-timesteps", "100000")),
        (("--max_train_steps", "--num_train_epochs"), ("--num_train_epochs", "1000")),
        (("--steps",), ("--steps", "100000")),
        (("--niter",), ("--niter", "1000")),
        (("--seed",), ()),
    ],
)
def test_of_several_options_the_surest_one_lets_a_script_train_for_longer(
    tmp_path: Path, options: tuple[str, ...], longer: tuple[str, ...]
) -> None:
    asked = "".join(f"parser.add_argument({option!r}, type=int)\n" for option in options)
    (script,) = project(tmp_path, {"train.py": f"{asked}{PLAIN}"}).scripts
    assert script.longer == longer


@pytest.mark.parametrize(
    ("file", "text", "command"),
    [
        ("README.md", "Run it:\n\n    $ torchrun train.py \\\n        --data D\n", "torchrun train.py --data D"),
        ("README.md", "Run `A=1 python kit/../train.py x`, or else.", "A=1 python kit/../train.py x"),
        (
            "README.md",
            "python train.py --help\npython train.py --eval x\npython train.py --evals\n",
            "python train.py --evals",
        ),
        ("START.md", "python -m other\naccelerate launch train.py\n", "accelerate launch train.py"),
        ("run.sh", "srun python train.py $1\n", "srun python train.py $1"),
        ("README.md", "    uv run torchrun train.py\n", "uv run torchrun train.py"),
        ("README.md", "fabric run --devices=2 \\\n  train.py\n", "fabric run --devices=2 train.py"),
        ("README.md", "lightning run model train.py\n", "lightning run model train.py"),
        ("README.md", "```\npython train.py   trains\n```", "python train.py"),
        ("run.sh", "python  train.py  x\n", "python  train.py  x"),
        ("run.sh", "python other.py\n# train.py\npip install python train.py-x\n", ""),
    ],
)
def test_the_command_by_which_a_readme_starts_a_script_is_shown(
    tmp_path: Path, file: str, text: str, command: str
) -> None:
    (script,) = project(tmp_path, {"train.py": DDP, file: text}).scripts
    assert script.command == (f"{file} starts it by: {command}" if command else "")


@pytest.mark.parametrize(
    ("command", "given"),
    [
        ("torchrun --nproc_per_node=2 train.py --config small.yaml", ("--config", "small.yaml")),
        ("python train.py config/small.py 2> log | tail", ("config/small.py",)),
        ("python train.py trains the model.", ()),
        ("```sh\n$ python train.py run\n```", ("run",)),
        ("```sh\nls\n```\npython train.py run", ()),
        ("Call `python train.py run` to train.", ("run",)),
        ("```sh\npython train.py   trains the model\n```", ()),
        ("```sh\npython train.py run --lr 1   trains the model\n```", ("run", "--lr", "1")),
        ("```sh\npython  train.py  --lr 1  \\\n    run\n```", ("--lr", "1", "run")),
        ("Use ``` for code.\n\npython train.py trains the model.", ()),
        ("Use ``` for code.\n\n  ```sh\n  python train.py run\n  ```", ("run",)),
        ("```python train.py run```", ("run",)),
        ("python train.py --data $DATA", ()),
        ("python train.py --data path/to/data", ()),
        ("python train.py --lr 1 ...", ()),
        ("python train.py --x 'a b'", ()),
    ],
)
def test_plain_arguments_of_a_command_are_passed_to_the_script(
    tmp_path: Path, command: str, given: tuple[str, ...]
) -> None:
    (script,) = project(tmp_path, {"train.py": DDP, "README.md": f"{command}\n"}).scripts
    assert script.given == given


def test_a_subcommand_of_a_module_is_an_argument(tmp_path: Path) -> None:
    code = f"from jsonargparse import CLI\n{DDP}CLI({{'train': 1}})\n"
    files = {"kit/__main__.py": code, "README.md": "python -m kit train --steps 3\n"}
    (script,) = project(tmp_path, files).scripts
    assert (script.given, script.needs) == (("train", "--steps", "3"), ("the arguments of CLI",))


@pytest.mark.parametrize("file", ["mytrain/__main__.py", "src/mytrain/__main__.py", "src/mytrain.py", "mytrain.py"])
def test_the_command_by_which_a_readme_starts_a_module_is_shown(tmp_path: Path, file: str) -> None:
    (script,) = project(tmp_path, {file: DDP, "README.md": "    torchrun --nproc_per_node 8 -m mytrain a=5\n"}).scripts
    assert script.command == "README.md starts it by: torchrun --nproc_per_node 8 -m mytrain a=5"


@pytest.mark.parametrize("text", ["a", "`a=", "python ", "a=b ", " ", "```"])
def test_a_large_file_that_may_name_scripts_is_read_in_seconds(tmp_path: Path, text: str) -> None:
    """If each letter were read twice for each letter before it, these 100,000 would take minutes."""
    long = text * (100_000 // len(text))
    started = time.process_time()
    assert project(tmp_path, {"train.py": DDP, "README.md": long}).scripts[0].named == looking.FAR
    assert time.process_time() - started < 20


METHODS = "".join(f" def m{i}(self): self.m{i + 1}()\n" for i in range(15_000))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("long.py", ("f()" + ".a" * 2500 + "\n") * 190),
        ("long.py", f"A{'a' * 200_000}.b()\n"),
        (
            "long.py",
            "class C:\n" + "".join(f" def m{i}(self): self.m{i + 1}()\n" for i in range(15_000)) + "C().m0()\n",
        ),
        (
            "long.py",
            "from train import *\n"
            + "".join(f"def d{i}(): pass\n" for i in range(15_000))
            + "".join(f"a{i}()\n" for i in range(15_000)),
        ),
        ("run{}.sh", "".join(f"{i}.py\n" for i in range(100_000))),
    ],
    ids=["attributes", "name", "methods", "names of another module", "files"],
)
def test_a_large_file_is_read_in_seconds(tmp_path: Path, file: str, text: str) -> None:
    """If each part were read twice for each part before it, these would take minutes."""
    started = time.process_time()
    files = {file.format(i): text for i in range(9)}
    assert project(tmp_path, {"train.py": DDP, **files}).scripts[0].file == Path("train.py")
    assert time.process_time() - started < 20


def test_a_call_at_the_start_of_a_chain_is_a_call(tmp_path: Path) -> None:
    code = "import torch\nmodel().loss.backward()\nmake(torch.optim.SGD).last.step()\n"
    assert [each.file for each in project(tmp_path, {"train.py": code}).scripts] == [Path("train.py")]


def test_scripts_below_the_current_folder_come_first(tmp_path: Path) -> None:
    """Also one that is less likely than others, such as one that trains in a single process."""
    files = {"pytest.ini": "", "train.py": FABRIC, "rl/run.py": PLAIN, "rl/kit/b.py": PLAIN, "docs/a.md": ""}
    project(tmp_path, files)
    ranked = [script.file.as_posix() for script in look_at(tmp_path / "rl").scripts]
    assert ranked == ["rl/run.py", "rl/kit/b.py", "train.py"]
    assert look_at(tmp_path / "docs").scripts[0].file == Path("train.py")


def test_scripts_that_start_processes_or_need_arguments_are_named(tmp_path: Path) -> None:
    spawning, asking = project(
        tmp_path, {"a.py": SPAWN, "scripts/sft.py": REPOSITORIES["TRL"][0]["scripts/sft.py"]}
    ).scripts
    assert (spawning.file.name, spawning.starts, asking.starts) == ("sft.py", False, True)
    assert spawning.needs == ("the arguments of TrlParser",)


def test_options_of_a_parser_in_another_module_belong_to_the_script(tmp_path: Path) -> None:
    options = "import argparse\ndef get_parser():\n    argparse.ArgumentParser().add_argument('--max_steps')\n"
    main = f"from options import get_parser\nget_parser()\n{DDP}"
    (script,) = project(tmp_path, {"a/main.py": main, "a/options.py": options}).scripts
    assert script.longer == ("--max_steps", "100000")
