"""A server with the routes of the Hugging Face Hub for the files of repositories.

Small files come from the Hub itself. It redirects to another server for large ones, with a
signature that is valid for a number of requests.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_a_token_never_in_a_message"
LARGE = 10_000  # bytes


@dataclass
class Repository:
    """The files of each commit, the commit of each revision, and who may read them."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    revisions: dict[str, str] = field(default_factory=dict)
    private: bool = False
    gated: bool = False

    def commit(self, files: dict[str, bytes], *revisions: str) -> str:
        """Make `files` the commit of these revisions, by default of main. Return its name."""
        text = repr(sorted((name, hashlib.sha1(data).hexdigest()) for name, data in files.items()))
        name = hashlib.sha1(text.encode()).hexdigest()
        self.commits[name] = files
        self.revisions.update(dict.fromkeys(revisions or ("main",), name))
        return name


@dataclass
class Request:
    """A request to the Hub, or to the other server (`elsewhere`)."""

    path: str
    headers: dict[str, str]
    elsewhere: bool = False


@dataclass
class Hub:
    repositories: dict[str, Repository] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    valid_for: int = 1_000_000  # requests
    damaged: tuple[bytes, bytes] = (b"", b"")  # what arrives in place of some bytes
    url: str = ""
    elsewhere: str = ""  # the URL of the other server
    objects: dict[str, bytes] = field(default_factory=dict)
    uses: dict[str, int] = field(default_factory=dict)  # of signatures
    lock: threading.Lock = field(default_factory=threading.Lock)

    def options(self, token: str = "") -> dict[str, str]:
        options = {"hf_endpoint": self.url, "force_http": "true"}
        return {**options, "hf_token": token} if token else options


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub
    is_elsewhere: bool

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        with self.hub.lock:
            self.hub.requests.append(Request(self.path, headers, self.is_elsewhere))
            (self._object if self.is_elsewhere else self._file)()

    def _file(self) -> None:
        path = urlsplit(self.path).path
        match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if not match:
            return self._refuse(404, "RepoNotFound", "no such route")
        name, revision, file = match[1], unquote(match[2]), unquote(match[3])
        if name in self.hub.renamed:
            moved = self.path.replace(name, self.hub.renamed[name], 1)
            return self._answer(307, b"", {"Location": moved})
        repository = self.hub.repositories.get(name)
        known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if repository is None or (repository.private and not known):
            return self._refuse(401, "RepoNotFound", "Repository not found")
        if repository.gated and not known:
            return self._refuse(401, "GatedRepo", f"Access to model {name} is restricted")
        commit = repository.revisions.get(revision, revision)
        if commit not in repository.commits:
            return self._refuse(404, "RevisionNotFound", "Invalid rev id")
        data = repository.commits[commit].get(file)
        if data is None:
            return self._refuse(404, "EntryNotFound", "Entry not found")
        digest = hashlib.sha256(data).hexdigest()
        common = {"X-Repo-Commit": commit}
        if len(data) < LARGE:
            git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            return self._send(data, {**common, "ETag": f'"{git}"'})
        self.hub.objects[digest] = data
        signature = f"{len(self.hub.uses)}"
        self.hub.uses[signature] = 0
        target = f"{self.hub.elsewhere}/{digest}?Signature=secret-{signature}"
        linked = {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(data))}
        return self._answer(302, b"", {**common, **linked, "Location": target})

    def _object(self) -> None:
        url = urlsplit(self.path)
        signature = parse_qs(url.query)["Signature"][0].removeprefix("secret-")
        self.hub.uses[signature] += 1
        if self.hub.uses[signature] > self.hub.valid_for:
            return self._refuse(403, "", "")
        digest = url.path[1:]
        return self._send(self.hub.objects[digest], {"ETag": f'"{digest}"'})

    def _send(self, data: bytes, headers: dict[str, str]) -> None:
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not match:
            return self._answer(200, data, headers)
        data = data.replace(*self.hub.damaged) if self.hub.damaged[0] else data
        begin = int(match[1])
        end = min(int(match[2] or len(data)) + 1, len(data))
        if begin >= len(data):
            return self._answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        headers = {**headers, "Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"}
        return self._answer(206, data[begin:end], headers)

    def _refuse(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": message} if code else {}
        self._answer(status, message.encode(), headers)

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def hub_server() -> Iterator[Hub]:
    """Start both servers."""
    hub = Hub()
    servers = []
    for elsewhere in (False, True):
        handler = type("Handler", (_Handler,), {"hub": hub, "is_elsewhere": elsewhere})
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
    hub.url, hub.elsewhere = (f"http://127.0.0.1:{each.server_port}" for each in servers)
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
