"""Python objects that steps leave behind, by type."""

from __future__ import annotations

import gc
from collections import Counter
from itertools import pairwise

LEAST = 1.0  # objects of a type a step; less is none of the step's own


class ObjectCensus:
    """Counts the objects that the garbage collector knows, between steps.

    What a rank inherits from the process that forked it is frozen, and neither counted nor walked through.
    """

    def __init__(self) -> None:
        self._taken: list[tuple[int, Counter[str]]] = []  # steps so far, and objects by type

    def take(self, steps: int) -> None:
        """Counts what is there after so many steps; garbage is collected before."""
        gc.collect()
        kinds = map(type, gc.get_objects())
        self._taken.append((steps, Counter(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)))

    def left_behind(self) -> dict[str, float]:
        """The objects that each step leaves behind, by type: the least growth of all stretches between two counts.

        A cache that fills up grows in one stretch and not in another. Nothing with fewer than three counts.
        """
        grown = [
            {kind: (number - before[kind]) / (steps - steps_before) for kind, number in after.items()}
            for (steps_before, before), (steps, after) in pairwise(self._taken)
        ]
        if len(grown) < 2:  # noqa: PLR2004
            return {}
        least = {kind: min(each.get(kind, 0.0) for each in grown) for kind in grown[-1]}
        return {kind.removeprefix("builtins."): growth for kind, growth in least.items() if growth >= LEAST}
