"""A page that shows a recording in Rerun's viewer: read-only, on one port, for those who know its token.

Rerun's own servers listen on every interface, on two ports, and take what anybody sends. Here its viewer and the
recording are plain files, and the recording may still be growing: its answer then lasts until the flight ends.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import secrets
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from deploy.trust.interpreter import python

VIEWER = {
    "index.html": "text/html; charset=utf-8",
    "re_viewer.js": "text/javascript",
    "re_viewer_bg.wasm": "application/wasm",
    "sw.js": "text/javascript",
    "favicon.ico": "image/x-icon",
}
RECORDING = "flight.rrd"
LOOPBACK = "127.0.0.1"
START = 30.0  # s in which Rerun must have handed out its viewer
AGAIN = 0.1  # s after which a growing recording is looked at again
GUESTS = 32  # connections at a time
PATIENCE = 20.0  # s that a guest may neither send nor take anything
NEAR_ONLY = (  # nothing is fetched from, or sent to, anybody else: not the fonts, and not the token in the address
    ("Content-Security-Policy", "default-src 'self' 'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval' data: blob:"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Cache-Control", "no-store"),
)


def free_port() -> int:
    """Of the loopback."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def viewer() -> dict[str, bytes]:
    """The files of Rerun's viewer, by name: its own server has them, which runs for a moment on the loopback only."""
    page, data = free_port(), free_port()
    ports = ["--web-viewer-port", str(page), "--port", str(data)]
    server = subprocess.Popen(
        [*python(), "-m", "rerun", "--serve-web", "--bind", LOOPBACK, *ports],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    until = time.monotonic() + START
    try:
        while server.poll() is None and time.monotonic() < until:
            with contextlib.suppress(OSError):
                return {name: _fetched(f"http://{LOOPBACK}:{page}/{name}") for name in VIEWER}
            time.sleep(0.1)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    raise ValueError("web=true: Rerun does not hand out its viewer; out=FILE.rrd writes a file for it")


def window() -> str:
    """Open Rerun's own window; the address, on the loopback, where it takes a recording."""
    port = free_port()
    subprocess.Popen(
        [*python(), "-m", "rerun", "--bind", LOOPBACK, "--port", str(port), "--expect-data-soon"],
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # it stays when the watching ends
    )
    until = time.monotonic() + START
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), 1.0):
            return f"rerun+http://{LOOPBACK}:{port}/proxy"
        time.sleep(0.1)
    raise ValueError("the window of Rerun does not open; web=true shows the flight in a browser")


def _fetched(address: str) -> bytes:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address, timeout=START) as answer:
        content: bytes = answer.read()
        return content


class _Server(ThreadingHTTPServer):
    """So many guests at a time, whoever they are."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._free = threading.Semaphore(GUESTS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A guest that went away is no trouble of ours."""


class Page:
    """Serves the viewer and a recording's file until it is closed."""

    def __init__(self, host: str, port: int, recording: Path) -> None:
        """Raises ValueError when the address cannot be had."""
        self.token = secrets.token_urlsafe(16)
        self.finished = threading.Event()  # nothing more will be written
        page = self

        class Handler(_Handler):
            """Of this page."""

            shown = page

        try:
            self._server = _Server((host, port), Handler)
        except OSError as error:
            raise ValueError(f"{host} port {port}: {error.strerror}; choose others with host=... port=...") from None
        try:
            self.recording, self.files = recording, viewer()
        except BaseException:
            self._server.server_close()
            raise
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def address(self, host: str) -> str:
        """What to open in a browser."""
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{self._server.server_address[1]}/{self.token}/"

    def close(self) -> None:
        """No longer serve."""
        self.finished.set()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    shown: Page
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "sim2metal", ""
    timeout = PATIENCE

    def do_GET(self) -> None:
        page = self.shown
        token, _, name = urlsplit(self.path).path.removeprefix("/").partition("/")
        self.close_connection = True
        if not hmac.compare_digest(token.encode(), page.token.encode()) or name not in ("", RECORDING, *page.files):
            self._answer(404, "text/plain", b"not here\n")
        else:
            self._show(name)

    def _show(self, name: str) -> None:
        if name == RECORDING:
            self._stream()
        elif name or "url=" in urlsplit(self.path).query:
            name = name or "index.html"
            self._answer(200, VIEWER[name], self.shown.files[name])
        else:  # the viewer wants a whole address, and only the browser knows under which name it found this one
            host = self.headers.get("Host", "")
            if not re.fullmatch(r"[A-Za-z0-9.\-]{1,253}(:\d{1,5})?|\[[0-9a-fA-F:]{2,45}\](:\d{1,5})?", host):
                self._answer(400, "text/plain", b"which host?\n")
                return
            data = quote(f"http://{host}/{self.shown.token}/{RECORDING}", safe="")
            self._answer(302, "text/plain", b"", ("Location", f"/{self.shown.token}/?url={data}"))

    def _headers(self, status: int, kind: str, *more: tuple[str, str]) -> None:
        self.send_response(status)
        for key, value in (("Content-Type", kind), ("Connection", "close"), *NEAR_ONLY, *more):
            self.send_header(key, value)
        self.end_headers()

    def _answer(self, status: int, kind: str, content: bytes, *more: tuple[str, str]) -> None:
        self._headers(status, kind, ("Content-Length", str(len(content))), *more)
        self.wfile.write(content)

    def _stream(self) -> None:
        """The recording as it grows."""
        with self.shown.recording.open("rb") as file:
            self._headers(200, "application/octet-stream", ("Transfer-Encoding", "chunked"))
            while True:
                last = self.shown.finished.is_set()  # asked before reading: what follows is all that there will be
                while piece := file.read(1 << 18):
                    self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                if last:
                    break
                self.shown.finished.wait(AGAIN)
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        """Who looks is nobody's business, and a line that a guest wrote none for a terminal."""
