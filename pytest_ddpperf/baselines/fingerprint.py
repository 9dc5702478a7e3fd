"""The environment of a run: its facts, the name of its folder of baselines, and how two environments differ."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

from pytest_ddpperf.instruments.host import MachineFacts
from pytest_ddpperf.instruments.nvml import GpuFacts
from pytest_ddpperf.launch.context import Placement, TorchMachine
from pytest_ddpperf.records.measurement import SIMULATED, Environment
from pytest_ddpperf.records.results import BaselineRecord

_LABELS = {
    "device": "device",
    "device_model": "GPU",
    "device_count": "GPUs",
    "cpu_model": "CPU",
    "cores": "cores",
    "threads": "threads per rank",
    "nodes": "nodes",
    "backend": "backend",
    "world_size": "world size",
    "torch": "torch",
    "cuda": "CUDA",
    "gpu_setup": "GPU setup",
}
_RECORDED = {  # facts with other names in reports
    "torch": "torch",
    "cuda": "CUDA",
    "python": "Python",
    "gpu_clocks": "GPU clocks",
    "gpu_driver": "GPU driver",
    "gpu_allocator": "GPU memory allocator",
    "gpu_persistence": "persistence mode",
    "gpu_ecc": "ECC",
    "gpu_compute_mode": "compute mode",
    "cudnn": "cuDNN",
    "nccl": "NCCL",
}
_OF_GPUS = frozenset({"gpu_allocator", "gpu_driver", "cudnn", "nccl"})
_PICKED_ANEW = frozenset({"host", "affinity", "numa_nodes", "CUDA_VISIBLE_DEVICES"})
_ENV = "env "
_UNCOUNTED = re.compile(  # environment variables that change times or what is printed, and none of what is counted
    rf"{_ENV}((TORCH_)?NCCL_\w+|(GLOO|OMP|GOMP|KMP|MKL|MALLOC|UCX|FI)_\w+|PYTORCH_(CUDA_|HIP_)?ALLOC_CONF|LD_PRELOAD"
    r"|CUDA_(DEVICE_MAX_CONNECTIONS|LAUNCH_BLOCKING)|TOKENIZERS_PARALLELISM|TORCH_(LOGS|CPP_LOG_LEVEL)|PYTHON(UNBUFFERED"
    r"|WARNINGS|FAULTHANDLER))"
)
_ANY = "any"  # the name of simulated ranks' machine
_MAX_NAME = 48  # characters of a device's name in a key
_NAME = r"[a-z0-9._-]+?"
_KEY = re.compile(
    rf"(?P<device>cpu|cuda)(?:-(?P<device_model>{_NAME})-x(?P<device_count>\d+))?"
    rf"-(?P<cpu_model>{_NAME})-(?P<cores>\d+)c-t(?P<threads>\d+)(?:-n(?P<nodes>\d+))?"
    r"-(?P<backend>[a-z0-9]+)-w(?P<world_size>\d+)-torch(?P<torch>[0-9.]+)(?:-cuda(?P<cuda>[0-9.]+))?"
    rf"(?:-gpu-(?P<gpu_setup>{_NAME}))?"
)
_COUNTS = ("device_count", "cores", "threads", "nodes", "world_size")

Fact = str | int | None


def environment(
    machine: MachineFacts,
    torch: TorchMachine,
    placement: Placement,
    world_size: int,
    *,
    threads: int,
    gpus: GpuFacts | None = None,
    nodes: int = 1,
    binding: str = "none",
) -> Environment:
    """Returns the environment of a process group on this machine, with ``threads`` threads in each rank.

    ``gpus``: facts about the GPUs of ranks; None if unknown or on the CPU. ``binding``: the setting ``cpu_binding``.
    """
    full = {name: getattr(machine, name) for name in ("machine", "host", "kernel", "python")}
    full |= {name: text for name in ("clocks", "affinity", "numa_nodes") if (text := getattr(machine, name))}
    full |= {"binding": binding}
    full |= {"torch": torch.torch, **({} if torch.cuda is None else {"cuda": torch.cuda}), **torch.packages}
    on_gpu = placement.device == "cuda"
    return Environment(
        device=placement.device,
        device_model=" + ".join(dict.fromkeys(torch.gpus.names)) or "unknown" if on_gpu else machine.cpu_model,
        device_count=len(torch.gpus.names) if on_gpu else 0,
        cpu_model=machine.cpu_model,
        cores=machine.cores,
        threads=threads,
        nodes=nodes,
        backend=placement.backend,
        world_size=world_size,
        torch=_minor(torch.torch),
        cuda=None if torch.cuda is None else _minor(torch.cuda),
        gpu_setup=None if gpus is None else gpus.setup,
        recorded=full if gpus is None else {**full, **gpus.recorded},
    )


def simulated_environment(python: str, torch: TorchMachine, world_size: int) -> Environment:
    """Returns the environment of a simulated group, whose counts depend on no machine."""
    return Environment(
        device="cpu",
        device_model=_ANY,
        device_count=0,
        cpu_model=_ANY,
        cores=1,
        threads=1,
        nodes=1,
        backend=SIMULATED,
        world_size=world_size,
        torch=_minor(torch.torch),
        cuda=None,
        recorded={"python": python, "torch": torch.torch, **torch.packages},
    )


def digest(text: str) -> str:
    """Returns eight hexadecimal digits of a text's hash."""
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:8]


def environment_key(env: Environment) -> str:
    """Returns the name of an environment's folder of baselines: ``cpu-amd-epyc-2c-t1-gloo-w2-torch2.13``.

    Simulated ranks have no machine: ``simulated-w1024-torch2.13``. Two environments have the same key if and only if
    all facts in ``_LABELS`` are equal. If the facts cannot be read back from a key, it ends with a hash of the facts.
    Letter case and spacing of model names do not count.
    """
    if env.simulated:
        return f"simulated-w{env.world_size}-torch{_slug(env.torch)}"
    facts = _facts(env)
    gpu = "" if env.device == "cpu" else f"-{_slug(facts['device_model'])}-x{env.device_count}"
    nodes = "" if env.nodes == 1 else f"-n{env.nodes}"
    cuda = "" if env.cuda is None else f"-cuda{_slug(env.cuda)}"
    setup = "" if env.gpu_setup is None else f"-gpu-{_slug(env.gpu_setup)}"
    key = (
        f"{_slug(env.device)}{gpu}-{_slug(facts['cpu_model'])}-{env.cores}c-t{env.threads}{nodes}"
        f"-{_slug(env.backend)}-w{env.world_size}-torch{_slug(env.torch)}{cuda}{setup}"
    )
    told = sorted(item for item in facts.items() if item != ("gpu_setup", None))  # older keys do not have this fact
    return key if _read_back(key) == facts else f"{key}~{digest(repr(told))}"


def differences(a: Environment, b: Environment, names: Iterable[str] = tuple(_LABELS)) -> tuple[str, ...]:
    """Returns a text for each fact that differs, with the value of ``a`` first: ``torch 2.11 -> 2.13``."""
    left, right = _facts(a), _facts(b)
    return tuple(
        f"{_LABELS[name]} {_shown(a, name)} -> {_shown(b, name)}" for name in names if left[name] != right[name]
    )


def counted_differences(a: Environment, b: Environment) -> tuple[str, ...]:
    """Returns a text for each difference in device, backend, world size or torch: all counts depend on these facts."""
    return differences(a, b, ("device", "backend", "world_size", "torch"))


def kernel_differences(a: Environment, b: Environment) -> tuple[str, ...]:
    """Returns a text for each differing fact on which torch's choice of GPU kernels depends; empty on the CPU."""
    return differences(a, b, ("device_model", "cuda")) if a.device == b.device == "cuda" else ()


def recorded_differences(a: Environment, b: Environment) -> tuple[str, ...]:
    """Returns a text for each differing fact that does not decide whether baselines are comparable.

    Facts that ``a`` or ``b`` lacks are omitted, because older baselines have fewer facts. Hosts and visible GPUs are
    omitted, because schedulers choose them for each job.
    """
    left, right = dict(a.recorded), dict(b.recorded)
    if a.device == b.device == "cuda" and _OF_GPUS & left.keys() and _OF_GPUS & right.keys():
        variables = sorted(name for name in {*left, *right} if name.isupper())
        left, right = ({**dict.fromkeys(variables, "none"), **facts} for facts in (left, right))
    known = [*_RECORDED, *sorted({*left} - {*_RECORDED})]
    keyed = {name for name in ("torch", "cuda") if getattr(a, name) != getattr(b, name)}
    names = [name for name in known if name in left.keys() & right.keys() - _PICKED_ANEW - keyed]
    return tuple(
        f"{_RECORDED.get(name, name)} {left[name]} -> {right[name]}" for name in names if left[name] != right[name]
    )


def training_differences(
    record: BaselineRecord, strategy: str, recipe: Mapping[str, str], *, counted: bool = False
) -> tuple[str, ...]:
    """Returns the differences in training from a baseline: ``strategy ddp -> naive``, ``precision bf16 -> default``.

    With ``counted``, environment variables that change no count, such as NCCL_ALGO, are not compared.
    """
    strategies = () if record.strategy == strategy else (f"strategy {record.strategy} -> {strategy}",)
    before, after = (_with_variables(each) for each in (record.recipe, recipe))
    names = [name for name in sorted({*before, *after}) if not (counted and _UNCOUNTED.fullmatch(name))]
    usual = {name: "none" if name.startswith(_ENV) else "default" for name in names}
    pairs = ((name, before.get(name, usual[name]), after.get(name, usual[name])) for name in names)
    return (*strategies, *(f"{name} {then} -> {now}" for name, then, now in pairs if then != now))


def _with_variables(recipe: Mapping[str, str]) -> dict[str, str]:
    """Returns a training's settings with ``env``, such as ``A=1 B=2``, split into ``{"env A": "1", "env B": "2"}``."""
    each = (text.partition("=") for text in re.split(r" (?=\w+=)", recipe.get("env", "")) if text)
    return {name: text for name, text in recipe.items() if name != "env"} | {
        _ENV + name: text for name, _, text in each
    }


def _facts(env: Environment) -> dict[str, Fact]:
    facts: dict[str, Fact] = {name: getattr(env, name) for name in _LABELS}
    facts["cpu_model"] = _plain(env.cpu_model)
    facts["device_model"] = _plain(env.device_model)
    if env.device == "cpu" and facts["device_model"] == facts["cpu_model"]:
        facts["device_model"] = None  # the CPU is named once
    return facts


def _read_back(key: str) -> dict[str, Fact] | None:
    """Returns the facts that can be read from a key; None if the key has another form."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    facts: dict[str, Fact] = {name: match[name] for name in _LABELS}
    facts["nodes"] = match["nodes"] or 1
    facts["device_count"] = match["device_count"] or 0
    for name in _COUNTS:
        facts[name] = int(str(facts[name]))
    for name in ("cpu_model", "device_model", "gpu_setup"):
        facts[name] = None if match[name] is None else match[name].replace("-", " ").replace("_", "-")
    return facts


def _plain(model: str) -> str:
    return " ".join(model.split()).casefold()


def _slug(fact: Fact) -> str:
    """Returns a fact as part of a file name: a dash for each space, an underscore for each dash."""
    slug = re.sub(r"[^a-z0-9._]+", "-", str(fact).replace("-", "_").lower())
    return slug.strip("-")[:_MAX_NAME] or "unknown"


def _shown(env: Environment, name: str) -> str:
    value = None if _facts(env)[name] is None else getattr(env, name)
    unknown = "unknown" if (name, env.device) == ("gpu_setup", "cuda") else "none"
    return unknown if value is None else str(value)


def _minor(version: str) -> str:
    """Returns major and minor of a version: ``2.13.0+cpu`` gives ``2.13``; other forms stay unchanged."""
    match = re.match(r"\d+\.\d+", version)
    return match[0] if match else version
