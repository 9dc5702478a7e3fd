"""Counts every operator that torch dispatches in a step: in forward, backward, optimizer and communication."""

from __future__ import annotations

import functools
import inspect
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import ReferenceType, ref

import torch
import torch.distributed as dist
from torch import nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import graph
from torch.optim import optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from pytest_ddpperf.instruments.counting import collectives, operators
from pytest_ddpperf.instruments.counting.module_tracker import Attribution, Running
from pytest_ddpperf.instruments.counting.sites import Place, Stack, calling, captured_lines, without_callers
from pytest_ddpperf.instruments.counting.steps import LowestMode
from pytest_ddpperf.instruments.counting.tensors import TensorTracker
from pytest_ddpperf.instruments.torch_internals import backward_under_way, compiled_graphs, replaced, uncompiled
from pytest_ddpperf.records.sites import RECORDED_LINES

CALLS = (  # counts of other calls than operators, also of the functions in ``_COSTLY`` of python.py
    *("optimizer_steps", "backward_passes", "slow_modes", "allocator_calls", "processes_started", "checkpoints_saved"),
    *("optimizers_made", "scheduler_steps", "gradients_dropped", "eval_passes"),
)

_READERS = graph._engine_run_backward.__code__, optimizer._get_value.__code__  # noqa: SLF001  all backward is in the first
_BLOCKING = frozenset(inspect.unwrap(function).__code__ for function in (dist.send, dist.recv))
_JOINING = frozenset({torch.ops.aten.cat, torch.ops.aten.stack, torch.ops.aten.repeat})

_QUESTIONS = {
    "__bool__": "bool(tensor)",
    "__int__": "int(tensor)",
    "__float__": "float(tensor)",
    "__format__": "format(tensor)",
    "__contains__": "x in tensor",
}
"""Methods that wait for a tensor's value, and how reports name their calls; ``if tensor`` calls the first method."""

SITED = (
    *("collective_calls", "blocking_collectives", "collective_bytes", "collective_send_bytes", "flops"),
    *("full_precision_flops", "operators", "compiled_operators", "recorded_operators", "synchronisations"),
    "host_to_device_bytes",
    *CALLS,
)
METRICS = (*SITED, "flops_forward", "flops_backward", "flops_recomputed", "operator_bytes")


class OperatorCounter(LowestMode, TorchDispatchMode):
    """A dispatch mode that counts operators below autograd and below tensor subclasses.

    It counts in autograd's threads, but in no thread of a DataLoader or process group. It counts the operators
    inside a user's operator, but not inside an operator of torch. It waits for each collective of CPU tensors, so that
    hooks of DDP run in a fixed order.
    """

    supports_higher_order_operators = True
    # Higher-order operators compile their functions, also while this mode is on; older torch asks the second one.
    ignore_compile_internals = is_infra_mode = classmethod(lambda _cls: True)

    def __init__(self, tracker: TensorTracker, device: str, runs: Callable[[], Running], *, fake: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch
        self._tracker = tracker
        self._device = device
        self._running = runs
        self._fake = fake  # whether the step itself has fake tensors, and does not only ask for shapes
        self._attribution = Attribution()
        self._lock = threading.RLock()
        self._pausing = set[int]()  # threads
        self._compiled, self._captured = compiled_graphs() > 0, captured_lines()
        self._asking = ""  # what asks for a number in Python, if it is none of torch's functions
        self.whole = True  # whether tensors are followed too; without, only what each operator itself shows is counted
        self._counts: dict[str, defaultdict[str, float]] = {}
        self._sites: dict[str, defaultdict[tuple[str, Place], float]] = {}
        self._stack = Stack()
        self._place: Place | None = None  # of the operator that runs, once it was looked for
        self._nodes: dict[int, int] = {}  # the number of autograd's next node, which each thread counts separately
        self.begin_step()

    def __enter__(self) -> Any:
        self._nodes[threading.get_ident()] = torch._C._autograd._get_sequence_nr()  # noqa: SLF001 - no public number
        return super().__enter__()

    def begin_step(self) -> None:
        """Begins a new step with all counts at zero."""
        self._counts = {metric: defaultdict(float) for metric in METRICS}
        self._sites = {metric: defaultdict(float) for metric in (*SITED, RECORDED_LINES)}
        self._attribution.forget()
        self._nodes[threading.get_ident()] = torch._C._autograd._get_sequence_nr()  # noqa: SLF001 - as above
        self._on_host: dict[int, ReferenceType[torch.Tensor]] = {}  # copies, and numbers computed from such
        self._made: Any = WeakTensorKeyDictionary()  # by number that an operator computed: the call in Python
        self.joined: dict[int, ReferenceType[torch.Tensor]] = {}  # made of several tensors, or of one several times

    def details(self) -> dict[str, dict[str, float]]:
        """Returns the counts of the current step, by metric and then by part, such as the name of an operator."""
        return {metric: dict(found) for metric, found in self._counts.items()}

    def sites(self) -> dict[str, Mapping[tuple[str, Place], float]]:
        """Returns the counts of the current step, by metric, and then by pairs of part and line of code."""
        return {metric: dict(found) for metric, found in self._sites.items()}

    def lines(self, metrics: Iterable[str]) -> dict[str, Mapping[tuple[str, Place], float]]:
        """Returns ``sites()`` of some metrics; counts of places that differ only in ``Place.caller`` are added up."""
        return {metric: without_callers(self._sites[metric]) for metric in metrics}

    @property
    def is_paused(self) -> bool:
        """Returns whether this thread has paused counting."""
        return threading.get_ident() in self._pausing

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pauses counting in this context, while the plugin inspects tensors. Other threads go on counting."""
        before = self.is_paused
        self._pausing.add(thread := threading.get_ident())
        try:
            yield
        finally:
            if not before:
                self._pausing.discard(thread)

    def add(self, metric: str, part: str, value: float = 1.0, place: Place | None = None) -> None:
        """Adds ``value`` to a metric by part (an operator, say) and line (None: running line), unless ``is_paused``."""
        if not self.is_paused:
            self._counts[metric][part] += value
            self._sites[metric][part, place or self._stack.call()] += value

    def __torch_dispatch__(
        self, func: Any, types: tuple[type, ...], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        decomposed = any(operators.has_a_say(kind) for kind in types)
        recorded = func.namespace != "prim" and self._is_recorded(args, decomposed=decomposed)  # asks a tensor
        if self.is_paused or (not self._fake and any(issubclass(kind, FakeTensor) for kind in types)):
            return func(*args, **kwargs)  # only asked for shapes
        if decomposed:
            return NotImplemented  # it calls its parts, which come here again
        # In inference mode composite operators arrive undecomposed, and in operators of a jagged tensor.
        if operators.is_composite(func) and not any(tensor.is_nested for tensor in collectives.tensors_in(args)):
            with self:
                return func.decompose(*args, **kwargs)
        if not self._fake and (kernel := operators.kernel_of(func, (*args, *kwargs.values()))) is not None:
            with self:
                out = func.redispatch(kernel, *args, **kwargs)
        elif not self._fake and collectives.is_on_cpu(func, args):
            out = collectives.communicate(func, args, kwargs, self._tracker)
        else:
            out = func(*args, **kwargs)
        with self._lock:
            self._place = None
            if self.whole or not operators.changes_one_count(func, out):
                self._count(func, args, kwargs, out)
            if (name := operators.operator_name(func)) is not None:
                self._count_operator(name, recorded=recorded)
        return out

    def _here(self) -> Place:
        """Returns the line of code that called the running operator; looks it up only once for each operator."""
        self._place = self._place or self._stack.call()
        return self._place

    def _is_recorded(self, args: Sequence[Any], *, decomposed: bool) -> bool:
        """Returns whether autograd recorded the operator; False if ``decomposed``, since torch dispatches its parts."""
        if not torch.is_grad_enabled():
            return False
        thread, now = threading.get_ident(), torch._C._autograd._get_sequence_nr()  # noqa: SLF001 - as above
        if thread not in self._nodes:  # the first operator in a thread of autograd
            self._nodes[thread] = now - any(tensor.requires_grad for tensor in collectives.tensors_in(args))
        before = self._nodes[thread]
        self._nodes[thread] = before if decomposed else now  # its parts follow
        return not decomposed and before != now

    def _count(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> None:
        tensors, results = collectives.tensors_in((*args, *kwargs.values())), collectives.tensors_in((out,))
        if any(tensor.is_meta for tensor in (*tensors, *results)):
            return  # only asked for shapes
        sends = isinstance(func, OpOverload) and func.namespace in collectives.NAMESPACES
        if sends:
            self._count_collectives(func, args, kwargs)
        elif not operators.is_plain(func):
            self._count_flops(func, operators.flops_of(func, args, kwargs, out), tensors)
            if isinstance(func, OpOverload):
                self._count_waits(func, args, kwargs)
        if isinstance(func, OpOverload) and func._overloadpacket in _JOINING:  # noqa: SLF001  torch offers no other way
            self.joined[id(out)] = ref(out)
        if tensors:
            self._note_values(func, tensors, results)
        if not self.whole:
            return
        if (name := operators.operator_name(func)) is not None:
            self._counts["operator_bytes"][name] += operators.moved_bytes((*tensors, *results))
        self._follow(tensors, results)
        if sends and func.name() == "c10d::allreduce_":  # FSDP keeps what it gathers from
            self._tracker.mark_buckets(tensors)

    def _note_values(self, func: Any, tensors: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        """Records results whose values the host has, and other numbers with the call in Python that computed them."""
        numbers = [result for result in results if not result.dim()]
        known = numbers if all(map(self._is_on_host, tensors)) else []
        if func is torch.ops.aten._pack_padded_sequence.default:  # noqa: SLF001  as above; batch sizes stay on the host
            known = [results[1]]
        self._on_host.update((id(result), ref(result)) for result in known)
        if not known and func is not torch.ops.aten.lift_fresh.default:  # of a number in Python
            self._made.update([(number, calling(__file__)) for number in numbers])

    def _count_operator(self, name: str, *, recorded: bool) -> None:
        place = self._here()
        self.add("operators", name, 1, place)
        if self._compiled and backward_under_way() == -1 and self._stack.is_compiled(self._captured):
            self.add("compiled_operators", "operators in torch.compile", 1, place)
        if recorded:
            part = "operators recorded for backward"
            self.add("recorded_operators", part, 1, self._running().called_at or place)
            self._sites[RECORDED_LINES][part, place] += 1

    def _count_collectives(self, func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        calls = collectives.collectives_of(func, args, kwargs)
        place = self._here() if calls else None
        for call in calls:
            self.add("collective_calls", call.name, 1, place)
            self.add("collective_bytes", call.name, call.nbytes, place)
            self.add("collective_send_bytes", call.name, call.sent_bytes, place)
            if call.blocking or (call.name in {"send", "recv"} and self._stack.comes_from(_BLOCKING)):
                self.add("blocking_collectives", call.name, 1, place)

    def _count_flops(self, func: Any, flops: int, tensors: Sequence[torch.Tensor]) -> None:
        if not flops:
            return
        dtype, running = next(tensor.dtype for tensor in tensors), self._running()
        times = operators.full_precision(func, dtype)
        if backward_under_way() == -1 and (times or running.called_at is None):
            at = self._here()
            running = Running(running.module, running.called_at or at, at)
        (module, called_at, line), backward, again = self._attribution.place(running)
        found = {
            ("full_precision_flops", str(dtype).removeprefix("torch.")): (times, line or called_at),
            ("flops", module): (1, called_at),
            ("flops_backward" if backward else "flops_forward", module): (1, None),
            ("flops_recomputed", module): (again, None),
        }
        for (metric, part), (share, place) in found.items():
            if share:
                self._counts[metric][part] += share * flops
            if share and place is not None and place.file:
                self._sites[metric][part, place] += share * flops

    def _count_waits(self, func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        wait = operators.synchronisation(func, args, kwargs, self._device, self._made)
        if wait is not None:
            # With a GPU, the host may already have a number that torch or an optimizer reads here. If torch reads it in
            # the call in Python that computed it, as in one_hot, torch checks it, which it does on a CPU only.
            call = calling(__file__)
            checked = not self._asking and call == self._made.get(args[0])
            asked = wait == "item" and call is not None and (checked or call[0] in _READERS)
            known = self._device == "cpu" and (asked or self._is_on_host(args[0]) or self._tracker.is_state(args[0]))
            if not known:
                self.add("synchronisations", self._asking or wait)
        copied = operators.host_to_device_bytes(func, args, kwargs, self._device)
        if copied:
            self.add("host_to_device_bytes", str(func._overloadpacket), copied)  # noqa: SLF001  its name

    def _is_on_host(self, tensor: torch.Tensor) -> bool:
        copied = (known := self._on_host.get(id(tensor))) is not None and known() is tensor
        return copied or (self._device == "cpu" and not tensor.dim() and self._tracker.is_state(tensor))

    def waited(self, name: str, tensor: torch.Tensor) -> None:
        """Counts a call in which the host waits for a tensor's values, unless the values are on the host already."""
        if not self._is_on_host(tensor):
            self.add("synchronisations", name)
        if name == "tensor.cpu":
            self._on_host[id(tensor)] = ref(tensor)

    @contextmanager
    def questions_named(self) -> Iterator[None]:
        """Counts, in this context, each wait under the name of the Python function that waits, such as ``float``."""

        def named(method: Callable[..., Any], label: str) -> Callable[..., Any]:
            @functools.wraps(method)
            def ask(*args: Any) -> Any:
                before, self._asking = self._asking, label
                try:
                    return method(*args)
                finally:
                    self._asking = before

            return uncompiled(ask)

        with ExitStack() as stack:
            for name, label in _QUESTIONS.items():
                stack.enter_context(replaced(torch.Tensor, name, named(getattr(torch.Tensor, name), label)))
            yield

    def _follow(self, tensors: list[torch.Tensor], results: list[torch.Tensor]) -> None:
        """Passes an operator's tensors to the tracker: as activations if gradients are enabled, else as temporaries."""
        recorded = torch.is_grad_enabled()
        for tensor in tensors:
            if type(tensor) is not torch.Tensor and isinstance(tensor, nn.Parameter):  # asking takes long
                self._tracker.see(tensor, "parameters", mark=True)
            elif recorded:
                self._tracker.see(tensor, "activations")
            else:
                self._tracker.meet(tensor)
        for result in results:
            self._tracker.see(result, "activations" if recorded else "temporaries", made_by=self._here)
