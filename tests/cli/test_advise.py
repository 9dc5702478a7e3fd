from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_ddpperf.baselines import fingerprint
from pytest_ddpperf.launch.launchers import Launchers
from pytest_ddpperf.planner import predicting
from pytest_ddpperf.planner.predicting import Predictor
from pytest_ddpperf.reports.progress import LiveLine
from pytest_ddpperf.run.session import sides
from tests.cli.running import Run

TRAIN = """
import torch
from torch import nn
from pytest_ddpperf import Workload

workload = Workload(
    model=lambda: nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)]),
    batch=lambda: (torch.randn(8, 64), torch.randn(8, 64)),
    loss=nn.functional.mse_loss,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    samples_per_step=8,
)
number = 3


def of_width(width):
    return Workload(
        model=lambda: nn.Linear(width, width, bias=False),
        batch=lambda: (torch.randn(8, width), torch.randn(8, width)),
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        samples_per_step=8,
    )
"""
ASKED = ["--world-size=64", "--network=nvlink-infiniband400", "--accelerator=h100", "--precisions=fp32"]


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, launchers: Launchers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sides, "Launchers", lambda *_: launchers)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "advised_train", raising=False)  # of an earlier test's folder
    Path("advised_train.py").write_text(TRAIN)
    Path("advised_needs.py").write_text("import nothing_at_all\n")
    Path("advised_typo.py").write_text("import os\nworkload = (\n")
    Path("advised_broken.py").write_text("import os\n\nos.environ['RANK']\n")


def test_advise_names_the_best_settings_for_training(printed: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """And each candidate while it runs."""
    shown: list[str] = []
    monkeypatch.setattr(LiveLine, "show", lambda _, text: shown.append(text))
    strategies = "--strategies=flat,bucketed[bucket_cap_mb=1,first_bucket_mb=1],naive"
    out = printed("advise", "advised_train.py:workload", *ASKED, strategies)
    assert (shown[0], shown[2:4]) == (
        "flat: memory, candidate 1 of 3",
        ["naive: memory, candidate 3 of 3", "flat: launch 1 of 1"],
    )
    assert len(shown) == 6
    assert "variants on 64 ranks, nvlink-infiniband400, computing of h100" in out
    assert out.splitlines()[-1].startswith("best: strategy='flat'")


def test_nothing_fits_into_little_memory(printed: Run) -> None:
    assert "no candidate fits in memory: use more ranks" in printed(
        "advise", "advised_train:workload", *ASKED, "--strategies=flat", "--memory=64KiB", status=1
    )


def test_a_candidate_that_does_not_fit_into_this_machine_is_not_timed(printed: Run) -> None:
    asked = ["--world-size=64", "--network=nvlink-infiniband400", "--precisions=fp32", "--strategies=flat"]
    lines = printed("advise", "advised_train:of_width", *asked, "--batch-sizes=1000000,64").splitlines()
    (large,) = (line for line in lines if "1000000" in line)
    assert "not timed: the model is too large to be timed in this machine's memory; name an accelerator" in large
    assert lines[-1] == "best: strategy='flat', with a batch of 64 samples on each rank"
    assert "no candidate could be timed here: give --accelerator" in printed(
        "advise", "advised_train:of_width", *asked, "--batch-sizes=1000000", status=1
    )


@pytest.mark.parametrize(
    ("stored", "own", "said"),
    [
        (
            None,
            8,
            "no network is given, and none was measured for KEY: measure the network with ddpperf network --world",
        ),
        (None, 8, "or give one of nvlink-infiniband400"),
        (None, 1, "none was measured for KEY, and 2 ranks would share cores or GPUs here: give one of nvlink"),
        ('{"schema": "pytest-ddpperf', 8, "network.json"),
    ],
)
def test_a_missing_or_broken_network_file_is_reported_before_anything_runs(
    stored: str | None, own: int, said: str, complaint: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Predictor, "_simulated", lambda *_, **__: pytest.fail("ranks ran before the network was read"))
    monkeypatch.setattr(Predictor, "_room", lambda *_: own)
    for module in (predicting, fingerprint):
        monkeypatch.setattr(module, "environment_key", lambda _: "KEY")
    if stored is not None:
        Path("stored/KEY").mkdir(parents=True)
        Path("stored/KEY/network.json").write_text(stored)
    asked = ["--world-size=2", "--accelerator=h100", "--strategies=ddp,flat", "--baselines=stored"]
    assert said in " ".join(complaint("advise", "advised_train.py:workload", *asked).split())


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("advised_train.py", "expected FILE.py:NAME"),
        ("nothing.py:workload", "there is no file nothing.py"),
        ("nothing_at_all:workload", "cannot be imported: there is no module 'nothing_at_all': install it, or name"),
        ("advised_needs.py:workload", "cannot be imported: there is no module 'nothing_at_all': install it, or name"),
        (
            "advised_typo.py:workload",
            "cannot be imported: SyntaxError: '(' was never closed (advised_typo.py, line 2)\n",
        ),
        ("advised_train.py:worklod", "advised_train has no worklod: did you mean workload?"),
        (
            "advised_broken.py:workload",
            "cannot be imported: KeyError: 'RANK' in line 3; let the file only define the workload",
        ),
        ("advised_train.py:number", "expected a Workload"),
        ("time.py:workload", "'time.py:workload': the name time imports another module, built into Python; rename"),
    ],
)
def test_a_name_that_is_no_workload_is_refused(named: str, said: str, complaint: Run) -> None:
    Path("time.py").write_text(TRAIN)
    assert said in complaint("advise", named, *ASKED)


def test_an_empty_name_is_no_strategy(complaint: Run) -> None:
    said = complaint("advise", "advised_train.py:workload", *ASKED, "--strategies=flat,")
    assert "strategy '': expected a name, or a name with options as in ddp[bucket_cap_mb=5]" in said
