"""The words of the loader setting: what they mean, how they are written, what is refused."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from pytest_ddpperf.records.loader_settings import LoaderSettings, loader_settings

EXPECTED = (
    "auto, or settings such as workers=2,pin_memory=true; the settings are workers, pin_memory, prefetch_factor, "
    "persistent_workers, sampler"
)


@pytest.mark.parametrize(
    ("value", "settings"),
    [
        ("auto", LoaderSettings(auto=True)),
        ("auto, sampler=rank", LoaderSettings(auto=True, sampler="rank")),
        ("workers=2", LoaderSettings(workers=2)),
        (" workers = 2 , pin_memory = Yes ", LoaderSettings(workers=2, pin_memory=True)),
        ({"workers": 2, "prefetch_factor": "4"}, LoaderSettings(workers=2, prefetch_factor=4)),
        ({"auto": True}, LoaderSettings(auto=True)),
        (LoaderSettings(workers=1), LoaderSettings(workers=1)),
        ("workers=0,persistent_workers=false", LoaderSettings(workers=0, persistent_workers=False)),
    ],
)
def test_loader_settings_are_parsed_from_words(value: object, settings: LoaderSettings) -> None:
    assert loader_settings(value) == settings


@pytest.mark.parametrize(
    "text",
    [
        "auto",
        "auto,sampler=rank",
        "workers=2,pin_memory=true,prefetch_factor=4,persistent_workers=true,sampler=rank",
        "workers=0",
        "pin_memory=false",
    ],
)
def test_the_written_form_stands_for_the_same_settings(text: str) -> None:
    settings = loader_settings(text)
    assert str(settings) == text
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", EXPECTED),
        ("workers=", EXPECTED),
        (2, EXPECTED),
        ({"auto": False}, EXPECTED),
        ("num_workers=2", f"{EXPECTED}; there is no num_workers, did you mean workers?"),
        ({"pin": True}, f"{EXPECTED}; there is no pin, did you mean pin_memory?"),
        ("workers=two", "workers to be a whole number of at least 0, not 'two'"),
        ("prefetch_factor=0", "prefetch_factor to be a whole number of at least 1, not '0'"),
        ("pin_memory=maybe", "pin_memory to be true or false, not 'maybe'"),
        ("sampler=random", "sampler to be one of rank, not 'random'"),
        ("auto=maybe", "auto to be true or false, not 'maybe'"),
        ("workers=1,workers=2", "each setting once, but workers is given twice"),
        ("auto,workers=2", "auto without workers, which auto picks itself"),
        (
            "workers=0,prefetch_factor=2",
            "prefetch_factor only with workers=1 or more, because workers=0 prefetches nothing",
        ),
    ],
)
def test_an_invalid_loader_setting_is_named(value: Any, message: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011  the whole message is compared
        loader_settings(value)
    assert str(raised.value) == message


def test_an_invalid_loader_setting_made_in_python_is_refused() -> None:
    with pytest.raises(ValueError, match="workers to be a whole number of at least 0, not -2"):
        LoaderSettings(workers=-2)
