"""Loads and saves beside Azure's SDK: what each stores the other reads, by the same requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from azure.core.exceptions import HttpResponseError
from azure.storage.blob import ContentSettings

from local_servers.azure_server import Azure, Recorded, azure_server
from support.samples import assert_same, sample

ops = torch.ops.tensorizer

# The large one is saved in four blocks of 8 MiB.
MODELS = {
    "small": {"a": torch.arange(100)},
    "large": {str(i): sample(torch.float32, (1200, 1000), i) for i in range(6)},
}


@pytest.fixture
def azure() -> Iterator[Azure]:
    with azure_server() as server:
        yield server


@pytest.mark.parametrize("model", MODELS)
def test_what_is_saved_is_what_the_sdk_downloads(azure: Azure, model: str, path: str) -> None:
    ops.save(path, MODELS[model])
    ops.save(azure.uri("m"), MODELS[model], options=azure.options())
    assert azure.client("m").download_blob().readall() == Path(path).read_bytes()
    found = azure.client("m").get_blob_properties()
    assert found.content_settings.content_type == "application/octet-stream"


@pytest.mark.parametrize("model", MODELS)
def test_what_the_sdk_uploads_is_loaded(azure: Azure, model: str, path: str) -> None:
    ops.save(path, MODELS[model])
    blob = azure.client("m", max_single_put_size=1 << 20)
    blob.upload_blob(Path(path).read_bytes())
    assert_same(ops.load(azure.uri("m"), verify="all", options=azure.options()), MODELS[model])


def described(request: Recorded) -> set[str]:
    """Return what a request asks for, and what its signature covers, without what always differs:
    the time, the names of blocks but for their length, and bytes of a body."""
    found = {f"{request.method} {request.path}", f"status {request.status}"}
    found |= {f"query {name}={value}" for name, value in request.query.items()}
    for name, value in request.headers.items():
        if name.startswith(("x-ms-", "if-", "content-")) or name == "range":
            found.add(f"{name}: {value}")
    found |= {f"signed line {i}: {line}" for i, line in enumerate(request.signed.split("\n")[:12])}
    found |= {f"signed {line}" for line in request.signed.split("\n")[12:]}
    block = request.query.get("blockid", "no block")
    changes = {
        block: f"a name of {len(block)} characters",
        request.headers["x-ms-date"]: "now",
        f"content-length: {request.headers.get('content-length')}": "a length",
        f"signed line 3: {request.headers.get('content-length')}": "the length is signed",
    }
    for old, new in changes.items():
        found = {text.replace(old, new) for text in found}
    return {re.sub(r"(client-request-id:\s?).*", r"\1…", text) for text in found}


# What only the SDK sends, and what only we send, with the reason.
THEIRS = {
    "x-ms-client-request-id: …": "names the request in Azure's logs, for those who pay for them",
    "signed x-ms-client-request-id:…": "it is signed as every x-ms- header",
    "x-ms-version: 2026-10-06": "the newest one; ours is in every server and emulator since 2021",
    "signed x-ms-version:2026-10-06": "it is signed",
}
OURS = {
    "x-ms-version: 2021-12-02": "the first one that has all that is used here",
    "signed x-ms-version:2021-12-02": "it is signed",
}
# The same for requests with a body that is the content of a blob.
THEIR_TYPE = {
    "content-type: application/octet-stream": "the default of its HTTP library; Azure takes the "
    "type of a blob from x-ms-blob-content-type, and a block has none",
    "signed line 5: application/octet-stream": "it is signed",
}
OUR_TYPE = {"signed line 5: ": "there is no Content-Type to sign"}


def compare(theirs: Recorded, ours: Recorded, *, content: bool = False) -> None:
    a, b = described(theirs), described(ours)
    assert a - b == THEIRS.keys() | (THEIR_TYPE.keys() if content else set())
    assert b - a == OURS.keys() | (OUR_TYPE.keys() if content else set())


def test_saves_send_what_the_sdk_sends(azure: Azure, path: str) -> None:
    kind = ContentSettings(content_type="application/octet-stream")
    for model, tensors in MODELS.items():
        ops.save(path, tensors)
        # The SDK has larger requests for small blobs, and smaller blocks for large ones.
        blob = azure.client(model, max_single_put_size=1 << 20)
        blob.upload_blob(Path(path).read_bytes(), overwrite=True, content_settings=kind)
        theirs, azure.requests = azure.requests, []
        ops.save(azure.uri(model), tensors, options=azure.options())
        ours, azure.requests = azure.requests, []
        if model == "small":
            assert len(theirs) == len(ours) == 1
        else:
            assert len(theirs) == 8 and len(ours) == 5
            for request in theirs[:-1]:
                compare(request, ours[0], content=True)
            for request in ours[:-1]:
                compare(theirs[0], request, content=True)
        compare(theirs[-1], ours[-1], content=model == "small")


def test_loads_send_what_the_sdk_sends(azure: Azure) -> None:
    ops.save(azure.uri("m"), MODELS["large"], options=azure.options())
    azure.requests.clear()
    blob = azure.client("m", max_single_get_size=1 << 20, max_chunk_get_size=8 << 20)
    blob.download_blob().readall()
    theirs, azure.requests = azure.requests, []
    ops.load(azure.uri("m"), options=azure.options())
    ours, azure.requests = azure.requests, []
    compare(theirs[0], ours[0])
    for request in (*theirs[1:], *ours[1:]):
        assert request.headers["if-match"] == azure.blobs["m"].etag
        request.headers["x-ms-range"] = "bytes=a range"  # the SDK cuts at other bytes
        request.signed = re.sub("bytes=.*", "bytes=a range", request.signed)
    for request in ours[1:]:
        compare(theirs[1], request)


def test_the_server_refuses_what_azure_documents(azure: Azure) -> None:
    """Otherwise the tests above would show little."""
    azure.put("m", b"content")
    blob = azure.client("m")

    def refusal(status: int, code: str, act: Callable[[], object], **headers: str) -> None:
        def change(request: Recorded) -> None:
            for name, value in headers.items():
                request.headers.pop(name.replace("_", "-"), None)
                if value:
                    request.headers[name.replace("_", "-")] = value

        azure.before = change
        with pytest.raises(HttpResponseError) as caught:
            act()
        azure.before = None
        assert (caught.value.status_code, caught.value.error_code) == (status, code)

    refusal(400, "MissingRequiredHeader", lambda: blob.upload_blob(b"", overwrite=True),
            x_ms_version="")  # fmt: skip
    refusal(400, "MissingRequiredHeader", lambda: blob.upload_blob(b"", overwrite=True),
            x_ms_blob_type="")  # fmt: skip
    refusal(403, "AuthenticationFailed", blob.exists, authorization="SharedKey account1:AAAA")
    refusal(412, "ConditionNotMet", lambda: blob.download_blob(), if_match='"0x0"')
    blob.stage_block("YWFh", b"a")
    refusal(400, "InvalidBlobOrBlock", lambda: blob.stage_block("YWFhYQ==", b"b"))
    refusal(400, "InvalidBlockList", lambda: blob.commit_block_list(["YmJi"]))
    refusal(400, "BlockListTooLong", lambda: blob.commit_block_list(["YWFh"] * 50_001))
