"""ddpperf init: what it writes is right for the project, and runs green at once."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from pytest_ddpperf.cli.command import main
from tests.cli.running import Run

TRAIN = """
import argparse

import torch
from torch.nn.parallel import DistributedDataParallel

WIDTH = 64


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    torch.distributed.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, WIDTH), torch.nn.Linear(WIDTH, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(parser.parse_args().epochs):
        for _ in range(10):
            optimizer.zero_grad()
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
"""
PLAIN = """
import torch

model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(2000):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""
QUICK = ("-q", "--ddpperf-counts=only", "--ddpperf-device=cpu", "--ddpperf-world-size=2")


@pytest.mark.parametrize(
    ("files", "call"),
    [
        ({"train.py": PLAIN}, 'Script("../train.py"), world_size=1, steps=20'),
        ({"train.py": f"DDP()\n{PLAIN}"}, 'Script("../train.py"), steps=20'),
        (
            {"main.py": "import lightning\nparser.add_argument('--devices')\nlightning.Trainer().fit(1)"},
            'Script("../main.py", "--devices", 2), world_size=2, steps=20',
        ),
        ({"main.py": "import lightning\nlightning.Trainer().fit(1)"}, 'Script("../main.py"), world_size=1, steps=20'),
        (
            {
                "main.py": "import lightning\nlightning.Trainer(devices=CLI(main)).fit(1)",
                "run.sh": "python main.py --devices 8 --data D\n",
            },
            'Script("../main.py", "--data", "D", "--devices", 2), world_size=2, steps=20',
        ),
        (
            {
                "main.py": "import lightning\nlightning.Trainer(devices=CLI(main)).fit(1)",
                "run.sh": "python main.py --devices 0 1 2 3 fit --data D\n",
            },
            'Script("../main.py", "fit", "--data", "D", "--devices", 2), world_size=2, steps=20',
        ),
        (
            {"main.py": "import lightning\nlightning.Trainer(devices=2, num_nodes=2).fit(1)"},
            'Script("../main.py"), world_size=4, steps=20',
        ),
        (
            {"train.py": "import torch\nparser.add_argument('data')\nloss.backward()\nopt.step()"},
            'Script("../train.py"), world_size=1, steps=20',
        ),
    ],
)
def test_the_call_fits_the_framework(here: Path, files: dict[str, str], call: str) -> None:
    for name, code in files.items():
        (here / name).write_text(code)
    assert main(["init"]) == 0
    text = (here / "perf" / "test_training.py").read_text()
    ast.parse(text)
    assert f"    ddpperf.check({call}" in text


def test_the_command_of_a_readme_stands_in_the_test_and_on_the_screen(here: Path, printed: Run) -> None:
    (here / "train.py").write_text(TRAIN)
    (here / "README.md").write_text(f"torchrun train.py \x1b[2J{'--word ' * 40}\n")
    out = printed("init")
    text = (here / "perf" / "test_training.py").read_text()
    ast.parse(text)
    assert "    # README.md starts it by: torchrun train.py " in text
    assert max(map(len, text.split("\n"))) <= 120
    assert "\nREADME.md starts it by: torchrun train.py " in out
    assert all(line.isprintable() for line in (text + out).split("\n"))


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("--data=x --epochs 3 --lr 007", '"--data=x", "--lr", "007", "--epochs", 1000'),
        ('--data=x"),exec("1', '"--epochs", 1000'),
        ("--data=\\x --lr $(id)", '"--epochs", 1000'),
    ],
)
def test_the_arguments_of_a_readme_become_text_and_no_code(here: Path, printed: Run, words: str, call: str) -> None:
    (here / "train.py").write_text(f"parser.add_argument('data')\nparser.add_argument('--epochs')\n{TRAIN}")
    (here / "README.md").write_text(f"torchrun train.py {words}\n")
    out = printed("init")
    text = (here / "perf" / "test_training.py").read_text()
    assert f'    ddpperf.check(Script("../train.py", {call})' in text
    assert ("train.py needs data" in out) is (call == '"--epochs", 1000')
    ast.parse(text)


HOSTILE = "m\nraise SystemExit\n#\x1b]0;owned\x07\u202e"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        (HOSTILE, PLAIN),
        (HOSTILE, f"parser.add_argument('--a\\nb\x1b[2J', required=True)\n{PLAIN}"),
        ("train\udcff", PLAIN),
        ("\U0001f600", PLAIN),
    ],
    ids=["script", "script that needs more", "no text", "beyond 16 bits"],
)
def test_a_name_of_a_file_becomes_neither_code_nor_a_command_of_the_terminal(
    here: Path, name: str, code: str, printed: Run
) -> None:
    (here / "pytest.ini").write_text("[pytest]\n")
    (here / f"{name}.py").write_text(code)
    out = printed("init")
    tree = ast.parse(text := (here / "perf" / "test_training.py").read_text())
    kinds = {type(node) for node in tree.body} - {ast.Import, ast.ImportFrom, ast.Assign}
    assert kinds == {ast.Expr, ast.FunctionDef}
    assert all(line.isprintable() for line in (text + out).split("\n"))
    assert len([line for line in out.split("\n") if ".py trains" in line or ".py needs" in line]) == 1
    scripts = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Script"
    ]
    assert [ast.literal_eval(node.args[0]) for node in scripts] == [f"{name}.py"]


def test_no_file_is_replaced_unless_that_is_asked_for(here: Path, complaint: Run) -> None:
    file = here / "perf" / "test_training.py"
    file.parent.mkdir()
    file.write_text("mine")
    assert complaint("init") == (
        "ddpperf: error: perf/test_training.py exists already: give --force to replace it, "
        "or another folder with --tests\n"
    )
    assert main(["init", "--ci=github"]) == 0  # a job for the test that is there
    job = here / ".github" / "workflows" / "performance.yml"
    job.write_text("mine")
    assert complaint("init", "--ci=github") == (
        "ddpperf: error: .github/workflows/performance.yml exists already: give --force to replace it\n"
    )
    assert main(["init", "--ci=github", "--force"]) == 0
    assert "ddpperf" in job.read_text()
    assert file.read_text() == "mine"
    assert main(["init", "--force"]) == 0
    assert "ddpperf.check" in file.read_text()


@pytest.mark.parametrize("name", ["my perf", "$(id)", "-x", ".."])
def test_a_folder_that_is_outside_or_that_a_shell_or_yaml_would_misread_is_refused(
    here: Path, name: str, complaint: Run
) -> None:
    misread = (
        " has a character that a shell or YAML may change, or begins with -: name a folder of letters, digits and "
        "._-/ that does not begin with -"
    )
    why = f" is not inside the project {here}: name a folder inside it" if name == ".." else misread
    assert complaint("init", f"--tests={name}") == f"ddpperf: error: --tests {name}{why}\n"
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("name", ["{root}/perf", "perf/../perf/"])
def test_a_job_names_the_folder_from_the_root(here: Path, name: str, printed: Run) -> None:
    out = printed("init", "--ci=gitlab", "--tests", name.format(root=here))
    assert "      pytest perf --ddpperf-against=" in (here / ".gitlab" / "performance.yml").read_text()
    assert "there is no perf/test_training.py yet: ddpperf init writes it\n" in out


def test_paths_are_relative_to_the_current_folder_below_the_root(
    here: Path, monkeypatch: pytest.MonkeyPatch, printed: Run, complaint: Run
) -> None:
    (here / "pytest.ini").write_text("[pytest]\n")
    (here / "src").mkdir()
    (here / "src" / "train.py").write_text(TRAIN)
    monkeypatch.chdir(here / "src")
    out = printed("init").splitlines() + printed("init", "--ci=github").splitlines()
    assert out[:2] == ["train.py trains with torch: the test runs it unchanged", "wrote ../perf/test_training.py"]
    assert "wrote ../.github/workflows/performance.yml" in out
    assert [line.split()[:2] for line in out[-3:]] == [["pytest", "../perf"]] * 3
    assert out[-3].endswith(" --ddpperf-quick     a first check, in seconds")
    assert '    ddpperf.check(Script("src/train.py", ' in (here / "perf" / "test_training.py").read_text()
    assert " pytest perf " in (here / ".github/workflows/performance.yml").read_text()
    assert "ddpperf: error: ../perf/test_training.py exists already: " in complaint("init")


def test_the_user_chooses_a_script(here: Path, printed: Run, complaint: Run) -> None:
    (here / "pytest.ini").write_text("[pytest]\n")
    (here / "tools").mkdir()
    (here / "train.py").write_text(TRAIN)
    (here / "tools" / "other.py").write_text(PLAIN)
    (here / "tools" / "asking.py").write_text(f"import argparse\nparser.add_argument('data')\n{PLAIN}")
    others = "other scripts that train: tools/other.py, tools/asking.py; ddpperf init FILE uses another\n"
    assert others in printed("init")
    assert main(["init", "tools/other.py", "--force"]) == 0
    file = here / "perf" / "test_training.py"
    assert '    ddpperf.check(Script("tools/other.py"), world_size=1, steps=20)\n' in file.read_text()
    needs = "tools/asking.py needs data to run: add these arguments after the file name in the test\n"
    assert needs in printed("init", "tools/asking.py", "--force")
    assert '    ddpperf.check(Script("tools/asking.py"), world_size=1, steps=20)\n' in file.read_text()
    (here / "notes.py").write_text("no ( Python")
    (here / "data.json").write_text("null")  # a name, if it were Python
    for name in ("no.py", "notes.py", "data.json", "tools"):
        said = f"ddpperf: error: {name} is not a Python file: name a training script\n"
        assert complaint("init", name, "--force") == said


@pytest.mark.slow
def test_the_small_model_that_is_written_runs_green_at_once(inner: pytest.Pytester, here: Path) -> None:
    assert main(["init"]) == 0
    inner.runpytest("perf", *QUICK).assert_outcomes(passed=1)
    assert (here / "perf" / "test_training.py").is_file()


def test_a_step_that_does_more_is_red_compared_with_the_stored_baseline(inner: pytest.Pytester, here: Path) -> None:
    (here / "pytest.ini").write_text("[pytest]\n")
    (here / "train.py").write_text(TRAIN)
    assert main(["init"]) == 0
    inner.runpytest("perf", *QUICK, "--ddpperf-save").assert_outcomes(passed=1)
    (here / "train.py").write_text(TRAIN.replace("WIDTH = 64", "WIDTH = 128"))
    run = inner.runpytest("perf", *QUICK)
    run.assert_outcomes(failed=1)
    run.stdout.fnmatch_lines(["flops  *FAIL"])


@pytest.mark.parametrize(
    "example", ["accelerate_loop", "ddp_loop", "fsdp2", "hf_trainer", "lightning", "torchtitan_like"]
)
def test_the_examples_are_understood(here: Path, example: str, printed: Run) -> None:
    source = Path(__file__).parents[3] / "examples" / example
    for file in source.glob("*.py"):
        (here / file.name).write_text(file.read_text())
    out = printed("init")
    scripts = {
        "accelerate_loop": ("Accelerate", 'Script("../train.py", "--epochs", 1000)'),
        "ddp_loop": ("torch", 'Script("../train.py", "--epochs", 1000)'),
        "hf_trainer": ("transformers", 'Script("../train.py", "--epochs", 1000)'),
        "lightning": ("Lightning", 'Script("../train.py", "--epochs", 1000, "--devices", 2), world_size=2'),
    }
    framework, call = scripts.get(example, ("", "workload, "))
    assert f"ddpperf.check({call}" in (here / "perf" / "test_training.py").read_text()
    assert (f"trains with {framework}:" in out) is bool(framework)
