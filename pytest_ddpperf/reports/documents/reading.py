"""A results document that was written before, read again: typed, or refused with the field that does not fit."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from pytest_ddpperf.baselines.jsonfile import FileKind, checked, read_text
from pytest_ddpperf.errors import BaselineError
from pytest_ddpperf.reports.document import read_as
from pytest_ddpperf.reports.documents.results import ResultsData

RESULTS = FileKind(
    subject="results", version=2, cure="write it again with --ddpperf-report=json:FILE", content=ResultsData, shapes={}
)
_PROBLEM = re.compile(r"(.*) - at (?:`key` in )?`\$(?:\.(.*))?`", re.DOTALL)
_FIELD = re.compile(r"Object (?:missing required|contains unknown) field `(.*)`")


def read_results(file: Path) -> ResultsData:
    """Returns the results document in a file; ``-`` is standard input.

    Raises:
        BaselineError: there is no such file, or it is broken, or of another schema or version; the message names the
            file, the field and the cure.
    """
    text = read_text(file := Path("/dev/stdin") if file == Path("-") else file, RESULTS)
    if text is None:
        raise BaselineError(
            f"{RESULTS.name} {file}: there is no such file; pytest --ddpperf-report=json:{file} writes one"
        )
    try:
        document = read_as(ResultsData, text.encode())
    except msgspec.DecodeError as error:
        checked(text, file, RESULTS)
        raise RESULTS.error(file, problem_text(error)) from None
    if document.results and document.environment is None:
        raise RESULTS.error(file, "field environment: is null, and benchmarks were measured")
    return document


def problem_text(error: msgspec.DecodeError) -> str:
    """Returns what msgspec says of a wrong value, with its path: ``field results[0].dirty: Expected `bool` ...``."""
    found = _PROBLEM.fullmatch(str(error))
    problem, path = (found[1], found[2] or "") if found else (str(error), "")
    if named := _FIELD.fullmatch(problem):
        path = ".".join(filter(None, (path, named[1])))
        problem = "is missing" if "missing" in problem else "is not known here"
    problem = re.sub(r"^(?=Expected|Object|Invalid)[A-Z]", lambda first: first[0].lower(), problem)
    return f"field {path}: {problem}" if path else problem
