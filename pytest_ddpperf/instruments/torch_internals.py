"""The parts of torch without a public interface that instruments need. Importable without torch."""

from __future__ import annotations

import functools
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import timedelta
from traceback import FrameSummary
from typing import Any, TypeVar

SEED = 0
"""The seed of each rank's generators: without it, ranks draw different numbers, unless the training code seeds them."""
_UNNAMED = " (as importlib._bootstrap)"
_NUMBER = re.compile(r"(?<=== )-?[\d.]+(e[+-]?\d+)?$")


def activity_of(event: Any) -> str:
    """Returns kineto's kind of an event: ``kernel``, ``gpu_memcpy``, ``gpu_memset``, ``user_annotation``, ``cpu_op``.

    torch before 2.12 does not report the kind; there it is derived from the event's device and name.
    """
    if (tell := getattr(event, "activity_type", None)) is not None:
        return str(tell())
    on_host = getattr(event.device_type(), "name", "") != "CUDA"
    if event.is_user_annotation():
        return "user_annotation" if on_host else "gpu_user_annotation"
    if on_host:
        return "cpu_op"
    name = event.name()
    return "gpu_memcpy" if name.startswith("Memcpy") else "gpu_memset" if name.startswith("Memset") else "kernel"


def pci_id(properties: Any) -> str | None:
    """Returns the PCI id of an NVIDIA GPU, in the format of NVIDIA's tools; None if torch does not know it."""
    import torch

    if torch.version.hip is not None or not hasattr(properties, "pci_bus_id"):
        return None
    return f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"


def gpu_software() -> dict[str, str]:
    """Returns the software for computing and communication on GPUs: versions of cuDNN and NCCL, and the allocator."""
    import torch

    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    facts = {"gpu_allocator": torch.cuda.get_allocator_backend(), "cudnn": str(cudnn or "")}
    if torch.distributed.is_nccl_available():
        from torch.cuda import nccl

        facts["nccl"] = ".".join(map(str, nccl.version()))  # type: ignore[no-untyped-call]
    return {name: fact for name, fact in facts.items() if fact}


def fp32_switches() -> list[Any]:
    """Returns the parts of torch.backends with an ``fp32_precision`` (matmul, conv, rnn); empty before torch 2.9."""
    import torch

    backends: Any = torch.backends  # not all of them are typed
    return [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn] if hasattr(backends.cudnn, "conv") else []


@functools.cache
def discard_first_profile() -> None:
    """Makes this process's first profile on CUDA and discards it, because the first one takes long to start CUPTI."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True):
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()


def unsampled() -> AbstractContextManager[None]:
    """Stops DDP, in this context, from timing its first ten steps and each hundredth, as timing waits for the GPU."""
    from torch._C import _distributed_c10d as c10d

    return replaced(c10d.Logger, "set_runtime_stats_and_log", lambda _logger: None)


F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def compiled_graphs() -> int:
    """Returns the number of graphs that torch.compile has captured in this process so far."""
    return _counted("stats", "unique_graphs")


def compile_seconds() -> float | None:
    """Returns the seconds that torch.compile has spent in this process so far; None if it has compiled nothing."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return None if dynamo is None else float(dynamo.calculate_time_spent()["total_wall_time"]) or None


def compiled_frames() -> int:
    """Returns how many function frames torch.compile has looked at in this process so far, compiled or not."""
    return _counted("frames", "total")


def _counted(group: str, name: str) -> int:
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters[group][name])


def unnamed(function: F) -> F:
    """Hides a function's frame from Python's warnings, so that a warning names the line that calls the function."""
    code = function.__code__
    if not code.co_filename.endswith(_UNNAMED):
        function.__code__ = code.replace(co_filename=f"{code.co_filename}{_UNNAMED}")
    return function


def uncompiled(function: F) -> F:
    """Makes torch.compile skip a function, but not the functions it calls; hides its frame from Python's warnings."""
    # torch.compiler.disable(recursive=False) imports the whole compiler, and wraps the function in another one.
    skip_code = getattr(sys.modules.get("torch._dynamo.eval_frame"), "skip_code", None)
    unnamed(function)
    if skip_code is not None:
        skip_code(function.__code__)
    function.__dict__["_torchdynamo_disable"] = True  # read before the function is inlined into its caller
    return function


def warmed_up(run: Callable[[], object], steps: int) -> dict[str, dict[str, float]]:
    """Runs steps; returns all ``graph_breaks``, and ``recompiles`` after the first step, each as {reason: number}."""
    first = compiled_graphs()
    for number in range(steps):
        run()
        if not number:
            first = compiled_graphs()
    return compiled_since(first)


def compiled_since(known: int) -> dict[str, dict[str, float]]:
    """Returns ``graph_breaks`` and ``recompiles`` as {reason: number}; graphs after number ``known`` are recompiles."""
    again = compiled_graphs() - known
    told = Counter(reason for reason, _ in compilations()[known : known + again])
    unknown = again - told.total()
    told.update({"graphs compiled after the first step": unknown} if unknown else {})
    dynamo = sys.modules.get("torch._dynamo.utils")
    breaks = Counter(reason for reason, _ in graph_breaks())  # torch's own counter lacks branches on a value
    for reason, times in dynamo.counters["graph_break"].items() if dynamo is not None else ():
        breaks |= Counter({str(reason).partition("\n")[0]: times})
    found = {"graph_breaks": breaks, "recompiles": told}
    return {metric: {reason: float(times) for reason, times in each.items()} for metric, each in found.items()}


def compilations() -> list[tuple[str, FrameSummary]]:
    """Returns reason and function of each compiled graph; empty above 64 graphs, because torch then drops some."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    found = [] if dynamo is None else [each for each in dynamo.get_compilation_metrics() if each.graph_op_count]
    told = []
    for each in found if len(found) == compiled_graphs() else ():
        guard = (getattr(each, "recompile_reason", None) or "").partition("\n")[0].partition(" #")[0].partition(": ")[2]
        said = f"{each.co_name}: {_NUMBER.sub('NUMBER', guard.strip()) or 'compiled after the first step'}"
        told.append((said, FrameSummary(each.co_filename, each.co_firstlineno, each.co_name, lookup_line=False)))
    return told


@contextmanager
def eagerly() -> Iterator[None]:
    """Runs compiled code uncompiled in this context, so that all its operators are seen.

    ``torch.cond`` and similar operators still compile their functions; uncompiled, they would lose closures' tensors.
    """
    if (dynamo := sys.modules.get("torch._dynamo")) is None:
        yield
        return
    entered = dynamo.utils.disable_cache_limit  # by these operators alone

    @contextmanager
    def compiling() -> Iterator[None]:
        with dynamo.set_stance("default"), entered():
            yield

    with dynamo.set_stance("force_eager"), replaced(dynamo.utils, "disable_cache_limit", compiling):
        yield


def graph_breaks() -> list[tuple[str, Sequence[FrameSummary]]]:
    """Returns the first line of the reason of each graph break so far, and its stack, innermost last."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    found = () if dynamo is None else getattr(dynamo, "graph_break_reasons", ())
    return [(str(each.reason).partition("\n")[0], each.user_stack) for each in found if each.graph_break]


@contextmanager
def after_optimizer_steps(call: Callable[[Any], object]) -> Iterator[None]:
    """Calls ``call(optimizer)``, in this context, after each optimizer step that does not run inside another one.

    torch's own hooks would run inside the step, and while those hooks run, no further hook can be added.
    """
    from torch.optim import Optimizer

    depth, following = 0, True

    def followed(step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def whole_step(self: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            depth += 1
            try:
                result = step(self, *args, **kwargs)
            finally:
                depth -= 1
            if not depth and following:
                call(self)
            return result

        return uncompiled(whole_step)

    hooking = Optimizer.profile_hook_step  # wraps the step of each class whose first optimizer is made
    with ExitStack() as stack:
        for kind in subclasses(Optimizer):
            if getattr(vars(kind).get("step"), "hooked", False):
                stack.enter_context(replaced(kind, "step", followed(kind.step)))
        stack.enter_context(
            replaced(Optimizer, "profile_hook_step", staticmethod(lambda step: followed(hooking(step))))
        )
        yield
    following = False  # classes stay as they are


def meet(group: Any) -> None:
    """Waits for all ranks of ``group`` at a barrier; None means the default group."""
    import torch
    import torch.distributed as dist

    if group is None:
        dist.barrier()
        return
    options = dist.BarrierOptions()
    options.device = torch.device("cpu")
    group.barrier(options).wait()  # dist.barrier would warn that torch does not know the group


def tcp_store(
    address: str, port: int, ranks: int, timeout: timedelta, listening: int | None = None, *, waits: bool = False
) -> Any:
    """Returns a ``TCPStore`` client; also serves the store if ``listening`` is the descriptor of a listening socket.

    If ``waits`` is True, the function first waits for all ranks. Before torch 2.8, libuv cannot serve a given socket.
    """
    import torch
    import torch.distributed as dist

    kind: Any = dist.TCPStore  # type: ignore[attr-defined]  # torch's stubs lack it in some versions
    serving = {} if listening is None else {"master_listen_fd": listening, "use_libuv": torch.__version__ >= "2.8"}
    return kind(
        address, port, ranks, is_master=listening is not None, timeout=timeout, wait_for_workers=waits, **serving
    )


def forget_received() -> None:
    """Frees the memory of dead entries (before torch 2.11: of all entries) in torch's cache of received tensors."""
    import torch

    if (received := sys.modules.get("torch.multiprocessing.reductions")) is not None:
        cache = received.shared_cache
        with cache.lock:
            (cache.free_dead_references if torch.__version__ >= "2.11" else cache.clear)()


def process_groups() -> list[Any]:
    """Returns all existing process groups of torch.distributed, including the default group."""
    from torch.distributed import distributed_c10d

    return [*distributed_c10d._world.pg_map]  # noqa: SLF001 - torch lists them nowhere else


def collectives_called(groups: Sequence[Any] = ()) -> int:
    """Returns how many collectives this rank has called in the default group, or in ``groups``; 0 if not counted."""
    import torch.distributed as dist

    called, default = 0, dist.group.WORLD
    for group in groups or ([] if default is None else [default]):
        with suppress(RuntimeError):
            called += int(group._get_sequence_number_for_group())  # noqa: SLF001 - no public number
    return called


def backward_under_way() -> int:
    """Returns the id of the backward pass that this thread runs; -1 if it runs none."""
    import torch

    return int(torch._C._current_graph_task_id())  # noqa: SLF001 - there is no public number


def subclasses(kind: type[T]) -> Iterator[type[T]]:
    """Yields all subclasses of a class."""
    for below in kind.__subclasses__():
        yield below
        yield from subclasses(below)


@contextmanager
def replaced(owner: Any, name: str, by: Any) -> Iterator[None]:
    """Replaces, in this context, an attribute of a module, class or object; then restores the earlier attribute."""
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
