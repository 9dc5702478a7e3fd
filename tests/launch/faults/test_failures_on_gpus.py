"""What NCCL and CUDA say when they fail, as people have reported it, and what is made of it."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from pytest_ddpperf.errors import RankFailed
from pytest_ddpperf.launch.faults.exceptions import failed_report
from pytest_ddpperf.launch.faults.failures import RankEnd, failure
from pytest_ddpperf.launch.messages import Failed
from pytest_ddpperf.launch.streams import RankOutput


class DistBackendError(RuntimeError):
    """Named as torch's, which the CPU's torch has too; ours can be made anywhere."""


def nccl_error(kind: str, code: str, last: str) -> str:
    return (
        f"NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, {kind} (run with NCCL_DEBUG=INFO for "
        f"details), NCCL version 2.28.9\n{code}\nLast error:\n{last}"
    )


USAGE = ("invalid usage", "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.")
CUDA = ("unhandled cuda error", "ncclUnhandledCudaError: Call to CUDA function failed.")
NO_SPACE = nccl_error(
    "unhandled system error",
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. ",
    "Error while creating shared memory segment /dev/shm/nccl-1YsMbG (size 7340384)",
)
DUPLICATE = nccl_error(*USAGE, "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 2000")
VERSIONS = nccl_error(*USAGE, "Mismatched NCCL version detected : rank 1 version 22809 rank 0 version 22602")
FULL = nccl_error(*CUDA, "Cuda failure 2 'out of memory'")
CALLOC = nccl_error(*CUDA, "Failed to CUDA calloc 6291456 bytes")
FABRIC = nccl_error(*CUDA, "Cuda failure 217 'peer access is not supported between these two devices'")
REMOTE = nccl_error(
    "remote process exited or there was a network error",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    "socketPollConnect: connect returned Connection refused",
)
# NCCL_DEBUG=WARN, as it comes on stdout, or on stderr where somebody sends it there.
WARNED = """
host:202016:202235 [0] misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-WU88OE to 9637892 bytes, \
error: No space left on device (28)
"""
OUT_OF_MEMORY = "host:3063028:3066152 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'\n"
ASSERTED = """/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1422: indexSelectSmallIndex: block: [0,0,0], \
thread: [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed.
"""


def aborted_by(error: str, time: str = "17:28:57.137971692") -> str:
    """What the watchdog of NCCL leaves on stderr."""
    said = f"[PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread terminated with exception: {error}"
    return (
        f"[rank1]:[E830 {time} ProcessGroupNCCL.cpp:2068] {said}\n"
        "CUDA kernel errors might be asynchronously reported at some other API call.\n\n"
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        f"  what():  {said}\nFatal Python error: Aborted\n\n"
        'Thread 0x01 (most recent call first):\n  File "/user/train.py", line 6 in step\n'
    )


def raised(rank: int, text: str, kind: str = "torch.distributed.DistBackendError", stderr: str = "") -> RankEnd:
    report = Failed(stage="run", kind="raised", type=kind, text=text, traceback=f"Traceback of {rank}", stamp=rank)
    return RankEnd(rank=rank, report=report, output=RankOutput("", stderr))


def aborted(rank: int, stderr: str, stamp: int | None = None) -> RankEnd:
    return RankEnd(rank=rank, status=-signal.SIGABRT, stamp=stamp or rank, output=RankOutput("", stderr))


def told(*ends: RankEnd) -> RankFailed:
    error = failure(ends, len(ends))
    assert isinstance(error, RankFailed)
    return error


def heading(*ends: RankEnd) -> str:
    return str(told(*ends)).partition("\n")[0]


@pytest.mark.parametrize(
    ("text", "last", "cure"),
    [
        (NO_SPACE, "Error while creating shared memory segment", "NCCL has no shared memory: start the container with"),
        (DUPLICATE, "Duplicate GPU detected", "NCCL needs a GPU for each rank"),
        (VERSIONS, "Mismatched NCCL version", "ranks load different versions of NCCL"),
        (FULL, "Cuda failure 2 'out of memory'", "NCCL's buffers are not part of torch's allocator"),
        (FABRIC, "Cuda failure 217", "read the cause in the NCCL WARN lines of the rank's output"),
    ],
)
def test_an_error_of_nccl_is_reported_in_its_words_with_the_cure(text: str, last: str, cure: str) -> None:
    first = heading(raised(0, text))
    assert first.startswith("rank 0 of 1 raised torch.distributed.DistBackendError: NCCL error in: ")
    assert f"NCCL version 2.28.9: {last}" in first
    assert f"; {cure}" in first


def test_the_cause_that_nccl_has_only_printed_counts_too() -> None:
    silent = NO_SPACE.partition("\nLast error:")[0]
    assert "NCCL_DEBUG=INFO prints more" in heading(raised(0, silent))
    assert "--shm-size=1g" in heading(raised(0, silent, stderr=WARNED))
    on_stdout = raised(0, silent)
    assert "--shm-size=1g" in heading(replace(on_stdout, output=replace(on_stdout.output, stdout=WARNED)))
    assert "--shm-size" not in heading(raised(0, "no luck", "RuntimeError", stderr=WARNED))
    assert told(raised(0, silent, stderr=OUT_OF_MEMORY)).out_of_memory


@pytest.mark.parametrize(
    ("text", "wanting"),
    [
        (FULL, True),
        (CALLOC, True),
        ("NCCL error: unhandled cuda error\nLast error:\nCuda failure 'out of memory'", True),
        ("CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        (FABRIC, False),
        (NO_SPACE, False),
        (DUPLICATE, False),
        ("CUDA error: an illegal memory access was encountered", False),
    ],
)
def test_out_of_memory_errors_of_nccl_and_cuda_are_recognised_without_their_class(text: str, *, wanting: bool) -> None:
    assert (failed_report(DistBackendError(text), "join").kind == "memory") is wanting


def test_a_rank_whose_peer_is_gone_is_a_victim() -> None:
    """Whether it raises, or its watchdog aborts it; NCCL's last words may be of another call."""
    ends = raised(0, REMOTE), aborted(1, aborted_by(REMOTE.partition("\n")[0])), raised(2, "boom", "ValueError")
    error = told(*ends)
    assert error.rank == 2
    assert str(error).endswith("\n\nranks 0, 1: stopped (as a consequence: DistBackendError: remote process exited)")
    assert told(ends[1]).rank == 1  # where there is no other


ASSERT, ACCESS = "CUDA error: device-side assert triggered", "CUDA error: an illegal memory access was encountered"
FORKED = "Cannot re-initialize CUDA in forked subprocess. To use CUDA with"


def test_an_abort_by_a_cuda_error_is_reported_as_that_error_with_the_failed_kernel() -> None:
    error = told(aborted(0, ASSERTED * 3 + aborted_by(ASSERT)))
    assert str(error).startswith(
        f"rank 0 of 1 was killed by SIGABRT: {ASSERT}; a kernel failed, most often by an index"
    )
    assert str(error).endswith(f'\n\n{ASSERTED}Fatal Python error: Aborted\n  File "/user/train.py", line 6 in step')


def test_an_abort_without_last_words_is_reported_as_the_cuda_error_on_stderr() -> None:
    stderr = f"RuntimeError: {ACCESS}\nFatal Python error: Aborted\n"
    assert heading(aborted(0, stderr)).startswith(f"rank 0 of 1 was killed by SIGABRT: {ACCESS}; ")


@pytest.mark.parametrize(
    ("guilty", "others"),
    [
        (ASSERTED + aborted_by(ASSERT), aborted_by("CUDA error: unspecified launch failure")),
        (aborted_by(ACCESS, "17:28:56.9"), aborted_by(ACCESS, "17:28:57.1")),  # by the log's clock
        (aborted_by(ACCESS), aborted_by(REMOTE.partition("\n")[0])),  # the others have lost their peer
    ],
)
def test_of_ranks_that_abort_the_first_cuda_error_is_to_blame(guilty: str, others: str) -> None:
    """The kernel sees aborts in any order."""
    assert told(aborted(0, others, stamp=1), aborted(1, guilty, stamp=9), aborted(2, others, stamp=2)).rank == 1


def test_an_abort_for_another_reason_keeps_its_place() -> None:
    stderr = "terminate called after throwing an instance of 'std::length_error'\n  what():  vector::reserve\n"
    assert told(aborted(0, aborted_by(ACCESS), stamp=2), aborted(1, stderr, stamp=1)).rank == 1


def test_an_abort_for_lack_of_memory_is_out_of_memory() -> None:
    assert told(aborted(0, aborted_by("CUDA error: out of memory"))).out_of_memory
    assert not told(aborted(0, aborted_by(ACCESS))).out_of_memory


@pytest.mark.parametrize(
    ("kind", "text", "cures"),
    [
        ("RuntimeError", f"{ASSERT}\nFor debugging", ["; a kernel failed, most often by an index out of range"]),
        ("torch.AcceleratorError", f"{ASSERT}\nFor debugging", ["; a kernel failed, most often by an index out of"]),
        ("RuntimeError", FORKED, ["--ddpperf-preload=none", "multiprocessing_context='spawn'"]),
    ],
)
def test_a_cuda_error_is_reported_with_the_settings_that_find_its_cause(kind: str, text: str, cures: list[str]) -> None:
    first = heading(raised(0, text, kind))
    assert all(cure in first for cure in cures)
