"""The documentation is true: its examples run, and it names settings, strategies and verdicts that exist."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import inspect
import itertools
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from pytest_ddpperf import hookspecs
from pytest_ddpperf.cli.command import COMMANDS, _parser, main
from pytest_ddpperf.metrics.scaling import EFFICIENCY, MEMORY, SPEEDUP
from pytest_ddpperf.metrics.table import METRICS
from pytest_ddpperf.records.counts import COUNTS
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.settings import KNOBS, Settings
from pytest_ddpperf.strategies.table import STRATEGIES
from pytest_ddpperf.training.correctness.tolerances import FALL, UPDATE, tolerance
from tests.factories import OTHER_PLUGINS, SHARDS_ON_CPU, git
from tests.shell import FILES, ROOT, make_worse, run_shell, write_suite

PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
}
EXAMPLE = re.compile(r"<!-- example: ([a-z ]+) -->\n```python\n(.*?)```", re.DOTALL)
EXAMPLES = {name: code for text in PAGES.values() for name, code in EXAMPLE.findall(text)}
GENERATED = re.compile(r"(<!-- generated: .*? -->).*?<!-- end of what is generated -->", re.DOTALL)
CODE_BLOCK = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
SHELL_BLOCK = re.compile(r"^ *```(?:sh|text)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"(?:^ *|&& |-m |\?  )((?:ddpperf|pytest)(?: .*)?)$", re.MULTILINE)
OPTION = re.compile(r"--ddpperf-[a-z]+(?:-[a-z]+)*")
INI_NAME = re.compile(r"\bddpperf_(?!group\b|extras\b)[a-z_]+")
LINK = re.compile(r"\]\(([^()\s]+)\)")
TUTORIAL = PAGES["docs/getting-started.md"]
FRONT_PAGE = PAGES["README.md"]
HOOKS = [name for name in vars(hookspecs) if name.startswith("pytest_ddpperf_")]


@pytest.fixture(scope="module")
def reference_tables() -> ModuleType:
    """The code that generates the page of settings; it needs no Sphinx."""
    spec = importlib.util.spec_from_file_location("reference_tables", ROOT / "docs" / "reference_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def anchors(text: str) -> set[str]:
    """The names under which a page's headings can be linked to, as GitHub and Sphinx make them."""
    headings = re.findall(r"^#+ (.*)$", CODE_BLOCK.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_python_example_is_run() -> None:
    blocks = sum(GENERATED.sub("", text).count("```python") for text in PAGES.values())
    assert blocks == sum(len(EXAMPLE.findall(text)) for text in PAGES.values())
    assert blocks == len(EXAMPLES)  # no two have one name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "passed"),
    [
        (("training script", "front page"), 1),
        (("workload", "trainer", "compare", "scaling", "group", "strategy", "batch size", "expect", "reference"), 9),
        (("workload", "variants", "targets"), 3),
        (("workload", "bottleneck"), 2),
        (("workload", "traced"), 2),
        (("group agrees",), 3),
        (("workload", "converge"), 2),
        (("training script", "script"), 1),
        (("analysis",), 3),
        (("simulated",), 1),
        (("workload", "predicted", "advised"), 4),
    ],
)
def test_the_examples_run(inner: pytest.Pytester, names: tuple[str, ...], passed: int) -> None:
    if not SHARDS_ON_CPU and any("fsdp2" in EXAMPLES[name] for name in names):
        pytest.skip("fsdp2 on the CPU needs torch 2.7")
    inner.makepyfile(
        train=EXAMPLES["training script"],
        test_examples="\n\n".join(EXAMPLES[name] for name in names if name != "training script"),
    )
    options = ["--ddpperf-world-size=2", "--ddpperf-launches=2", "--ddpperf-steps=5", "--ddpperf-warmup=1"]
    run = inner.runpytest(*options, "--ddpperf-device=cpu", "--ddpperf-max-time=10")
    run.assert_outcomes(passed=passed)


@pytest.mark.slow
def test_the_simulated_example_counts_the_same_on_any_number_of_ranks(inner: pytest.Pytester) -> None:
    inner.makepyfile(EXAMPLES["simulated"])
    inner.runpytest("-oddpperf_simulate=8,1024").assert_outcomes(passed=1)


def test_every_example_belongs_to_a_run() -> None:
    (mark,) = (
        mark
        for mark in test_the_examples_run.pytestmark  # type: ignore[attr-defined]
        if mark.name == "parametrize"
    )
    assert {name for row in mark.args[1] for name in getattr(row, "values", row)[0]} == set(EXAMPLES)


def test_the_list_of_settings_has_each_with_a_default_and_an_example_that_can_be_given(
    reference_tables: ModuleType,
) -> None:
    line = re.compile(
        r"^- \[`(-*[a-z_-]+)(?: ?= ?)?(.*?)`\]\([a-z-]+\.md\)(?: \((?:`(.*?)`)?(?:, )?(session)?\))?: (.*)\.$"
    )
    lines = {
        found[1]: found for found in map(line.match, reference_tables.settings_list().splitlines()) if found is not None
    }
    knobs = {knob.spelled: knob for knob in KNOBS.values() if knob.given != "command"}
    assert lines.keys() == knobs.keys()
    for name, knob in knobs.items():
        _, given, default, session, text = lines[name].groups()
        assert text == knob.help.replace("%%", "%")
        assert bool(session) is not knob.per_test
        assert (default or "") == knob.default_text
        if default:
            assert knob.parse(default) == getattr(Settings(), knob.name)
        assert given or knob.flag or knob.bare
        if given:
            value = shlex.split(given)[0] if knob.given == "option" else ast.literal_eval(given)
            assert knob.parse(value) != getattr(Settings(), knob.name)


def test_each_command_is_listed(reference_tables: ModuleType) -> None:
    listed = re.findall(r"^- \[`ddpperf (\w+)`\]", reference_tables.commands_list(), re.MULTILINE)
    assert listed == [*COMMANDS]


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_is_shown_with_its_signature_and_each_argument(reference_tables: ModuleType, name: str) -> None:
    text = reference_tables.hook_text(name)
    arguments = list(inspect.signature(getattr(hookspecs, name)).parameters)
    assert text.startswith(f"```text\n{name}({', '.join(arguments[:1])}")
    assert re.findall(r"^- `(\w+)`: .+$", text, re.MULTILINE) == arguments
    returns = getattr(hookspecs, name).__annotations__["return"] != "None"
    assert ("\nReturns: " in text) is returns


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_has_an_example_that_is_run(name: str) -> None:
    example = (ROOT / "examples" / "ddpperf_extras" / "ddpperf_extras.py").read_text()
    assert f"def {name}(" in example
    assert f"<!-- generated: example {name} -->\n" in PAGES["docs/hooks.md"]
    assert PAGES["docs/hooks.md"].count(f"| [`{name}`](#") == 1


def test_the_tables_of_records_have_each_documented_attribute(reference_tables: ModuleType) -> None:
    assert {"Finding", "Measurement", "Metric", "MetricRules", "Result"} <= set(reference_tables.RECORDS)
    for name, record in reference_tables.RECORDS.items():
        rows = re.findall(r"^\| `(\w+)` \| `.+` \| (.+) \|$", reference_tables.record_table(name), re.MULTILINE)
        attributes = (inspect.getdoc(record) or "").partition("Attributes:")[2]
        promised = re.findall(r"^    (\w+): ", attributes, re.MULTILINE)
        assert promised
        given = {field.name: field.init for field in dataclasses.fields(record)}
        assert {attribute for attribute in promised if given.get(attribute, True)} <= {
            attribute for attribute, _ in rows
        }


def test_each_generated_table_has_a_place_in_the_docs(reference_tables: ModuleType) -> None:
    asked = [place for text in PAGES.values() for place in re.findall(r"<!-- generated: (.*) -->", text)]
    named = [f"hook {name}" for name in reference_tables.HOOKS] + [
        f"record {name}" for name in reference_tables.RECORDS
    ]
    expected = ["settings", "commands", "kinds", *named]
    assert sorted(place for place in asked if not place.startswith("example ")) == sorted(expected)
    assert sorted({place.split()[0] for place in asked}) == sorted(reference_tables.PARTS)


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if GENERATED.search(text)])
def test_generated_tables_agree_with_the_declarations(reference_tables: ModuleType, page: str) -> None:
    again = "python docs/reference_tables.py writes it again"
    # Words alone are compared: argparse breaks the lines of a usage otherwise in other versions of Python.
    assert PAGES[page].split() == reference_tables.filled_in(PAGES[page]).split(), again


@pytest.mark.parametrize("page", PAGES)
def test_settings_that_are_named_exist(page: str) -> None:
    assert set(OPTION.findall(PAGES[page])) <= {knob.option for knob in KNOBS.values() if knob.given == "option"}
    assert set(INI_NAME.findall(PAGES[page])) <= {
        knob.ini for knob in KNOBS.values() if knob.given in {"option", "ini"}
    }


def test_the_page_that_a_setting_links_to_names_it(reference_tables: ModuleType) -> None:
    missing = []
    for name, (_, page) in reference_tables.MORE.items():
        code = " ".join(CODE.findall(GENERATED.sub("", PAGES[f"docs/{page}.md"])))
        keyword = rf"|\b{name}=" if KNOBS[name].per_test else ""
        if not re.search(rf"(?<![\w.-]){KNOBS[name].spelled}(?![\w-]){keyword}", code):
            missing.append(f"{page}.md: {KNOBS[name].spelled}")
    assert missing == []


def commands_of(page: str) -> list[str]:
    """The calls of ``ddpperf`` and pytest in the code blocks of a page."""
    return [line for block in SHELL_BLOCK.findall(PAGES[page]) for line in COMMAND.findall(block)]


@pytest.mark.parametrize("page", [page for page in PAGES if commands_of(page)])
def test_commands_have_options_that_exist(page: str) -> None:
    for line in commands_of(page):
        program, *words = itertools.takewhile(lambda word: word not in {"<", ">"}, shlex.split(line, comments=True))
        if program == "ddpperf":
            options, words = _parser().parse_known_args(words)  # it exits if a command or a value is wrong
            assert options.passes_on or not words, line
        for option, _, value in (word.partition("=") for word in words if word.startswith("--ddpperf-")):
            (knob,) = (knob for knob in KNOBS.values() if (knob.option, knob.given) == (option, "option"))
            assert value or knob.flag or knob.bare, line
            knob.parse(value or knob.bare or "true")


def test_commands_are_found() -> None:
    programs = [line.split()[0] for page in PAGES for line in commands_of(page)]
    assert programs.count("ddpperf") > 20
    assert programs.count("pytest") > 20


def test_a_question_is_answered_by_a_sentence_first() -> None:
    asked = re.compile(r"^#+ (.*\?)\n+(?:```|\||- |1\. |<!--|!\[|#)", re.MULTILINE)
    found = [question for page, text in PAGES.items() if page.startswith("docs/") for question in asked.findall(text)]
    assert set(found) <= {"What next?", "What does a run cost?"}


def test_the_navigation_has_each_page_except_internals() -> None:
    listed = re.findall(r"^[a-z-]+$", "".join(CODE_BLOCK.findall(PAGES["docs/index.md"])), re.MULTILINE)
    assert sorted(["index", *listed]) == sorted(file.stem for file in (ROOT / "docs").glob("*.md"))
    internals = {file.name for file in (ROOT / "docs" / "internals").glob("*.md")}
    assert set(re.findall(r"\(docs/internals/(\S+\.md)\)", PAGES["CONTRIBUTING.md"])) == internals


@pytest.mark.parametrize("page", PAGES)
def test_links_of_the_docs_have_a_target(page: str) -> None:
    for link in LINK.findall(CODE_BLOCK.sub("", PAGES[page])):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.is_file(), f"{page}: {link}"
        assert not anchor or anchor in anchors(target.read_text()), f"{page}: {link}"


def test_the_table_of_strategies_is_the_table_in_the_code() -> None:
    page = PAGES["docs/strategies.md"]
    table = re.findall(r"^\| `([a-z0-9_]+)` \| (.*) \| (.*) \|$", page, re.MULTILINE)
    rows = [(name, text, set(re.findall(r"`([a-z0-9_]+)`", options))) for name, text, options in table]
    assert rows == [(row.name, row.description, set(row.options)) for row in STRATEGIES.values()]


def test_each_plugin_that_the_docs_mention_has_a_test() -> None:
    rows = re.findall(r"^\| (pytest-.*?) \|(.*)\|$", PAGES["docs/plugins.md"], re.MULTILINE)
    told = {name: text for names, text in rows for name in names.split(", ")}
    texts = [file.read_text() for file in (ROOT / "tests" / "with_plugins").glob("test_*.py")]
    for name, text in told.items():
        named = re.findall(r"`(tests/\S+\.py)`", text)
        assert all((ROOT / file).is_file() for file in named)
        assert named or any(f'"""{name}' in each or f"and {name}" in each for each in texts), name
    assert {f"pytest_{name[7:].replace('json-report', 'jsonreport')}" for name in told} >= OTHER_PLUGINS.keys()


def test_every_verdict_is_explained() -> None:
    page = PAGES["docs/how-it-decides.md"]
    assert set(re.findall(r"^\| `([a-z_]+)` \|.*\|.*\|$", page, re.MULTILINE)) == {verdict.value for verdict in Verdict}


def test_every_metric_is_described() -> None:
    described = PAGES["docs/metrics.md"] + PAGES["docs/counts.md"]
    names = [*(metric.name for metric in METRICS), EFFICIENCY, SPEEDUP, MEMORY, *COUNTS]
    assert [name for name in names if f"`{name}`" not in described] == []


@pytest.mark.parametrize(
    "words",
    [
        " would decide it",
        "more launches would not decide it",
        "no practicable number of launches would decide it",
        "worse in the last launches, but not in the first ones",
        "stored times cannot decide: ",
        "they were measured on another machine",
        "slower than the stored times, but perhaps by less than ",
        "times: only gross slowdowns can fail",
        "with a single launch, the run-to-run variation is unknown",
    ],
)
def test_the_notes_on_undecided_metrics_agree_with_the_code(words: str) -> None:
    package = ROOT / "pytest_ddpperf"
    assert words in PAGES["docs/how-it-decides.md"]
    assert any(words in file.read_text() for file in package.rglob("*.py"))


def test_the_tolerances_in_the_docs_agree_with_the_code() -> None:
    said = PAGES["docs/correctness.md"].partition("Relative errors may be")[2]
    numbers = dict(zip(("fp32", "fp16", "bf16"), map(float, re.findall(r"\d+e-\d+", said)), strict=False))
    assert numbers == {precision: tolerance(precision) for precision in numbers}
    assert len(numbers) == 3
    assert tolerance("tf32") == tolerance("fp16")
    assert f"parameters is {UPDATE:g}".replace("0.001", "1e-3") in said
    assert "a fifth" in said
    assert FALL == 1 / 5


def test_files_that_contributing_names_exist() -> None:
    places = re.findall(r"`((?:[\w.]+/)+|(?:[\w.]+/)*[\w.]+\.py)`", PAGES["CONTRIBUTING.md"])
    assert len(places) > 30
    assert [
        place for place in places if not any((top / place).exists() for top in (ROOT, ROOT / "pytest_ddpperf"))
    ] == []


COMMANDS_OF_REPORTS = re.search(r"<!-- commands: report -->\n```sh\n(.*?)```", PAGES["docs/reports.md"], re.DOTALL)
COUNTED = "--ddpperf-counts=only --ddpperf-device=cpu --ddpperf-world-size=2"  # without times, to be quick


def run_commands(commands: str, folder: Path, status: int = 0) -> str:
    """Runs commands of a page in a shell, in a folder; gives what they print."""
    done = run_shell(commands, folder, PYTEST_ADDOPTS=COUNTED)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def test_the_tutorial_shows_the_test_that_init_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(EXAMPLES["training script"])
    assert main(["init"]) == 0
    (shown,) = re.findall(r"<!-- written by: ddpperf init -->\n```text\n(.*?)```", TUTORIAL, re.DOTALL)
    assert (tmp_path / "perf" / "test_training.py").read_text().endswith(f"\n\n{shown}")


@pytest.mark.slow
def test_the_tutorial_ends_with_the_red_test_that_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of the page in their order, on its script and with its change."""
    monkeypatch.setenv("COLUMNS", "100")  # the terminal of the page
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "a")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "a@b")
    script = tmp_path / "train.py"
    script.write_text(EXAMPLES["training script"])
    for command in ("init", "add .", "commit -m script"):
        git(tmp_path, *command.split())
    _, *green, last = re.findall(r"```sh\n(.*?)```", TUTORIAL, re.DOTALL)  # the first one installs
    for commands in green:
        printed = run_commands(commands, tmp_path)
    assert "1 baseline saved in baselines/" in printed
    (before, line) = re.findall(r"```diff\n (.*\n)\+(.*\n)", TUTORIAL)[0]
    script.write_text(script.read_text().replace(before, before + line))
    cause = "Cause      all_reduce 1 -> 2 calls per step (+1): the new one at train.py:23 in <module>"
    assert cause in TUTORIAL
    assert cause in run_commands(last, tmp_path, status=1)


@pytest.mark.slow
def test_the_commands_on_reports_run(tmp_path: Path) -> None:
    assert COMMANDS_OF_REPORTS is not None
    write_suite(tmp_path)
    printed = run_commands(COMMANDS_OF_REPORTS[1], tmp_path)
    assert "Performance report\n" in printed
    named = set(re.findall(r"[a-z_-]+\.(?:md|html|csv|tex|txt|json)", COMMANDS_OF_REPORTS[1]))
    assert {file.name for file in tmp_path.iterdir() if file.is_file()} == {*named, *FILES}


@pytest.mark.slow
def test_the_commands_of_agents_name_the_metrics_that_got_worse(tmp_path: Path) -> None:
    """The commands of the page, on a change of a project that has not been committed yet."""
    (commands,) = re.findall(r"<!-- commands: agents -->\n```sh\n(.*?)```", PAGES["docs/agents.md"], re.DOTALL)
    write_suite(tmp_path / "perf")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for command in ("init", "add .", "commit -m main"):
        git(tmp_path, *command.split())
    make_worse(tmp_path / "perf")
    printed = run_commands(f"set +e\n{commands}", tmp_path)
    assert "all_reduce 1 -> 2 calls per step" in printed
    (last,) = [line for line in printed.splitlines() if line.startswith("regressed perf/")]
    named = last.removeprefix("regressed perf/test_suite.py::test_step custom ").split()
    assert sorted(named) == ["collective_bytes", "collective_calls", "operators"]


def test_the_front_page_can_be_read_in_five_minutes() -> None:
    assert len(FRONT_PAGE.splitlines()) <= 150
    assert len(re.sub(r"^\|.*$", "", CODE_BLOCK.sub("", FRONT_PAGE), flags=re.MULTILINE).split()) <= 700
    assert len([line for line in EXAMPLES["front page"].splitlines() if line]) <= 10


def test_the_front_page_has_the_command_that_ci_runs() -> None:
    assert re.search(r"<!-- test command -->\n```sh\npip install -c constraints\.txt .*pytest", FRONT_PAGE)


def test_the_failures_on_the_front_page_are_excerpts_of_what_is_printed() -> None:
    red, wrong = (
        text.splitlines() for text in re.findall(r"^ *```text\n(.*?)^ *```", FRONT_PAGE, re.DOTALL | re.MULTILINE)
    )
    assert len(red) <= 8
    printed = iter((ROOT / "benchmarks" / "results" / "red_test.txt").read_text().splitlines())
    assert [line for line in red if line not in printed] == []  # in the same order
    printed = iter(PAGES["docs/correctness.md"].splitlines())
    assert [line for line in wrong if line.removeprefix("  ") not in printed] == []
    (deleted,) = re.findall(r"^-(.*)$", FRONT_PAGE.partition("```diff")[2].partition("```")[0], re.MULTILINE)
    assert f'GUARD = "{deleted}\\n"' in (ROOT / "benchmarks" / "red_test.py").read_text()


def test_each_claim_in_bold_on_the_front_page_stands_in_the_evidence_with_its_file() -> None:
    benefits = re.sub(r"\s+(?:> )?", " ", FRONT_PAGE.partition("## What you get")[2])
    claims = [claim.rstrip(".:").lower() for claim in re.findall(r"\*\*(.+?)\*\*", benefits)]
    assert len(claims) > 10
    evidence = [" ".join(part.split()) for part in re.split(r"\n(?=[-|#])|\n\n", PAGES["docs/evidence.md"])]
    for claim in claims:
        (part,) = [part for part in evidence if claim in part.lower()]
        named = re.findall(r"`([\w./]+)`", part)
        assert any((top / name).is_file() for top in (ROOT, ROOT / "benchmarks" / "results") for name in named), claim
