"""A table for LaTeX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from pytest_ddpperf.reports.documents.entries import Run
from pytest_ddpperf.reports.lines import printable
from pytest_ddpperf.reports.summary import benchmark_table, worst_first
from pytest_ddpperf.reports.table import NOTHING

_ESCAPES: Mapping[str, str] = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "[": "{[}",  # behind \\ it would begin an argument
    "]": "{]}",
}
_SPECIAL = re.compile("|".join(map(re.escape, _ESCAPES)))


def latex(run: Run) -> str:
    """Returns a ``tabular`` with the rules of booktabs: a row for each benchmark, the worst first."""
    if not run.results:
        return "% no benchmark was judged\n"
    table = benchmark_table(worst_first(run.results))
    numbers = len(table.headers) - table.left - table.right
    lines = [
        r"% needs \usepackage{booktabs}",
        f"% {printable(table.title)}",
        rf"\begin{{tabular}}{{{'l' * table.left}{'r' * numbers}{'l' * table.right}}}",
        r"\toprule",
        _row(header.replace("\n", " ") for header in table.headers),
        r"\midrule",
        *map(_row, table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        *(f"% {printable(note)}" for note in table.notes),
    ]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Returns the text with escapes, so that LaTeX prints it literally."""
    return _SPECIAL.sub(lambda found: _ESCAPES[found[0]], printable(text))


def _row(cells: Iterable[str]) -> str:
    return " & ".join("--" if cell == NOTHING else escaped(cell) for cell in cells) + r" \\"
