"""Settings of data loading that replace a workload's own settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pytest_ddpperf.parsers import closest, one_of, positive_int, switch, whole_number, written

_PARSERS = {
    "workers": whole_number,
    "pin_memory": switch,
    "prefetch_factor": positive_int,
    "persistent_workers": switch,
    "sampler": one_of("rank"),
}
_EXPECTED = f"auto, or settings such as workers=2,pin_memory=true; the settings are {', '.join(_PARSERS)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderSettings:
    """Changes of the settings of a workload's DataLoader; None keeps the workload's own setting.

    Raises:
        ValueError: torch would refuse a value or a combination; the message describes the expected values.
    """

    # Processes that fetch batches for a rank (torch's ``num_workers``); 0 to fetch them in the rank itself.
    workers: int | None = None
    # Whether batches are put into page-locked memory, from which a GPU copies them while it computes.
    pin_memory: bool | None = None
    prefetch_factor: int | None = None  # batches that each worker prepares in advance
    persistent_workers: bool | None = None  # whether workers live on when the data begin again
    sampler: Literal["rank"] | None = None  # ``rank`` to split the data among the ranks with a DistributedSampler
    auto: bool = False  # whether the first launch picks the first four for machine and data

    def __post_init__(self) -> None:
        for name, parse in {**_PARSERS, "auto": switch}.items():
            if (value := getattr(self, name)) is not None or (parse is switch and name == "auto"):
                object.__setattr__(self, name, _parsed(name, value, parse))
        picked = [name for name in _PARSERS if name != "sampler" and getattr(self, name) is not None]
        if self.auto and picked:
            raise ValueError(f"auto without {picked[0]}, which auto picks itself")
        if not self.auto and not picked and self.sampler is None:
            raise ValueError(_EXPECTED)
        for name in ("prefetch_factor", "persistent_workers"):
            if self.workers == 0 and getattr(self, name):
                raise ValueError(f"{name} only with workers=1 or more, because workers=0 prefetches nothing")

    def __str__(self) -> str:
        given = ((name, getattr(self, name)) for name in _PARSERS)
        words = [f"{name}={written(value)}" for name, value in given if value is not None]
        return ",".join(["auto", *words] if self.auto else words)


def loader_settings(value: object) -> LoaderSettings:
    """Parses ``auto``, ``"workers=2,pin_memory=true"`` or a mapping; raises ValueError for an invalid word or value."""
    if isinstance(value, LoaderSettings):
        return value
    if isinstance(value, str):
        value = _words(value)
    if not isinstance(value, Mapping):
        raise ValueError(_EXPECTED)  # noqa: TRY004  one kind of error for every value that does not fit
    unknown = [str(name) for name in value if name not in _PARSERS and name != "auto"]
    if unknown:
        hint = closest(unknown[0], _PARSERS, 0.4)
        raise ValueError(f"{_EXPECTED}; there is no {unknown[0]}{hint and f', {hint}'}")
    return LoaderSettings(**dict(value))


def _words(text: str) -> dict[str, object]:
    words: dict[str, object] = {}
    for part in map(str.strip, text.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name in words:
            raise ValueError(f"each setting once, but {name} is given twice")
        if name == "auto" and not equals:
            words[name] = True
        elif name and value:
            words[name] = value
        else:
            raise ValueError(_EXPECTED)
    return words


def _parsed(name: str, value: object, parse: Any) -> object:
    try:
        return parse(value)
    except ValueError as expected:
        raise ValueError(f"{name} to be {expected}, not {value!r}") from None
