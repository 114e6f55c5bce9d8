"""A model hub on this machine: what huggingface_hub asks of one, for small files."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlparse


class Hub:
    """Its repositories: name -> path -> content; and what it was told."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.messages: list[str] = []
        self.tokens: set[str] = set()
        self.cards: list[str] = []
        self.size: int | None = None  # that it claims of every file
        self.url = ""

    @property
    def commit(self) -> str:
        return hashlib.sha1(repr(sorted(self.messages)).encode()).hexdigest()


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def _say(self, status: int, body: bytes = b"", length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body) if length is None else length), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, value: object) -> None:
        self._say(200, json.dumps(value).encode(), Content_Type="application/json")

    def _missing(self, kind: str) -> None:
        self._say(404, b"{}", X_Error_Code=kind, X_Error_Message=kind)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.hub.tokens.add(self.headers.get("Authorization", ""))
        words = urlparse(self.path).path.strip("/").split("/")
        if words == ["api", "repos", "create"]:
            told = json.loads(body)
            name = f"{told['organization']}/{told['name']}" if told.get("organization") else told["name"]
            self.hub.repos.setdefault(name, {})
            self.hub.private[name] = told.get("private") is True or told.get("visibility") == "private"
            self._json({"url": f"{self.hub.url}/{name}"})
        elif words == ["api", "validate-yaml"]:
            self.hub.cards.append(json.loads(body)["content"])
            self._json({"errors": [], "warnings": []})
        elif words[-2] == "preupload":
            files = json.loads(body)["files"]
            self._json({"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]})
        elif words[-2] == "commit":
            name = "/".join(words[2:4])
            for line in body.splitlines():
                told = json.loads(line)
                if told["key"] == "header":
                    self.hub.messages.append(told["value"]["summary"])
                else:
                    self.hub.repos[name][told["value"]["path"]] = base64.b64decode(told["value"]["content"])
            self._json({"commitUrl": f"{self.hub.url}/{name}/commit/{self.hub.commit}", "commitOid": self.hub.commit})
        else:
            self._missing("NotHere")

    def do_GET(self) -> None:
        words = urlparse(self.path).path.strip("/").split("/")
        name = "/".join(words[2:4] if words[0] == "api" else words[:2])
        if name not in self.hub.repos:
            return self._missing("RepoNotFound")
        if words[3 if words[0] != "api" else -1] not in ("main", self.hub.commit, name.split("/")[1]):
            return self._missing("RevisionNotFound")
        content = self.hub.repos[name].get("/".join(words[4:]))
        if words[0] == "api":
            return self._json({"id": name, "sha": self.hub.commit, "siblings": []})
        if content is None:
            return self._missing("EntryNotFound")
        told = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X_Repo_Commit": self.hub.commit}
        size = self.hub.size if self.command == "HEAD" else None
        return self._say(200, content, size, **told)

    do_HEAD = do_GET  # noqa: N815


@contextmanager
def hub() -> Iterator[Hub]:
    made = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": made}))
    server.daemon_threads = True
    made.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
