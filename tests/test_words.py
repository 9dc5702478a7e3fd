"""Words that readers stumble over: how often pages and the package's own texts may have each. No number may rise."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
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
}
MOST: Mapping[str, tuple[int, int]] = {
    "where, for if or when": (0, 9),
    "beside, for compared with or next to": (0, 5),
    "tell, for say or report": (0, 10),
    "that of, without a noun": (0, 8),
    "of its own, for separate": (0, 5),
    "held, for compared": (0, 0),
    "left out, for omitted": (0, 2),
    "a clause for a noun": (0, 1),
    "a docstring that begins with a question word": (0, 3),
}
"""In README and docs, and in strings and docstrings of the package."""
IN_NAMES = r"_(?:told|tells?|beside|held_against|left_out|those_of|that_of|of_its_own|anew|where)(?=_|$)"


@cache
def pages() -> list[str]:
    """The prose of each page, without code."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [re.sub(r"```.*?```|`[^`]*`", "", file.read_text(encoding="utf-8"), flags=re.DOTALL) for file in files]


@cache
def strings() -> list[str]:
    """The strings of the package, docstrings among them."""
    trees = (ast.parse(file.read_text(encoding="utf-8")) for file in (ROOT / "pytest_ddpperf").rglob("*.py"))
    nodes = (node for tree in trees for node in ast.walk(tree))
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


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
    found = tuple(sum(len(re.findall(PATTERNS[pattern], text)) for text in texts) for texts in (pages(), strings()))
    most = MOST[pattern]
    assert max(found[0] - most[0], found[1] - most[1]) <= 0, f"{pattern}: {found} in pages and strings, at most {most}"


def test_names_of_tests_have_none_of_these_words() -> None:
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in sorted((ROOT / "tests").rglob("test_*.py"))]
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    names = [function.name for function in functions if function.name.startswith("test_")]
    assert names
    assert [name for name in names if re.search(IN_NAMES, name)] == []
