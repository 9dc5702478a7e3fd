from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pytest_ddpperf.reports.formats.latex import escaped, latex
from tests.reports.formats.samples import BROKEN, REGRESSED
from tests.reports.made import make_document

CI, STEP = r"{[}95 \% CI{]}", r"test\_step{[}bucketed{]}"
COMPILERS = ("tectonic", "pdflatex", "lualatex", "xelatex")
COMPILER = next(filter(None, map(shutil.which, COMPILERS)), None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            r"50 % & $5 #1 a_b {c} ~d ^e \f",
            r"50 \% \& \$5 \#1 a\_b \{c\} \textasciitilde{}d \textasciicircum{}e \textbackslash{}f",
        ),
        ('<script>|"', r"\textless{}script\textgreater{}\textbar{}\textquotedbl{}"),
        ("test[a]\nb", r"test{[}a{]}\textbackslash{}nb"),
    ],
)
def test_nothing_of_a_name_is_a_command(text: str, expected: str) -> None:
    assert escaped(text) == expected


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason=f"none of {', '.join(COMPILERS)} is installed")
def test_the_table_compiles(tmp_path: Path) -> None:
    assert COMPILER is not None
    table = latex(make_document(REGRESSED, BROKEN))
    head = r"\documentclass{article}\usepackage[T1]{fontenc}\usepackage{booktabs}\begin{document}"
    (tmp_path / "page.tex").write_text(f"{head}\n{table}\n\\end{{document}}\n")
    options = [] if COMPILER.endswith("tectonic") else ["-interaction=nonstopmode", "-halt-on-error"]
    subprocess.run([COMPILER, *options, "page.tex"], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "page.pdf").stat().st_size
