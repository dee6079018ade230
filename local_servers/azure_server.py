"""A server of Azure's blobs that refuses what Azure documents, with signatures by its SDK's code.

It keeps block blobs in memory. There is no other server of this kind that runs without an account.
"""

from __future__ import annotations

import base64
import binascii
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from azure.core.pipeline import PipelineContext, PipelineRequest
from azure.core.rest import HttpRequest
from azure.storage.blob import (
    BlobServiceClient,
    ContainerSasPermissions,
    generate_blob_sas,
    generate_container_sas,
)
from azure.storage.blob._shared import sign_string
from azure.storage.blob._shared.authentication import SharedKeyCredentialPolicy

ACCOUNT = "account1"
KEY = base64.b64encode(b"an account's key: never in a message").decode()
TOKEN = "a-bearer-token-never-in-a-message"
CONTAINER = "container"
MOST_BLOCKS = 50_000
LONGEST_BLOCK_ID = 64


@dataclass
class Blob:
    data: bytes | bytearray
    etag: str
    content_type: str
    blocks: dict[str, bytes] = field(default_factory=dict)  # that it was made of


@dataclass
class Recorded:
    """A request, with lower-case names of headers, and what its signature covers."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    signed: str
    status: int = 0


class Refusal(Exception):
    """A response with an error, as Azure words it."""

    def __init__(self, status: int, code: str, message: str = "No.") -> None:
        super().__init__(code)
        self.status, self.code, self.message = status, code, message


class _Policy(SharedKeyCredentialPolicy):
    """The SDK's own signatures; keeps the text that the last one covers."""

    text = ""

    def _add_authorization_header(self, request: Any, string_to_sign: str) -> None:
        self.text = string_to_sign


@dataclass
class Azure:
    """A running server with one account and one container."""

    port: int = 0
    account: str = ACCOUNT
    blobs: dict[str, Blob] = field(default_factory=dict)
    # By the name of a blob: its blocks that are in no list yet, by their identifiers.
    blocks: dict[str, dict[str, bytes]] = field(default_factory=dict)
    requests: list[Recorded] = field(default_factory=list)
    # Called with every request first; may raise a Refusal, or change what is stored.
    before: Callable[[Recorded], None] | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)
    changes: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def uri(self, name: str) -> str:
        return f"az://{self.account}/{CONTAINER}/{name}"

    def stored(self, name: str) -> bytes:
        return self.blobs[name].data

    def uploads(self) -> list[str]:
        """Return the names of blobs that have blocks in no list."""
        return [name for name, blocks in self.blocks.items() if blocks]

    def options(self, **more: str) -> dict[str, str]:
        """Return the options of tensorizer_ops to access the server, overridden by `more`."""
        return {"az_endpoint": self.url, "force_http": "true", "az_account_key": KEY} | more

    def environment(self) -> dict[str, str]:
        """Return environment variables for Azure's own tools to access the server."""
        return {
            "AZURE_STORAGE_CONNECTION_STRING": f"AccountName={ACCOUNT};AccountKey={KEY};"
            f"BlobEndpoint={self.url}/{ACCOUNT};"
        }

    def client(self, name: str, **more: Any) -> Any:
        """Return the SDK's client of a blob."""
        service: Any = BlobServiceClient(f"{self.url}/{self.account}", credential=KEY, **more)
        return service.get_blob_client(CONTAINER, name)

    def sas(self, permission: str = "racwd", hours: float = 1, blob: str = "") -> str:
        """Return a SAS token for the container, or for one blob."""
        expiry = datetime.now(timezone.utc) + timedelta(hours=hours)
        given: dict[str, Any] = {"account_key": KEY, "expiry": expiry}
        if blob:
            return generate_blob_sas(self.account, CONTAINER, blob, permission=permission, **given)
        return generate_container_sas(
            self.account,
            CONTAINER,
            permission=ContainerSasPermissions.from_string(permission),
            **given,
        )

    def put(self, name: str, data: bytes, content_type: str = "application/octet-stream") -> Blob:
        with self.lock:
            self.changes += 1
            blob = Blob(data, f'"0x8D{self.changes:013X}"', content_type)
            self.blobs[name] = blob
            self.blocks.pop(name, None)
            return blob


def _check_sas(azure: Azure, query: dict[str, str], recorded: Recorded, name: str) -> None:
    if query["sp"] == "" or datetime.now(timezone.utc) > datetime.fromisoformat(
        query["se"].replace("Z", "+00:00")
    ):
        raise Refusal(403, "AuthenticationFailed", f"Signature not valid: sig={query['sig']}")
    given = {"account_key": KEY, "permission": query["sp"], "expiry": query["se"]}
    if query["sr"] == "b":
        token = generate_blob_sas(azure.account, CONTAINER, name, **given)
    else:
        token = generate_container_sas(azure.account, CONTAINER, **given)
    if parse_qs(token)["sig"] != [query["sig"]]:
        raise Refusal(403, "AuthenticationFailed", f"Signature not valid: sig={query['sig']}")
    if not set({"GET": "r", "HEAD": "r", "PUT": "cw", "DELETE": "d"}[recorded.method]) & set(
        query["sp"]
    ):
        raise Refusal(403, "AuthorizationPermissionMismatch")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    azure: Azure

    def log_message(self, format: str, *args: object) -> None:
        pass

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:  # the client has left
            self.close_connection = True

    def _respond(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        policy = _Policy(ACCOUNT, KEY)
        headers = {name.lower(): value for name, value in self.headers.items()}
        url = f"{self.azure.url}{self.path}"
        request: Any = HttpRequest(self.command, url, headers=headers)
        policy.on_request(PipelineRequest(request, PipelineContext(None)))
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query, True).items()}
        recorded = Recorded(self.command, parts.path, query, headers, policy.text)
        with self.azure.lock:
            self.azure.requests.append(recorded)
        try:
            if self.azure.before:
                self.azure.before(recorded)
            with self.azure.lock:
                status, answered, content = self._act(recorded, body)
        except Refusal as refusal:
            text = (
                f'<?xml version="1.0" encoding="utf-8"?><Error><Code>{refusal.code}</Code>'
                f"<Message>{refusal.message}\nRequestId:1\nTime:now</Message></Error>"
            )
            status, content = refusal.status, text.encode()
            answered = {"x-ms-error-code": refusal.code, "Content-Type": "application/xml"}
            if status == 416:
                answered["Content-Range"] = f"bytes */{refusal.message}"
        recorded.status = status
        self.send_response(status)
        answered = {
            "Content-Length": str(len(content)),
            "x-ms-version": "2021-12-02",
            "x-ms-request-id": str(uuid.uuid4()),
        } | answered
        for name, value in answered.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_HEAD = do_PUT = do_DELETE = _respond

    def _act(self, recorded: Recorded, body: bytes) -> tuple[int, dict[str, str], bytes]:
        azure, headers, query = self.azure, recorded.headers, recorded.query
        match = re.fullmatch(r"/([^/]+)/([^/]+)/(.+)", recorded.path)
        if match is None or match[1] != azure.account:
            raise Refusal(400, "InvalidUri")
        name = unquote(match[3])
        authorization = headers.get("authorization", "")
        if authorization.startswith("SharedKey "):
            expected = f"SharedKey {ACCOUNT}:{sign_string(KEY, recorded.signed)}"
            if authorization != expected:
                message = f"The MAC signature found is {authorization}"
                raise Refusal(403, "AuthenticationFailed", message)
        elif authorization.startswith("Bearer "):
            if authorization != f"Bearer {TOKEN}":
                raise Refusal(401, "InvalidAuthenticationInfo", f"Not valid: {authorization}")
        elif "sig" in query:
            _check_sas(azure, query, recorded, name)
        else:
            raise Refusal(409, "PublicAccessNotPermitted")
        if "x-ms-version" not in headers:
            raise Refusal(400, "MissingRequiredHeader", "x-ms-version")
        if match[2] != CONTAINER:
            raise Refusal(404, "ContainerNotFound")
        if recorded.method == "PUT":
            if "content-length" not in headers:
                raise Refusal(411, "MissingContentLengthHeader")
            return 201, self._store(name, query.get("comp"), recorded, body), b""
        blob = azure.blobs.get(name)
        if blob is None:
            raise Refusal(404, "BlobNotFound", "The specified blob does not exist.")
        wanted = headers.get("if-match", blob.etag)
        if wanted not in ("*", blob.etag):
            raise Refusal(412, "ConditionNotMet")
        if recorded.method == "DELETE":
            del azure.blobs[name]
            return 202, {}, b""
        return self._read(blob, headers.get("x-ms-range") or headers.get("range"))

    def _store(
        self, name: str, comp: str | None, recorded: Recorded, body: bytes
    ) -> dict[str, str]:
        azure, headers = self.azure, recorded.headers
        waiting = azure.blocks.setdefault(name, {})
        if comp == "block":
            block = recorded.query["blockid"]
            try:
                size = len(base64.b64decode(block, validate=True))
            except binascii.Error:
                raise Refusal(400, "InvalidQueryParameterValue", "blockid") from None
            if size > LONGEST_BLOCK_ID or any(len(other) != len(block) for other in waiting):
                raise Refusal(400, "InvalidBlobOrBlock")
            if block not in waiting and len(waiting) >= 2 * MOST_BLOCKS:
                raise Refusal(409, "BlockCountExceedsLimit")
            waiting[block] = body
            return {}
        content_type = headers.get("x-ms-blob-content-type", headers.get("content-type", ""))
        if comp is None:
            if headers.get("x-ms-blob-type") != "BlockBlob":
                raise Refusal(400, "MissingRequiredHeader", "x-ms-blob-type")
            there = azure.blobs[name].etag if name in azure.blobs else ""
            if there and headers.get("if-none-match") == "*":
                raise Refusal(409, "BlobAlreadyExists")
            if headers.get("if-match", there) != there:
                raise Refusal(412, "ConditionNotMet")
            return self._described(azure.put(name, body, content_type))
        if comp != "blocklist":
            raise Refusal(400, "InvalidQueryParameterValue", "comp")
        ids = re.findall(r"<(?:Latest|Uncommitted)>([^<]*)</", body.decode())
        if len(ids) > MOST_BLOCKS:
            raise Refusal(400, "BlockListTooLong")
        listed = azure.blobs[name].blocks if name in azure.blobs else {}
        if not all(block in waiting or block in listed for block in ids):
            raise Refusal(400, "InvalidBlockList", "The specified block list is invalid.")
        parts = {block: waiting.get(block, listed.get(block, b"")) for block in ids}
        blob = azure.put(name, b"".join(parts[block] for block in ids), content_type)
        blob.blocks = parts
        return self._described(blob)

    def _described(self, blob: Blob) -> dict[str, str]:
        return {
            "ETag": blob.etag,
            "Last-Modified": formatdate(time.time() - 60, usegmt=True),
        }

    def _read(self, blob: Blob, wanted: str | None) -> tuple[int, dict[str, str], bytes]:
        described = {
            **self._described(blob),
            "Content-Type": blob.content_type,
            "Accept-Ranges": "bytes",
            "x-ms-blob-type": "BlockBlob",
        }
        if wanted is None or self.command == "HEAD":
            return 200, described | {"Content-Length": str(len(blob.data))}, blob.data
        begin, end = (int(text) for text in wanted.removeprefix("bytes=").split("-"))
        size = len(blob.data)
        if begin >= size:
            raise Refusal(416, "InvalidRange", str(size))
        end = min(end, size - 1)
        described["Content-Range"] = f"bytes {begin}-{end}/{size}"
        return 206, described, blob.data[begin : end + 1]


@contextmanager
def azure_server() -> Iterator[Azure]:
    azure = Azure()
    handler = type("Handler", (_Handler,), {"azure": azure})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        azure.port = server.server_port
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield azure
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def azure_process() -> Iterator[Azure]:
    """Start a server in a process of its own, which only its URL reaches."""
    command = [sys.executable, "-m", "local_servers.azure_server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield Azure(port=int(process.stdout.readline()))  # which closes stdin at the end


if __name__ == "__main__":
    with azure_server() as running:
        print(running.port, flush=True)
        sys.stdin.read()
