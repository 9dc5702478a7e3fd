"""Types that documents have in common, with what a JSON schema says of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta
from typing_extensions import TypedDict

Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[float, Meta(ge=0)]
Confidence = Annotated[float, Meta(gt=0, lt=1)]
Date = Annotated[str, Meta(extra_json_schema={"format": "date"})]
MetricName = Annotated[str, Meta(pattern="^[a-z][a-z0-9_]*$")]


VerdictWord = Annotated[
    Literal["improved", "unchanged", "new", "incompatible", "inconclusive", "regressed", "broken"],
    Meta(
        description="What the comparison with the baseline says. inconclusive: this run could not tell. new: there is "
        "no baseline. incompatible: the baseline is of another environment. broken: it could not be measured."
    ),
]


def about(description: str, **limits: Any) -> Meta:
    """What a schema says of a field."""
    return Meta(description=description, **limits)


class IntervalData(TypedDict):
    """A confidence interval; an end is null where it is not finite."""

    low: Annotated[float | None, about("Lower end.")]
    high: Annotated[float | None, about("Upper end.")]
    confidence: Annotated[Confidence, about("Confidence level: 0.95 for 95 %.")]
