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
    "turns, for interleaved": (0, 0, 1),
    "homemade terms": (1, 0, 2),
    "a passive": (103, 65, 907),
    "clauses glued by a colon or semicolon": (39, 23, 590),
}
"""In the pages for users, in the pages for maintainers, and in strings and docstrings of the package."""
IN_NAMES = r"_(?:told|tells?|beside|held_against|left_out|those_of|that_of|of_its_own|anew|where)(?=_|$)"


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


NOT_WORDS = r"(?ms)^ *```.*?^ *```|<!--.*?-->|<img[^>]*>|\]\([^()\s]*\)"


def words(pattern: str, also_without: str) -> int:
    """Counts tokens with a letter or digit, without code blocks, comments, pictures and targets of links."""
    texts = (file.read_text(encoding="utf-8") for file in ROOT.glob(pattern))
    return sum(len(re.findall(r"\S*\w\S*", re.sub(NOT_WORDS + also_without, "]", text))) for text in texts)


@pytest.mark.parametrize(
    ("patterns", "also_without", "most"),
    [
        (["README.md"], r"|^\|.*?$", 700),  # tables
        (["docs/*.md"], "", 20_000),
        (["docs/internals/*.md", "CONTRIBUTING.md"], "", 6_000),
    ],
)
def test_pages_are_short(patterns: list[str], also_without: str, most: int) -> None:
    assert most / 2 < sum(words(pattern, also_without) for pattern in patterns) <= most


def test_the_glossary_has_few_terms() -> None:
    assert 10 < len(re.findall(r"^- \*\*", (ROOT / "docs" / "glossary.md").read_text("utf-8"), re.MULTILINE)) <= 20


@pytest.mark.parametrize("pattern", PATTERNS)
def test_readers_stumble_no_more_often_than_before(pattern: str) -> None:
    texts = (
        pages("README.md", "docs/*.md"),
        pages("docs/internals/*.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/*.md", "examples/*/README.md"),
        strings(),
    )
    found = [sum(len(re.findall(PATTERNS[pattern], text)) for text in group) for group in texts]
    most = MOST[pattern]
    found_text = f"{pattern}: {found} in pages for users, pages for maintainers and strings, at most {most}"
    assert all(number <= limit for number, limit in zip(found, most, strict=True)), found_text


def test_names_of_tests_have_none_of_these_words() -> None:
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in sorted((ROOT / "tests").rglob("test_*.py"))]
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    names = [function.name for function in functions if function.name.startswith("test_")]
    assert names
    assert [name for name in names if re.search(IN_NAMES, name)] == []
