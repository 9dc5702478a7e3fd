"""Runs of pytest on this checkout's tests, and what became of them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from benchmarks.quality.project import DAY, ROOT, environ_of
from pytest_ddpperf.launch.processes import finished

END_SECONDS = 20.0
TAIL = 30  # lines of what pytest printed
RAN = (0, 1)  # pytest's exit status where tests ran


def outcomes(arguments: Sequence[str]) -> dict[str, Any]:
    """Runs pytest on tests of this checkout: how many passed, which failed and why, and the reasons of skips."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as aside:
        junit, printed = Path(aside) / "junit.xml", Path(aside) / "printed"
        command = [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", *arguments]
        with printed.open("wb") as output:
            command.append(f"--junit-xml={junit}")
            how: dict[str, Any] = {
                "cwd": ROOT,
                "env": environ_of((ROOT,)),
                "stdout": output,
                "stderr": subprocess.STDOUT,
            }
            status = finished(command, DAY, patience=END_SECONDS, **how).returncode
        said = printed.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:]
        found = read_junit(junit.read_text(encoding="utf-8")) if junit.exists() else {}
    return {**found, "status": status, "seconds": time.monotonic() - begun, "said": said}


def read_junit(text: str) -> dict[str, Any]:
    """What became of tests, from pytest's JUnit file."""
    passed, failed, skipped = 0, {}, Counter[str]()
    for case in ET.fromstring(text).iter("testcase"):  # noqa: S314  pytest has just written it
        name = f"{case.get('classname')}::{case.get('name')}"
        wrong = [part for kind in ("failure", "error") for part in case.iter(kind)]
        left_out = case.find("skipped")
        if wrong:
            failed[name] = (wrong[0].get("message") or "").partition("\n")[0][:300]
        elif left_out is not None:
            skipped[left_out.get("message") or ""] += 1
        else:
            passed += 1
    return {"passed": passed, "failed": failed, "skipped": dict(skipped)}


def outcome_lines(found: Mapping[str, Any]) -> list[str]:
    """The same as text."""
    if found["status"] not in RAN:
        return [f"pytest ended with status {found['status']}", *found["said"]]
    skipped = sum(found["skipped"].values())
    lines = [f"{found['passed']} passed, {len(found['failed'])} failed, {skipped} skipped in {found['seconds']:.0f} s"]
    lines += [f"  FAILED {name}: {reason}" for name, reason in found["failed"].items()]
    return [*lines, *(f"  skipped {times}: {reason}" for reason, times in found["skipped"].items())]
