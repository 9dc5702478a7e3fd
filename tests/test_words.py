"""Words that readers stumble over: how often pages and the package's own texts may have each. No number may rise."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_BE = "(?:is|are|was|were|be|been|being)"
_IRREGULAR = (
    "built|chosen|cut|done|drawn|found|given|held|hidden|kept|known|left|lost|made|meant|met|put|read|run|said|seen|sent|"
    "set|shown|spent|taken|told|written"
)
_VERB = "is|are|was|were|has|have|had|can|cannot|may|might|must|does|do|did|will|would"
PATTERNS: Mapping[str, str] = {
    "where, for if or when": r"\bwhere\b",
    "beside, for compared with or next to": r"\bbeside\b",
    "tell, for say or report": r"\b(?:tells?|told)\b",
    "that of, without a noun": r"\b(?:that|those) of\b",
    "of its own, for separate": r"\bof (?:its|their) own\b",
    "held, for compared": r"\bheld (?:against|to)\b",
    "left out, for omitted": r"\bleft out\b",
    "a clause for a noun": r"(?:^|[.:;] )[Ww]hat (?:is|was|it|they|a|the)\b",
    "a docstring that begins with a question word": r"\A(?:What|Whether|How|Why|Where|Which)\b",
    "turns, for interleaved": r"\b(?:in|takes?|took|taking) turns\b",
    "homemade terms": r"\b(?:anew|alike|remarks?|rooms?|twins?|leased|dealt out|come on top|stands? for)\b",
    "a passive": rf"\b{_BE} (?:not |never |also |only |\w+ly )?(?:\w{{2,}}ed|{_IRREGULAR})\b",
    "clauses glued by a colon or semicolon": rf"\w[;:] (?=[a-z])[^.:;|]{{1,60}}?\b(?:{_VERB})\b",
}
MOST: Mapping[str, tuple[int, int, int]] = {
    "where, for if or when": (0, 0, 8),
    "beside, for compared with or next to": (0, 0, 3),
    "tell, for say or report": (0, 0, 0),
    "that of, without a noun": (0, 0, 1),
    "of its own, for separate": (0, 0, 1),
    "held, for compared": (0, 0, 0),
    "left out, for omitted": (0, 0, 0),
    "a clause for a noun": (0, 0, 0),
    "a docstring that begins with a question word": (0, 0, 1),
    "turns, for interleaved": (5, 0, 1),
    "homemade terms": (2, 0, 2),
    "a passive": (98, 59, 952),
    "clauses glued by a colon or semicolon": (40, 25, 601),
}
"""In the pages for users, in the pages for maintainers, and in strings and docstrings of the package."""


@cache
def pages(*patterns: str) -> list[str]:
    """The prose of each page, without code, each paragraph in a line."""
    texts = (file.read_text(encoding="utf-8") for pattern in patterns for file in sorted(ROOT.glob(pattern)))
    prose = (re.sub(r"```.*?```|`[^`]*`|<!--.*?-->", "", text, flags=re.DOTALL) for text in texts)
    return [re.sub(r"\n(?![\n|#]|[-*] |\d+\. )", " ", text) for text in prose]


@cache
def strings() -> list[str]:
    """The strings of the package, docstrings among them, without names of code."""
    trees = (ast.parse(file.read_text(encoding="utf-8")) for file in (ROOT / "pytest_ddpperf").rglob("*.py"))
    nodes = (node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return [re.sub(r"``[^`]*``", "", value) for value in nodes if isinstance(value, str)]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_readers_stumble_no_more_often_than_before(pattern: str) -> None:
    texts = (
        pages("README.md", "docs/*.md"),
        pages("docs/internals/*.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/*.md", "examples/*/README.md"),
        strings(),
    )
    found = [sum(len(re.findall(PATTERNS[pattern], text)) for text in group) for group in texts]
    most = MOST[pattern]
    words = f"{pattern}: {found} in pages for users, pages for maintainers and strings, at most {most}"
    assert all(number <= limit for number, limit in zip(found, most, strict=True)), words
