"""What torch notes of the collectives in a profile: their kinds, sizes and groups. Pure; importable without torch."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

EVENT = "record_param_comms"

_TEXTS = frozenset({"Collective name", "dtype"})

_KINDS = {  # by ProcessGroupNCCL's names; other names stay
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "_allgather_base": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
    "all_to_allv": "all_to_all",
}
_ITEM_SIZES = {  # by c10's names of types
    **dict.fromkeys(("Double", "Long", "UInt64", "ComplexFloat"), 8),
    **dict.fromkeys(("Float", "Int", "UInt32", "ComplexHalf"), 4),
    **dict.fromkeys(("Half", "BFloat16", "Short", "UInt16"), 2),
    **dict.fromkeys(("Byte", "Char", "Bool"), 1),
    **dict.fromkeys(("Float8_e5m2", "Float8_e4m3fn", "Float8_e5m2fnuz", "Float8_e4m3fnuz"), 1),
    "ComplexDouble": 16,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """What is known of one collective before it begins."""

    kind: str  # ``all_reduce``, ``all_gather`` ...
    nbytes: float | None  # that this rank puts into it; None if the type is unknown
    ranks: int | None  # of its group; None if that is not noted
    copied: bool = False  # whether copy engines send it, and no kernel


def note_of(fields: Mapping[str, Any]) -> Note | None:
    """The note with these fields, texts in JSON or values; None if it is of no collective."""
    name = _value(fields, "Collective name")
    if not name or name == "wait":
        return None
    count, size = _value(fields, "In msg nelems"), _ITEM_SIZES.get(str(_value(fields, "dtype")))
    ranks = _value(fields, "Group size")
    return Note(
        kind=_KINDS.get(name, name),
        nbytes=None if count is None or size is None else float(count * size),
        ranks=ranks or None,
    )


def notes_in_trace(trace: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """The fields of each note in an exported trace, by the number that kernels are linked to."""
    events = (event for event in trace.get("traceEvents", ()) if event.get("name") == EVENT)
    return {event["args"]["External id"]: event["args"] for event in events if "External id" in event.get("args", {})}


def notes_of_kernels(links: Iterable[int], fields: Mapping[int, Mapping[str, Any]]) -> dict[int, Note]:
    """The notes of those numbers that exactly one kernel of NCCL is linked to.

    ``links`` holds the number of each kernel, 0 for none. If collectives are sent as a group, one note stands for
    several kernels, or one kernel for several notes: then nobody knows what a kernel sent. A kernel that stands for
    several notes is linked to none of them.
    """
    noted = {
        number: note_of(fields[number]) for number, times in Counter(links).items() if times == 1 and number in fields
    }
    return {number: note for number, note in noted.items() if note is not None}


def notes_of_copies(links: Iterable[int], fields: Mapping[int, Mapping[str, Any]]) -> dict[int, Note]:
    """The notes of those numbers that copies alone are linked to: collectives that copy engines send.

    One has a copy for each peer, so none tells the bytes of the whole.
    """
    noted = {number: note_of(fields[number]) for number in links if number in fields}
    return {number: replace(note, nbytes=None, copied=True) for number, note in noted.items() if note is not None}


def _value(fields: Mapping[str, Any], name: str) -> Any:
    value = fields.get(name)
    if name in _TEXTS:
        return value.strip('"') if isinstance(value, str) else None
    return json.loads(value) if isinstance(value, str) else value


_SHAPE_ITEM_SIZES = {  # the profiler's names of types
    **dict.fromkeys(("double", "long", "long int", "c10::complex<float>"), 8),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("c10::Half", "c10::BFloat16", "short", "short int"), 2),
    **dict.fromkeys(("unsigned char", "signed char", "bool"), 1),
}


def bytes_of(types: Sequence[str], shapes: Sequence[Sequence[int]]) -> float | None:
    """The bytes of tensors of these types, as the profiler names them, and shapes; None if a type is unknown."""
    sizes = [_SHAPE_ITEM_SIZES.get(dtype) for dtype in types]
    if not sizes or None in sizes or len(sizes) != len(shapes):
        return None
    return float(sum(math.prod(shape) * size for shape, size in zip(shapes, sizes, strict=True) if size))
