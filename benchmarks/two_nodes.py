"""Two nodes without two machines: network namespaces with a link between them, and torchrun in both.

    python benchmarks/two_nodes.py perf_tests --ranks 4

runs a suite. It needs root (or CAP_NET_ADMIN and CAP_SYS_ADMIN) and ``ip`` of iproute2.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

ADDRESSES = ("10.213.7.1", "10.213.7.2")
_PORT = 29431
_ROOT = Path(__file__).parents[1]


class TwoNodes:
    """Two network namespaces and a link between them: a pair of virtual interfaces."""

    def __init__(self) -> None:
        name = f"ddp{os.getpid()}"
        self.names = (f"{name}a", f"{name}b")
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        try:
            for name in self.names:
                _run("ip", "netns", "add", name)
                self._open.callback(_run, "ip", "netns", "del", name)
            first, second = self.names
            peer = ("type", "veth", "peer", "name", second, "netns", second)
            _run("ip", "link", "add", first, "netns", first, *peer)
            for name, address in zip(self.names, ADDRESSES, strict=True):
                _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", name)
                for interface in ("lo", name):
                    _run("ip", "-n", name, "link", "set", interface, "up")
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @contextlib.contextmanager
    def started(
        self,
        arguments: Sequence[str],
        folder: Path,
        *,
        processes: int = 1,
        environ: dict[str, str] | None = None,
        second: Sequence[str] = (),  # a command that runs torchrun on the second node
    ) -> Iterator[list[subprocess.Popen[bytes]]]:
        """Within, torchrun runs pytest on both nodes; it is killed at the end."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        with contextlib.ExitStack() as opened:
            tasks = []
            for node, (name, address) in enumerate(zip(self.names, ADDRESSES, strict=True)):
                module = "torch.distributed.run"
                torchrun = [sys.executable, "-m", module, "--nnodes=2", f"--nproc-per-node={processes}"]
                meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint={ADDRESSES[0]}:{_PORT}", "--rdzv-id=two-nodes"]
                before = second if node else ()
                own = [f"--rdzv-conf=is_host={int(not node)}", f"--local-addr={address}"]
                task = subprocess.Popen(
                    ["ip", "netns", "exec", name, *before, *torchrun, *meeting, *own, "-m", "pytest", *arguments],
                    cwd=folder,
                    env={**clean, **(environ or {})},
                    stdout=opened.enter_context(self.output(folder, node).open("wb")),
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                opened.callback(_end, task)
                tasks.append(task)
            yield tasks

    @staticmethod
    def output(folder: Path, node: int) -> Path:
        """The file that has what torchrun of a node prints."""
        return folder / f"node{node}.txt"

    def run(
        self, arguments: Sequence[str], folder: Path, *, processes: int = 1, seconds: float
    ) -> list[tuple[int, str]]:
        """Run pytest under torchrun on both nodes until it ends; returns the status of each, and what it printed."""
        with self.started(arguments, folder, processes=processes) as tasks:
            statuses = [task.wait(seconds) for task in tasks]
        return [(status, self.output(folder, node).read_text()) for node, status in enumerate(statuses)]


def why_not() -> str:
    """Why this machine has no namespaces for two nodes; empty if it has."""
    if shutil.which("ip") is None:
        return "iproute2 is not installed"
    try:
        with TwoNodes():
            return ""
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not allowed here: {error.stderr.strip()}"


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def _end(task: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(task.pid, signal.SIGTERM if task.poll() is None else signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        task.wait(10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(task.pid, signal.SIGKILL)
    task.wait()


def suite(path: str, ranks: int, arguments: Sequence[str]) -> bool:
    """Run a suite on two nodes; whether both end with status 0."""
    with TwoNodes() as nodes, tempfile.TemporaryDirectory() as folder:
        Path(folder, "pytest.ini").write_text("")
        given = [str(Path(path).resolve()), "--rootdir", str(_ROOT), f"--ddpperf-world-size={ranks}", *arguments]
        ended = nodes.run(["-p", "no:cacheprovider", *given], Path(folder), seconds=3600)
    for node, (status, text) in enumerate(ended):
        print(f"node {node} ended with status {status}\n{text}")
    return all(status == 0 for status, _ in ended)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", help="a file or folder of tests; other arguments are pytest's")
    parser.add_argument("--ranks", type=int, default=4)
    options, others = parser.parse_known_args()
    reason = why_not()
    if reason:
        sys.exit(reason)
    sys.exit(not suite(options.suite, options.ranks, others))


if __name__ == "__main__":
    main()
