"""Names of folders and files that keep apart what differs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from pytest_ddpperf.records.measurement import training_text

_OPTIONS = re.compile(r"\[[^\[\]]*\]")
_MAX_LENGTH = 100  # characters; file systems take 255, and paths have limits of their own
_MODULE = re.compile(r"[A-Za-z0-9_-]+(?:/[A-Za-z0-9_-]+)*\.py")
_TEST = re.compile(r"\w+(?:::\w+)*(?:\[[A-Za-z0-9._-]+\])?", re.ASCII)


def digest(text: str) -> str:
    """Eight hexadecimal digits that stand for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def module_folder(nodeid: str) -> str:
    """The folder's name for a test's module: ``perf_tests/test_a.py::test_b`` gives ``perf_tests.test_a``."""
    module = nodeid.partition("::")[0]
    return _named(module.removesuffix(".py").replace("/", "."), whole=module, lossless=_MODULE.fullmatch(module))


def test_file(nodeid: str) -> str:
    """The file's name for a test without its module: ``...::TestC::test_d[x-1]`` gives ``TestC.test_d-x-1.json``."""
    test = nodeid.partition("::")[2]
    slug = test.replace("::", ".").replace("[", "-").removesuffix("]")
    return _named(slug, whole=test, lossless=_TEST.fullmatch(test)) + ".json"


def plain_name(name: str, recipe: Mapping[str, str]) -> str:
    """A benchmark's name without options: ``ddp`` of ``ddp[bucket_cap_mb=5] precision=bf16``."""
    return _OPTIONS.sub("", name.removesuffix(training_text("", recipe)))


def _named(slug: str, *, whole: str, lossless: re.Match[str] | None) -> str:
    """The slug, made safe; with a hash behind ``~``, which no plain slug holds, if it is no longer unmistakable."""
    if lossless and len(slug) <= _MAX_LENGTH:
        return slug
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", slug).strip(".-")[:_MAX_LENGTH]
    return f"{safe}~{digest(whole)}"
