"""A served object store that speaks as much of the S3 protocol as a copy needs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from http_server import in_thread


class _Answers(BaseHTTPRequestHandler):
    server: "Store"

    def do_GET(self) -> None:
        """Answer a listing of `bucket`, or an object of it."""
        asked = urlsplit(self.path)
        bucket, _, key = unquote(asked.path).lstrip("/").partition("/")
        if bucket != "bucket" or "Authorization" not in self.headers:
            self._answer(HTTPStatus.FORBIDDEN, b"<Error><Code>AccessDenied</Code></Error>")
        elif not key:
            prefix = parse_qs(asked.query).get("prefix", [""])[0]
            self._answer(HTTPStatus.OK, _listing(self.server.objects, prefix).encode())
        elif key in self.server.broken:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Length", str(len(self.server.objects[key])))
            self.end_headers()  # and no body
        else:
            self._answer(HTTPStatus.OK, self.server.objects[key])

    def _answer(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Mon, 23 Nov 2026 00:00:00 GMT")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Write no log."""


class Store(ThreadingHTTPServer):
    """A store with one bucket, `bucket`; the `broken` objects end before their content."""

    daemon_threads = True

    def __init__(self, objects: Mapping[str, bytes], broken: frozenset[str]) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.objects, self.broken = objects, broken


def _listing(objects: Mapping[str, bytes], prefix: str) -> str:
    contents = "".join(
        f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-23T00:00:00.000Z</LastModified>"
        f"<ETag>e</ETag><Size>{len(content)}</Size></Contents>"
        for key, content in objects.items()
        if key.startswith(prefix)
    )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>"


@contextmanager
def served(objects: Mapping[str, bytes], *broken: str) -> Iterator[tuple[Store, str]]:
    """Serve objects by their keys; give the store and its address."""
    store = Store(objects, frozenset(broken))
    with in_thread(store):
        yield store, f"http://127.0.0.1:{store.server_port}"
