"""Perfetto's trace processor, as its page runs it: WebAssembly in a worker, which is asked by protocol buffers."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

APPEND, FINISH, QUERY = 1, 2, 3  # TraceProcessorRpc.TraceProcessorMethod
CHUNK = 2**20  # bytes of a trace in a message
BEGIN = """() => {
  const worker = new Worker("engine_bundle.js"), channel = new MessageChannel();
  window.replies = []; window.errors = [];
  worker.onerror = (event) => window.errors.push(event.message);
  channel.port1.onmessage = (event) => {
    let text = "";
    for (const byte of event.data) text += String.fromCharCode(byte);
    window.replies.push(btoa(text));
  };
  worker.postMessage({ enginePort: channel.port2 }, [channel.port2]);
  window.engine = channel.port1;
}"""
SEND = "(text) => window.engine.postMessage(Uint8Array.from(atob(text), (one) => one.charCodeAt(0)))"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serves a folder to this machine; gives its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


class TraceProcessor:
    """A trace in Perfetto's trace processor.

    ``page`` is one of playwright, at an address that has Perfetto's ``engine_bundle.js`` and its WebAssembly.
    """

    def __init__(self, page: Any, trace: bytes) -> None:
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory

        self._stream: Any = ProtoFactory(PlatformDelegate()).TraceProcessorRpcStream
        self._page, self._number = page, 0
        page.evaluate(BEGIN)
        for begin in range(0, len(trace), CHUNK):
            for reply in self._ask(APPEND, append_trace_data=trace[begin : begin + CHUNK]):
                assert not reply.append_result.error, reply.append_result.error
        self._ask(FINISH)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows that a query gives."""
        replies = [reply.query_result for reply in self._ask(QUERY, sql=sql)]
        assert not any(reply.error for reply in replies), [reply.error for reply in replies]
        width = len(replies[0].column_names)
        cells = [cell for reply in replies for batch in reply.batch for cell in _cells(batch)]
        return [tuple(cells[i : i + width]) for i in range(0, len(cells), width)]

    def _ask(self, method: int, sql: str = "", **fields: Any) -> Sequence[Any]:
        stream = self._stream()
        self._number += 1
        message = stream.msg.add(seq=self._number, request=method, **fields)
        if sql:
            message.query_args.sql_query = sql
        self._page.evaluate("window.replies.length = 0")
        self._page.evaluate(SEND, base64.b64encode(stream.SerializeToString()).decode())
        self._page.wait_for_function("window.replies.length || window.errors.length")
        assert self._page.evaluate("window.errors") == []
        found = []
        for reply in self._page.evaluate("window.replies"):
            answer = self._stream()
            answer.ParseFromString(base64.b64decode(reply))
            found += answer.msg
        return found


def _cells(batch: Any) -> Iterator[Any]:
    """The values of a batch: each cell tells the list that has its value."""
    texts = iter(batch.string_cells.split("\0"))
    kinds = {2: iter(batch.varint_cells), 3: iter(batch.float64_cells), 4: texts}
    for kind in batch.cells:
        yield next(kinds[kind]) if kind in kinds else None
