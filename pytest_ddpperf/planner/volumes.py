"""Computes the communication of a rank in DDP or FSDP, the buckets of DDP, and the bytes of a rank's model states.

Sources: PyTorch FSDP (Zhao et al. 2023, section 3.2), ZeRO (Rajbhandari et al. 2020, section 5), and torch itself.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pytest_ddpperf.errors import SettingError, require_number, require_one_of, require_ranks
from pytest_ddpperf.planner.costs import Network, collective_time, hybrid_nodes
from pytest_ddpperf.strategies.strategy import packed

MB = 2**20  # bytes, as torch's DDP has it
DEFAULT_CAP_MB = 25.0
FIRST_CAP_MB = 1.0  # of the first bucket, if the user gives no cap


@dataclass(frozen=True, slots=True)
class GradientBucket:
    """A bucket: the indices of its parameters in the order in which their gradients become ready, and its bytes."""

    parameters: tuple[int, ...]
    nbytes: int


def bucket_layout(
    sizes: Sequence[int],
    cap_mb: float | None = None,
    *,
    ready_order: Sequence[int] | None = None,
    kinds: Sequence[Hashable] | None = None,
) -> tuple[GradientBucket, ...]:
    """Returns the buckets of torch's DDP after it has rebuilt them, in the order in which they are sent.

    A bucket is full once it reaches or exceeds its cap: by default 25 MiB, and 1 MiB for the first bucket.

    Args:
        sizes: bytes of each gradient, in the order of ``model.parameters()``, without parameters that have no gradient.
        cap_mb: DDP's ``bucket_cap_mb``, in units of 2^20 bytes; None for its default.
        ready_order: indices of parameters in the order in which gradients become ready; reversed by default.
        kinds: the dtype and device of each parameter, which must be equal in a bucket; all equal by default.
    """
    cap = MB * (DEFAULT_CAP_MB if cap_mb is None else require_number("cap_mb", cap_mb, positive=True))
    first = FIRST_CAP_MB * MB if cap_mb is None else cap
    order = range(len(sizes) - 1, -1, -1) if ready_order is None else ready_order
    if sorted(order) != list(range(len(sizes))):
        raise SettingError(f"ready_order={order!r:.60}: expected each index below {len(sizes)} exactly once")
    if kinds is not None and len(kinds) != len(sizes):
        raise SettingError(f"kinds has {len(kinds)} entries for {len(sizes)} parameters; give one for each")
    facts = ((i, None if kinds is None else kinds[i], sizes[i]) for i in order)
    return tuple(GradientBucket(tuple(each), sum(sizes[i] for i in each)) for each in packed(facts, cap, first))


SHARDINGS = ("FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "NO_SHARD")
_MANY = 2  # the fewest ranks that send anything
_BROADCAST_MB = 250.0  # DDP's broadcast_bucket_size


class Model(Protocol):
    """The methods of ``torch.nn.Module`` that the estimates call."""

    def parameters(self) -> Iterable[Any]:
        """Returns the module's parameters."""

    def buffers(self) -> Iterable[Any]:
        """Returns the module's buffers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """Collectives of one kind and size in a step."""

    collective: str  # all_reduce, all_gather and others
    ranks: int  # number of ranks that take part
    calls: int  # number of collectives
    nbytes: float  # the whole buffer of one collective

    @property
    def send_bytes(self) -> float:
        """Returns the bytes that a rank sends: 2(n-1)/n buffers for an all-reduce, (n-1)/n for other collectives."""
        parts = 2 if self.collective == "all_reduce" else 1
        return self.calls * self.nbytes * parts * (self.ranks - 1) / self.ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class CommunicationCost:
    """The communication of one optimizer step on a rank."""

    parts: tuple[Traffic, ...]
    seconds: float | None  # of all parts one after another, by ring formulas, none hidden; None without a network

    @property
    def calls(self) -> int:
        """Returns the number of collectives that a rank takes part in."""
        return sum(part.calls for part in self.parts)

    @property
    def send_bytes(self) -> float:
        """Returns the bytes that a rank sends."""
        return sum(part.send_bytes for part in self.parts)


def estimate_ddp_comm_cost(
    model: Model,
    world_size: int,
    *,
    bucket_cap_mb: float | None = None,
    accumulation_steps: int = 1,
    no_sync: bool = True,
    gradient_element_bytes: int | None = None,
    network: Network | None = None,
) -> CommunicationCost:
    """Returns the communication of one step of torch's DDP: an all-reduce of each bucket, and broadcasts of buffers.

    Args:
        model: the module that DDP would wrap; only its parameters and buffers are used.
        world_size: number of ranks.
        bucket_cap_mb: as in DDP.
        accumulation_steps: micro-batches of an optimizer step.
        no_sync: whether only the last micro-batch sends gradients, because the others run under ``no_sync``.
        gradient_element_bytes: bytes of a sent element if a hook compresses gradients: 2 for bf16.
        network: the links, from which ``seconds`` of the result is computed.
    """
    n, steps = require_ranks("world_size", world_size), require_ranks("accumulation_steps", accumulation_steps)
    trained = [tensor for tensor in _tensors(model, "parameters") if tensor.requires_grad]
    buckets = bucket_layout([_nbytes(tensor) for tensor in trained], bucket_cap_mb, kinds=[*map(_kind, trained)])
    syncs = 1 if no_sync else steps
    sent = [("all_reduce", _nbytes_of([trained[i] for i in one.parameters], gradient_element_bytes)) for one in buckets]
    buffers = _tensors(model, "buffers")
    kinds, order = [*map(_kind, buffers)], range(len(buffers))  # DDP joins buffers of one dtype and device
    joined = bucket_layout([*map(_nbytes, buffers)], _BROADCAST_MB, ready_order=order, kinds=kinds)
    sent += [("broadcast", one.nbytes) for one in joined if one.nbytes]
    parts = [Traffic(collective=name, ranks=n, calls=syncs, nbytes=nbytes) for name, nbytes in sent]
    return _cost(parts if n >= _MANY else [], network)


def estimate_fsdp_comm_cost(
    model: Model,
    world_size: int,
    *,
    sharding: str = "FULL_SHARD",
    ranks_per_node: int | None = None,
    units: int = 1,
    accumulation_steps: int = 1,
    no_sync: bool = False,
    param_element_bytes: int | None = None,
    reduce_element_bytes: int | None = None,
    network: Network | None = None,
    local: Network | None = None,
) -> CommunicationCost:
    """Returns the communication of an FSDP step: each unit all-gathers parameters and reduce-scatters gradients.

    With k micro-batches, FULL_SHARD gathers 2k times and scatters k times; SHARD_GRAD_OP gathers and scatters k times.
    Under ``no_sync``, gradients are scattered once, and SHARD_GRAD_OP gathers once, because it keeps the parameters.
    HYBRID_SHARD is FULL_SHARD in each node, with an all-reduce of each part between nodes. NO_SHARD only all-reduces
    gradients. The estimate gathers all units again in backward; torch keeps the outermost unit, and so sends less.

    For M bytes of gradients, a rank of HYBRID_SHARD sends 2 (M/G)(N-1)/N bytes to other nodes. N is the number of
    nodes and G the ranks of a node. The FSDP paper has 2 M (W-1)/(G W) with W = N G, which is not 0 for one node.

    Args:
        model: the module that FSDP would wrap; only its parameters are used.
        world_size: number of ranks.
        sharding: one of ``SHARDINGS``.
        ranks_per_node: number of ranks of a node, for HYBRID_SHARD.
        units: number of modules that are sharded separately; it only affects calls and latency.
        accumulation_steps: micro-batches of an optimizer step.
        no_sync: whether all micro-batches but the last one run under ``no_sync``.
        param_element_bytes: bytes of ``MixedPrecision.param_dtype``, if parameters are gathered in another dtype.
        reduce_element_bytes: bytes of ``MixedPrecision.reduce_dtype``; as ``param_dtype`` by default.
        network: the links between all ranks (HYBRID_SHARD: between nodes), from which ``seconds`` is computed.
        local: the links in a node, for HYBRID_SHARD; as ``network`` by default.
    """
    n, k = require_ranks("world_size", world_size), require_ranks("accumulation_steps", accumulation_steps)
    nodes = hybrid_nodes(require_one_of("sharding", sharding, SHARDINGS), n, ranks_per_node)
    tensors = _tensors(model, "parameters")
    whole = _nbytes_of(tensors, param_element_bytes)
    reduced = _nbytes_of([one for one in tensors if one.requires_grad], reduce_element_bytes or param_element_bytes)
    syncs = 1 if no_sync else k
    unit = require_ranks("units", units)
    if sharding == "NO_SHARD":
        return _cost(_parts(n, unit, all_reduce=(syncs, reduced)), network)
    gathers = 2 * k if sharding != "SHARD_GRAD_OP" else syncs
    if sharding != "HYBRID_SHARD":
        return _cost(_parts(n, unit, all_gather=(gathers, whole), reduce_scatter=(syncs, reduced)), network)
    own = n // nodes  # ranks of a node
    inside = _parts(own, unit, all_gather=(gathers, whole), reduce_scatter=(syncs, reduced))
    between = _parts(nodes, unit, all_reduce=(syncs, reduced / own))
    return _cost(inside, local or network, _cost(between, network))


def _parts(ranks: int, units: int, **sent: tuple[int, float]) -> list[Traffic]:
    """Returns the traffic of a step; ``sent`` has the calls per unit and the total bytes of each collective."""
    return [
        Traffic(collective=name, ranks=ranks, calls=calls * units, nbytes=nbytes / units)
        for name, (calls, nbytes) in sent.items()
        if ranks >= _MANY
    ]


def _cost(
    parts: Sequence[Traffic], network: Network | None, besides: CommunicationCost | None = None
) -> CommunicationCost:
    more, others = ((), 0.0) if besides is None else (besides.parts, besides.seconds)
    if network is None or others is None:
        return CommunicationCost(parts=(*parts, *more), seconds=None)
    own = sum(part.calls * collective_time(part.collective, part.nbytes, part.ranks, network) for part in parts)
    return CommunicationCost(parts=(*parts, *more), seconds=own + others)


def _tensors(model: Any, method: str) -> list[Any]:
    ask = getattr(model, method, None)
    if not callable(ask):
        raise SettingError(f"model is of type {type(model).__name__} without {method}(); give a torch.nn.Module")
    return list(ask())


def _nbytes(tensor: Any, element_bytes: int | None = None) -> int:
    return int(tensor.numel()) * int(element_bytes or tensor.element_size())


def _nbytes_of(tensors: Sequence[Any], element_bytes: int | None) -> int:
    if element_bytes is not None:
        require_ranks("bytes of an element", element_bytes)
    return sum(_nbytes(tensor, element_bytes) for tensor in tensors)


def _kind(tensor: Any) -> tuple[Any, Any]:
    return tensor.dtype, tensor.device


_LIKE = {"NO_SHARD": "none", "SHARD_GRAD_OP": "zero2", "FULL_SHARD": "zero3", "HYBRID_SHARD": "zero3"}  # FSDP's names
SHARDED: Mapping[str, tuple[bool, bool, bool]] = {
    "none": (False, False, False),
    "zero1": (False, False, True),
    "zero2": (False, True, True),
    "zero3": (True, True, True),
}
"""By name of a sharding, whether parameters, gradients and optimizer states are sharded over the ranks."""

PRECISIONS: Mapping[str, tuple[float, float, float, float]] = {
    "fp32": (4, 4, 0, 4),
    "autocast": (4, 4, 0, 4),
    "mixed": (2, 2, 4, 4),
    "bf16": (2, 2, 0, 2),
}
"""Bytes of a parameter, of its gradient, of a master copy, and of each state of the optimizer.

``mixed`` is ZeRO's: a copy in half precision and a master copy in fp32. ``autocast`` is torch.amp's, whose parameters
and gradients stay in fp32; its temporary casts are not included.
"""
STATES: Mapping[str, int] = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}


def model_state_bytes(
    parameters: int,
    world_size: int,
    sharding: str = "none",
    optimizer: str = "adam",
    precision: str = "mixed",
    *,
    ddp_buckets: bool = False,
    unsharded_gradients: bool = False,
    ranks_per_node: int | None = None,
) -> float:
    """Returns bytes of parameters, gradients and optimizer states on a rank (Rajbhandari et al. 2020, section 5).

    7.5e9 parameters with Adam in mixed precision over 64 ranks take 120 GB, 31.4 GB (zero1), 16.6 GB (zero2) and 1.9 GB
    (zero3). Activations, temporary buffers and units that FSDP has gathered are not included.

    Args:
        parameters: number of parameters.
        world_size: number of ranks.
        sharding: none, zero1, zero2 or zero3; or FSDP's names NO_SHARD, SHARD_GRAD_OP, FULL_SHARD, and HYBRID_SHARD,
            which is zero3 over the ranks of a node.
        optimizer: sgd, momentum, adam or adamw.
        precision: mixed, fp32, autocast or bf16.
        ddp_buckets: whether DDP has buckets in addition to gradients, as without ``gradient_as_bucket_view``.
        unsharded_gradients: whether FSDP accumulates whole gradients under ``no_sync``, in addition to its shards.
        ranks_per_node: number of ranks of a node, for HYBRID_SHARD.
    """
    count, n = require_ranks("parameters", parameters, least=0), require_ranks("world_size", world_size)
    require_one_of("sharding", sharding, (*SHARDED, *_LIKE))
    shared = SHARDED[_LIKE.get(sharding, sharding)]
    n //= hybrid_nodes(sharding, n, ranks_per_node)
    parameter, gradient, master, state = PRECISIONS[require_one_of("precision", precision, PRECISIONS)]
    states = master + state * STATES[require_one_of("optimizer", optimizer, STATES)]
    each = (parameter, gradient, states)
    extra = gradient * (ddp_buckets + (unsharded_gradients and shared[1]))
    return count * (extra + sum(part / n if split else part for part, split in zip(each, shared, strict=True)))
