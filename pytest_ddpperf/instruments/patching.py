"""Replacing functions of torch while an instrument is active.

torch has no hook for a collective, an autograd run, gradient clipping or a DataLoader's batch, and a hook that is
asked in every step would cost time in timed steps. An instrument therefore replaces the attribute under which callers
look a function up, private names included, and puts the original back when it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, by: Callable[..., Any]) -> Iterator[None]:
    """Within, an attribute of a module, class or object is another one; afterwards its own or inherited one again."""
    own = vars(owner)
    inherited = name not in own
    before = own.get(name)
    setattr(owner, name, by)
    try:
        yield
    finally:
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
