from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from pytest_ddpperf.reports.formats.flat import benchmark_action
from tests.reports.formats.samples import HOSTILE, REGRESSED
from tests.reports.made import make_document

ACTION = "DDPPERF_BENCHMARK_ACTION"  # a folder that has dist/src/extract.js of github-action-benchmark
READ = """
const { extractResult } = require(process.argv[1] + '/dist/src/extract.js');
process.env.GITHUB_REPOSITORY = 'a/b';
extractResult({ tool: process.argv[2], outputFilePath: process.argv[3], ref: undefined, githubToken: undefined })
  .then((found) => console.log(JSON.stringify(found.benches)));
"""


@pytest.mark.skipif(ACTION not in os.environ, reason=f"{ACTION} names no folder of github-action-benchmark")
def test_the_action_reads_the_file(tmp_path: Path) -> None:
    for tool, text in {
        "customSmallerIsBetter": benchmark_action(make_document(REGRESSED), "lower"),
        "customBiggerIsBetter": benchmark_action(make_document(REGRESSED), "higher"),
    }.items():
        file = tmp_path / f"{tool}.json"
        file.write_text(text)
        event = tmp_path / "event.json"
        event.write_text(json.dumps({"head_commit": {"id": "1", "message": HOSTILE}}))
        done = subprocess.run(
            ["node", "-e", READ, os.environ[ACTION], tool, str(file)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "GITHUB_EVENT_PATH": str(event), "GITHUB_REPOSITORY": "a/b"},
        )
        assert json.loads(done.stdout) == json.loads(text)
