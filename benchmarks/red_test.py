"""Makes the red test of the README: runs it, prints its failure, and makes pictures of the terminal and of the page.

``pip install -c constraints.txt -e '.[test,docs]' && python benchmarks/red_test.py > benchmarks/results/red_test.txt``,
on a machine that does nothing else and has Chromium (``CHROMIUM`` names another one). The pictures are
``docs/red.svg`` and ``docs/page.png``.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

DOCS = Path(__file__).parents[1] / "docs"
WIDTH = 100
WINDOW = "1120,720"  # pixels of the page that the picture shows
GUARD = "            with nullcontext() if number == last else model.no_sync():\n"
TRAINER = f"""\
from contextlib import nullcontext

import torch
from torch.nn.parallel import DistributedDataParallel


def make_step(ctx):
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
    model = DistributedDataParallel(model, bucket_cap_mb=0.5)
    optimizer = torch.optim.AdamW(model.parameters())
    batches = [torch.randn(256, 256) for _ in range(4)]
    last = len(batches) - 1

    def step():
        for number, batch in enumerate(batches):
{GUARD}                loss = (model(batch) - batch).square().mean() / len(batches)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step
"""
TEST = """\
from trainer import make_step


def test_step(ddpperf):
    ddpperf.check(make_step, samples_per_step=1024, verify=False)
"""


def run(folder: Path, *command: str, status: int = 0) -> str:
    """Runs a command in the project; returns what it wrote, in colour."""
    done = subprocess.run(command, cwd=folder, text=True, capture_output=True, check=False)
    if done.returncode != status:
        sys.exit(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout


def photograph(page: Path, picture: Path) -> None:
    """Opens a page in Chromium, and writes a picture of its window."""
    browser = os.environ.get("CHROMIUM", "chromium")
    options = ("--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={WINDOW}", f"--screenshot={picture}")
    subprocess.run([browser, *options, page.as_uri()], check=True, capture_output=True)


def main() -> None:
    """Saves a baseline, removes the line, runs the test, and makes the pictures."""
    with tempfile.TemporaryDirectory() as scratch:
        project = Path(scratch)
        (project / "perf").mkdir()
        (project / "perf" / "test_trainer.py").write_text(TEST)
        (project / "trainer.py").write_text(TRAINER)
        (project / "pytest.ini").write_text("[pytest]\npythonpath = .\nddpperf_world_size = 2\n")
        pytest = (sys.executable, "-m", "pytest", "perf", "--color=yes", "-p", "no:randomly", "-p", "no:cacheprovider")
        git = ("git", "-c", "user.name=a", "-c", "user.email=a@b")
        commit = (*git, "commit", "-q", "-m", "A trainer")
        run(project, *git, "init", "-q")
        run(project, *git, "add", "-A")
        run(project, *commit)
        run(project, "env", f"COLUMNS={WIDTH}", *pytest, "--ddpperf-save")
        run(project, *git, "add", "-A")
        run(project, *commit)
        (project / "trainer.py").write_text(TRAINER.replace(GUARD, "").replace(" " * 16 + "loss", " " * 12 + "loss"))
        page = project / "page.html"
        shown = run(project, "env", f"COLUMNS={WIDTH}", *pytest, f"--ddpperf-report=html:{page}", status=1)
        photograph(page, DOCS / "page.png")
    shown = shown[shown.index("=", shown.index("[100%]")) :]
    text = Text.from_ansi(shown)
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(text)
    console.save_svg(str(DOCS / "red.svg"), title="pytest perf")
    print(text.plain)


if __name__ == "__main__":
    main()
