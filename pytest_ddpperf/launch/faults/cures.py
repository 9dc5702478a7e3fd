"""Exceptions of Python and torch in training code that runs on ranks, with advice on how to avoid each."""

from __future__ import annotations

import re

_NO_TERMINAL = "a rank has no terminal: call print(), whose output the test's report shows"
_DEVICE = "make the tensor on the rank's device (ctx.device; inputs.device in a model; GPU LOCAL_RANK in a script)"
_CPU = (
    "this rank computes on the CPU: use ctx.device, and in a script check torch.cuda.is_available() before "
    "this call and before choosing the device cuda"
)
_MODULE = (
    "neither pytest nor the ranks find the module: install the module (your project by pip install -e .), or set "
    "pythonpath in pytest's ini file"
)
_DTYPES = "model and batch have different dtypes: cast one of them, for example with inputs.float()"
_IMPORTABLE = (
    "a spawned process imports its arguments by name: move the function or class to a separate module, or give "
    "the DataLoader multiprocessing_context='fork'"
)
_FORKED = (
    "CUDA was used before this process was forked: if a module uses CUDA when it is imported, give "
    "--ddpperf-preload=none; if workers of a DataLoader use CUDA, give it multiprocessing_context='spawn'"
)
_SHARED_MEMORY = (
    "NCCL has no shared memory: start the container with --shm-size=1g or more (on Kubernetes an emptyDir of medium "
    "Memory on /dev/shm), or remove what fills /dev/shm"
)
_ONE_GPU_EACH = (
    "NCCL needs a GPU for each rank: give fewer ranks or backend=gloo, and use the GPU of ctx.device or LOCAL_RANK"
)
_NCCL_VERSIONS = (
    "ranks load different versions of NCCL, or one that does not fit the driver: start without LD_LIBRARY_PATH and "
    "LD_PRELOAD, with one package of NCCL"
)
_NCCL_DEBUG = "read the cause in the NCCL WARN lines of the rank's output; NCCL_DEBUG=INFO prints more"
_NCCL_MEMORY = "NCCL's buffers are not part of torch's allocator: use a smaller batch, or end what else uses the GPU"
_BLOCKING = (
    "a kernel failed, most often by an index out of range, and torch noticed it later: CUDA_LAUNCH_BLOCKING=1 makes "
    "the traceback name the line"
)
_BUSY = (
    "another process has the GPU: nvidia-smi shows which; in compute mode exclusive (nvidia-smi -q -d COMPUTE) two "
    "ranks cannot share a GPU"
)
_FULL = "other processes hold the GPU's memory: nvidia-smi shows which"
ROOM = (
    "a smaller batch, accumulation of gradients, activation checkpointing, bf16 or sharding (fsdp2, zero1) takes less: "
    "a Workload has settings for them, a script needs them in its code"
)
_KERNELS = "this build of torch has no kernels for the GPU: install one for its compute capability"
_BROKEN_GPU = "the GPU's memory has failed: nvidia-smi -q -d ECC shows more; reset or replace it"
_NCCL_ERROR = "DistBackendError|RuntimeError"

# Matches messages of errors that mean "out of memory": of the host, of a CUDA context or library, of NCCL's buffers.
WANT_OF_MEMORY = re.compile(
    r"DefaultCPUAllocator: can't allocate memory|(?:CUDA|HIP) error: out of memory|CU(?:BLAS|DNN)_STATUS_ALLOC_FAILED"
    r"|(?:Cuda|HIP) failure:? (?:\d+ )?'out of memory'|Cuda failure 2\b|Failed to CUDA (?:host )?[cm]?alloc"
)

# Messages of torch if there is no GPU.
_WITHOUT_GPU = (
    "not compiled with CUDA|no attribute '_cuda_|without ATen_cuda|No CUDA GPUs are available|Found no NVIDIA driver"
    "|access accelerator device|device string: None|NCCL built in|NCCL.* no GPUs found|no attribute 'elapsed_time'"
)

# Names of exceptions, a pattern of their message, and the advice.
_CURES = tuple(
    (kind, re.compile(message), cure)
    for kind, message, cure in (
        ("BdbQuit", "", f"{_NO_TERMINAL}, or set PYTHONBREAKPOINT to a debugger that listens on a port"),
        ("EOFError", "reading a line", _NO_TERMINAL),
        ("StopIteration", "", "an iterator ended before the launch: repeat it, as itertools.cycle does"),
        ("SystemExit", r"^sys\.exit\(0?\)", "an exit ends the rank: return from the function instead"),
        (
            "ValueError",
            "empty parameter list",
            "an iterator of parameters ends after one pass: begin with params = list(parameters)",
        ),
        ("RuntimeError", "have the same dtype|expected scalar type|Input type .* should be the same", _DTYPES),
        ("TypeError", r"not numpy\.ndarray", "a model takes tensors: convert each array with torch.from_numpy(array)"),
        ("PicklingError|AttributeError|TypeError", "[Cc]an(?:'|no)t (?:pickle|get local object)", _IMPORTABLE),
        ("ModuleNotFoundError", "", _MODULE),
        ("RuntimeError", "Cannot re-initialize CUDA in forked subprocess", _FORKED),
        (
            "RuntimeError|AcceleratorError",
            "CUDA error: (?:device-side assert|an illegal memory access|misaligned address|unspecified launch)",
            _BLOCKING,
        ),
        ("RuntimeError|AcceleratorError", "CUDA error: out of memory", _FULL),
        ("RuntimeError|AcceleratorError", "no kernel image is available", _KERNELS),
        ("RuntimeError|AcceleratorError", "uncorrectable ECC error", _BROKEN_GPU),
        (_NCCL_ERROR, "No space left on device|shared memory segment|/dev/shm/nccl", _SHARED_MEMORY),
        (_NCCL_ERROR, "Duplicate GPU detected", _ONE_GPU_EACH),
        (_NCCL_ERROR, "Mismatched NCCL version|CUDA driver version is insufficient", _NCCL_VERSIONS),
        ("DistBackendError", "out of memory|Failed to CUDA", _NCCL_MEMORY),
        ("DistBackendError", "unhandled (?:system|cuda) error|internal error|invalid usage", _NCCL_DEBUG),
        ("AcceleratorError|RuntimeError", "busy or unavailable", _BUSY),
        ("AssertionError|AttributeError|RuntimeError|TypeError|ValueError", _WITHOUT_GPU, _CPU),
        (
            "RuntimeError",
            "could not create a primitive",
            "the CPU cannot compute this layer in half precision: call autocast with enabled=torch.cuda.is_available()",
        ),
        ("ValueError", "SyncBatchNorm (?:expected|layers only)", "this rank computes on the CPU: use BatchNorm there"),
        ("ValueError", "but got device_ids", "this rank computes on the CPU: pass device_ids on GPUs only"),
        ("KeyError", "SLURM_|OMPI_|PMI_", "ranks have torchrun's variables instead: RANK, LOCAL_RANK, WORLD_SIZE"),
        ("FileNotFoundError", "'[^/]", "ranks run where pytest was started: begin paths with Path(__file__).parent"),
        (
            "TypeError",
            "must be Tensor, not ",
            "the model's output is not a tensor: select the tensor in loss or in forward",
        ),
        ("RuntimeError", "use the CLI: `fabric run", "give env={'LT_CLI_USED': 1, 'LT_DEVICES': ranks} to the call"),
        ("RuntimeError", "same device|expected device", _DEVICE),
        ("NotImplementedError", "meta tensor", f"a tensor on the meta device has no values: {_DEVICE}"),
        (
            "RuntimeError",
            "backward through the graph a second time",
            "two backward passes use one graph, such as an earlier hidden state's graph: detach() that tensor",
        ),
        (
            "RuntimeError",
            "does not require grad",
            "the loss does not depend on the parameters: remove detach(), no_grad() and argmax() on the way to it",
        ),
    )
)


def cure_of(kind: str, message: str) -> str:
    """Returns advice on an exception, given the name of its class and its message; empty if there is none."""
    name = kind.rpartition(".")[2]
    found = (cure for kinds, said, cure in _CURES if name in kinds.split("|") and said.search(message))
    return next(found, "")
