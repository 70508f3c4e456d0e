"""HTTP servers of tests, which say what a test has them say."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer

HOST = "127.0.0.1"


class Quiet(BaseHTTPRequestHandler):
    """Answers as its `do_` methods do, and logs nothing."""

    def body(self) -> bytes:
        """The body of the request."""
        return self.rfile.read(int(self.headers["Content-Length"]))

    def answer(self, content: object = b"", status: int = 200) -> None:
        """Answer with bytes, or with anything else as JSON."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def in_thread(server: BaseServer) -> Iterator[None]:
    """A server that serves until the block ends."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """The port of a server in threads of its own, which ends with the block."""
    server = ThreadingHTTPServer((HOST, 0), handler)
    with in_thread(server):
        yield server.server_port
