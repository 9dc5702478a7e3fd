"""The table of knobs: what each accepts, who wins, and what a wrong value is told."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.run.session.configuration import settings_of
from pytest_ddpperf.settings import KNOBS, Settings, overlay, overlay_words

BYTES = "a number of bytes above 0, such as 2GiB, 500MB"
FAILING = {Verdict.REGRESSED, Verdict.BROKEN}


def from_command_line(**raw: object) -> Settings:
    return overlay(Settings(), raw, lambda knob, value: f"{knob.option}={value}")


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("world_size", "4", (4,)),
        ("world_size", "4,1,2,2", (1, 2, 4)),
        ("world_size", [2, 1], (1, 2)),
        ("steps", "auto", None),
        ("steps", "30", 30),
        ("warmup", "0", 0),
        ("max_time", "2.5", 2.5),
        ("tolerance", "3%", 0.03),
        ("tolerance", "0.05", 0.05),
        ("tolerance", "300%", 3.0),
        ("tolerance", 0, 0.0),
        ("fail_on", "+inconclusive", frozenset({Verdict.INCONCLUSIVE, Verdict.REGRESSED, Verdict.BROKEN})),
        ("fail_on", "+new, improved", frozenset({Verdict.NEW, Verdict.IMPROVED, *FAILING})),
        ("fail_on", "broken,new", frozenset({Verdict.BROKEN, Verdict.NEW})),
        ("fail_on", "none", frozenset()),
        ("fail_on", [Verdict.NEW, *FAILING], frozenset({Verdict.NEW, *FAILING})),
        ("require_baseline", "yes", True),
        ("require_baseline", False, False),
        ("require_baseline", 1, True),
        ("backend", " GLOO", "gloo"),
        ("compile", False, "no"),
        ("steps", "AUTO", None),
        ("baseline_dir", "here", Path("here")),
        ("save", "nightly-2.1", "nightly-2.1"),
        ("recheck", "fetch", "fetch"),
        ("recheck", False, "false"),
        ("gross", "30%", 0.3),
        ("counts", False, "off"),
        ("counts", "true", "on"),
        ("budget", "10min", 600.0),
        ("budget", "5m", 300.0),
        ("budget", " 1.5 h ", 5400.0),
        ("budget", "90s", 90.0),
        ("budget", 90, 90.0),
        ("budget", "none", None),
        ("preload", "auto", ("auto",)),
        ("preload", "none", ()),
        ("preload", "auto, a.b", ("auto", "a.b")),
        ("preload", ["a"], ("a",)),
        ("memory_limit", 4096, 4096),
        ("memory_limit", "512B", 512),
        ("memory_limit", "2GiB", 2 * 2**30),
        ("memory_limit", " 1.5 KiB ", 1536),
        ("memory_limit", "500MB", 500_000_000),
        ("memory_limit", "1 TB", 10**12),
        ("memory_limit", "none", None),
    ],
)
def test_a_value_is_understood(name: str, raw: object, value: object) -> None:
    assert getattr(from_command_line(**{name: raw}), name) == value


@pytest.mark.parametrize(
    ("name", "raw", "says"),
    [
        ("world_size", "0", "--ddpperf-world-size=0: expected a number of ranks of at least 1"),
        ("world_size", "two", "--ddpperf-world-size=two: expected a number of ranks of at least 1"),
        ("world_size", "2,,4", "at least 1"),
        ("world_size", [], "a number of ranks"),
        ("world_size", True, "at least 1"),
        ("backend", "mpi", "--ddpperf-backend=mpi: expected one of auto, nccl, gloo"),
        ("device", "tpu", "one of auto, cpu, cuda"),
        ("steps", "0", "at least 1, or auto"),
        ("warmup", "-1", "at least 0"),
        ("max_time", "0", "a time above 0"),
        ("timeout", "nan", "a time above 0"),
        ("budget", "soon", "--ddpperf-budget=soon: expected a time above 0, such as 90s, 10min or 1h, or none"),
        ("budget", "min", "a time above 0"),
        ("mesh", [2, 2], "the sizes of dimensions by name, such as dp=2,tp=2"),
        ("memory_limit", "9" * 400, BYTES),
        *(("memory_limit", raw, BYTES) for raw in (0, -1, 1.5, True, "", "many", "2 gib", "0MB", "-1GiB", "2Gi")),
        *(("preload", raw, "auto, none, or names of modules, separated by commas") for raw in ("", "a,none", "a-b")),
        ("tolerance", 10**400, "a fraction from 0 to 1"),
        ("tolerance", "-0.1", "a fraction from 0 to 1"),
        ("tolerance", "inf", "a fraction from 0 to 1"),
        ("must_detect", "0%", "a fraction above 0"),
        ("must_detect", "5", "a fraction above 0 and up to 1"),
        ("tolerance", "3", "or a percentage, such as 3%"),
        ("fail_on", "regresed", "verdicts separated by commas, out of improved, "),
        ("fail_on", "new", "a list with regressed or broken, or +new, which adds to these two"),
        ("recheck", "never", "--ddpperf-recheck=never: expected one of true, false, fetch"),
        ("gross", "0", "a fraction above 0"),
        ("counts", "no", "one of on, off, only"),
        ("require_baseline", "maybe", "true or false"),
        ("baseline_set", "../x", "a name of letters"),
        ("history", "", "a path"),
    ],
)
def test_a_wrong_value_is_named_with_the_expected_values(name: str, raw: object, says: str) -> None:
    with pytest.raises(SettingError) as caught:
        from_command_line(**{name: raw})
    assert says in str(caught.value)
    assert str(caught.value).startswith(KNOBS[name].option)
    assert "\n" not in str(caught.value)


def test_a_layer_of_settings_overrides_only_the_settings_that_it_has() -> None:
    weak = from_command_line(tolerance="5%", launches="4")
    strong = overlay_words(weak, {"tolerance": 0.01}, where="@pytest.mark.ddpperf")
    assert (strong.tolerance, strong.launches) == (0.01, 4)


def test_an_unknown_word_is_refused_with_the_closest_one() -> None:
    with pytest.raises(SettingError, match=r"there is no setting tolerence; did you mean tolerance\?"):
        overlay_words(Settings(), {"tolerence": 0.1}, where="@pytest.mark.ddpperf")
    with pytest.raises(SettingError, match=r"there is no setting strategy; "):
        overlay_words(Settings(), {"strategy": "ddp"}, where="ddpperf.converge")
    with pytest.raises(SettingError, match=r"^check\(calibrate=...\): there is no such setting: run ddpperf calibrate"):
        overlay_words(Settings(), {"calibrate": 5}, where="check")


def test_a_session_setting_is_refused_on_a_test_with_the_option_to_use() -> None:
    with pytest.raises(SettingError, match=r"save holds for the whole session; give it as --ddpperf-save"):
        overlay_words(Settings(), {"save": "x"}, where="@pytest.mark.ddpperf")


def test_require_baseline_adds_to_the_verdicts_that_fail() -> None:
    assert Settings().failing == {Verdict.REGRESSED, Verdict.BROKEN}
    assert from_command_line(require_baseline="true", fail_on="none").failing == {Verdict.NEW, Verdict.INCOMPATIBLE}


def test_the_default_of_every_setting_is_parsed_to_itself() -> None:
    """A default that its own parser would refuse could not be written down in an ini file."""
    defaults = Settings()
    for name, knob in KNOBS.items():
        default = getattr(defaults, name)
        if default is not None:
            assert knob.parse(default) == default


def test_settings_have_only_declared_names() -> None:
    with pytest.raises(TypeError, match=r"^Settings has no field tolerence$"):
        Settings(tolerence=0.1)
    assert replace(Settings(steps=3), warmup=1).steps == 3


@pytest.mark.parametrize(("word", "said"), [("yes", "true"), ("1", "true"), ("off", "false"), ("0", "false")])
def test_an_option_that_needs_no_value_takes_one(pytester: pytest.Pytester, word: str, said: str) -> None:
    config = pytester.parseconfig(f"--ddpperf-quick={word}")
    assert config.getoption("ddpperf_quick") == said


def helps(pytester: pytest.Pytester) -> dict[str, list[str]]:
    """The lines of ``pytest --help`` by option of ours, or by the title of a group of ours."""
    lines = pytester.runpytest("--help").stdout.lines
    found: dict[str, list[str]] = {}
    name = ""
    for line in lines:
        if line and line[0] not in " [":
            name = line.rstrip(":") if line.startswith("ddpperf") else ""
        elif line.startswith("  --"):
            name = re.split(r"[=\s[]", line.strip())[0]
        found.setdefault(name if name.startswith(("ddpperf", "--ddpperf")) else "", []).append(line)
    return found


def test_the_help_has_the_options_that_most_users_need_first_each_with_an_example(pytester: pytest.Pytester) -> None:
    options = [knob for knob in KNOBS.values() if knob.given == "option"]
    everyday = [knob.option for knob in options if knob.example]
    advanced = [knob.option for knob in options if not knob.example]
    told = helps(pytester)
    del told[""]
    assert [*told] == ["ddpperf", *everyday, "ddpperf, advanced", *advanced]
    assert (len(everyday), len(options) <= 45) == (14, True)
    for option in everyday:
        example = next(line.strip() for line in told[option] if line.strip().startswith("pytest perf --"))
        pytester.parseconfig(*example.split()[2:])
        assert option in example


def test_the_help_begins_with_a_verb_or_a_noun_and_names_no_file_of_the_checkout(pytester: pytest.Pytester) -> None:
    for knob in KNOBS.values():
        assert not re.match(r"(?:how|what|which|whether|where)\b|[\w|]+:", knob.help), knob.name
    told = helps(pytester)
    told["ini"] = [line for line in told.pop("") if "--ddpperf" in line]
    assert "none, the" in told["ini"][0]
    assert "docs/" not in " ".join(word for lines in told.values() for word in lines)


def test_the_helps_of_the_three_limits_of_time_name_each_other() -> None:
    limits = {"max-time", "budget", "quick"}
    for name in limits:
        told = KNOBS[name.replace("-", "_")].help.partition(". ")[0]
        assert all(other in told for other in limits - {name}), name


def test_the_help_says_the_default_of_each_option_that_has_one(pytester: pytest.Pytester) -> None:
    told = helps(pytester)
    for knob in (knob for knob in KNOBS.values() if knob.given == "option"):
        says = f"(default: {knob.default_text})" in " ".join(" ".join(told[knob.option]).split())
        assert says is (not knob.flag and knob.default_text not in {"", "none"}), knob.option


@pytest.mark.parametrize(("columns", "others"), [("80", 802), ("100", 684)])
def test_a_fifth_of_the_help_is_ours_at_the_most(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, columns: str, others: int
) -> None:
    """Beside the lines of pytest and of the plugins that the package's own tests have."""
    monkeypatch.setenv("COLUMNS", columns)
    told = helps(pytester)
    settings = [line for line in told.pop("") if line.startswith("  ddpperf_")]
    ours = sum(map(len, told.values())) + len(settings) + 1  # the line that explains them
    assert len(settings) == sum(knob.given != "call" for knob in KNOBS.values())
    assert 100 < ours <= (ours + others) / 5


def test_a_folder_that_an_option_of_the_ini_file_swallows_is_refused(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)  # which would stand between
    pytester.makeini("[pytest]\naddopts = --ddpperf-save")
    pytester.mkdir("perf")
    run = pytester.run(sys.executable, "-m", "pytest", "perf")  # without pytester's own options
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines(["*perf is a test, file or folder: put --ddpperf-save last, or write*"])


def test_a_setting_of_the_ini_file_alone_is_read_from_there(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nddpperf_gross = 30%")
    assert settings_of(pytester.parseconfigure()).gross == 0.3
    assert Settings().gross == 0.5
    assert "--ddpperf-gross" not in pytester.runpytest("--help").stdout.str()


def test_words_of_the_command_line_may_be_paths(pytester: pytest.Pytester) -> None:
    pytester.mkdir("perf")
    main = "import pathlib, pytest; print(pytest.main([pathlib.Path('perf'), '--ddpperf-quick']).name)"
    pytester.run(sys.executable, "-c", main).stdout.fnmatch_lines(["*NO_TESTS_COLLECTED"])
