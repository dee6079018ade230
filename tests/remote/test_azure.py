"""Loads from and saves to Azure's blobs: credentials, failures, and saves at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch

import tensorizer_ops
from local_servers.azure_server import (
    ACCOUNT,
    CONTAINER,
    KEY,
    TOKEN,
    Azure,
    Recorded,
    Refusal,
    azure_server,
)
from support.recorder import Recorded as Passed, recorder
from support.samples import assert_same, sample

ops = torch.ops.tensorizer
errors = tensorizer_ops.errors

SMALL = {"a": torch.arange(100)}
# Saved in four blocks of 8 MiB, and loaded in as many requests.
LARGE = {str(i): sample(torch.float32, (1200, 1000), i) for i in range(6)}
MODELS = {"small": SMALL, "large": LARGE}


@pytest.fixture
def azure(monkeypatch: pytest.MonkeyPatch) -> Iterator[Azure]:
    for name in ("ACCOUNT", "KEY", "SAS_TOKEN", "CONNECTION_STRING"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    with azure_server() as server:
        yield server


KEYS = ["a b", "a+b", "a%20b", "a=b&c=d", "deep/er/x", "ü/日本", "a'(b)*!~", "x?y#z", "a;b,c:@d"]


@pytest.mark.parametrize("key", KEYS)
def test_keys_of_every_kind(azure: Azure, key: str) -> None:
    ops.save(azure.uri(key), SMALL, options=azure.options())
    assert list(azure.blobs) == [key]
    assert azure.client(key).exists()
    assert_same(ops.load(azure.uri(key), options=azure.options()), SMALL)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("az://account", "names no blob: write az://ACCOUNT/CONTAINER/KEY"),
        ("az://account/container", "names no blob"),
        ("az://account/container/", "names no blob"),
        ("az://account//key", "names no blob"),
        ("az:///container/key", "names no blob|begin with the name of an account"),
        ("az://evil.com#/container/key", "begin with the name of an account"),
        ("az://user:sesame@account/container/key", r"with a user or a token.*'az_account_key'"),
        ("az://account/../other/key", "has a segment '.' or '..'"),
        ("az://account/container/../other/key", "has a segment '.' or '..'"),
        ("az://account/container/key/.", "has a segment '.' or '..'"),
        ("az://account/container/key?sv=1&sig=sesame", r"key\?\.\.\.' was given with a user or"),
    ],
)
def test_uris_that_name_no_blob(uri: str, message: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=message) as caught:
        ops.load(uri)
    assert "sesame" not in str(caught.value)


def place(azure: Azure) -> dict[str, str]:
    return {"az_endpoint": azure.url, "force_http": "true"}


@pytest.mark.parametrize("what", ["key", "sas", "?sas", "sas of a blob", "bearer", "sas and key"])
def test_credentials_in_options(azure: Azure, what: str) -> None:
    given = {
        "key": {"az_account_key": KEY},
        "sas": {"az_sas_token": azure.sas()},
        "?sas": {"az_sas_token": f"?{azure.sas()}"},
        "sas of a blob": {"az_sas_token": azure.sas(blob="m")},
        "bearer": {"az_bearer_token": TOKEN},
        "sas and key": {"az_sas_token": azure.sas(), "az_account_key": "AAAA"},
    }[what]
    options = place(azure) | given
    ops.save(azure.uri("m"), LARGE, options=options)
    assert_same(ops.load(azure.uri("m"), options=options), LARGE)
    assert {request.status for request in azure.requests} == {201, 206}
    asked = azure.requests[-1]
    assert ("authorization" in asked.headers) == ("sas" not in what)
    assert ("sig" in asked.query) == ("sas" in what)


@pytest.mark.parametrize("what", ["connection", "sas in connection", "key", "sas"])
def test_credentials_in_the_environment(
    azure: Azure, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = f"BlobEndpoint={azure.url}/{ACCOUNT}"
    sas = azure.sas()
    given, options = {
        "connection": (azure.environment(), {"force_http": "true"}),
        "sas in connection": (
            {"AZURE_STORAGE_CONNECTION_STRING": f"{blobs};SharedAccessSignature={sas}"},
            {"force_http": "true"},
        ),
        "key": (
            {"AZURE_STORAGE_ACCOUNT": ACCOUNT, "AZURE_STORAGE_KEY": KEY},
            place(azure),
        ),
        "sas": (
            {"AZURE_STORAGE_ACCOUNT": ACCOUNT, "AZURE_STORAGE_SAS_TOKEN": sas},
            place(azure),
        ),
    }[what]
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    ops.save(azure.uri("m"), SMALL, options=options)
    assert_same(ops.load(azure.uri("m"), options=options), SMALL)
    # Options come first.
    with pytest.raises(errors.PermissionDenied, match="AuthenticationFailed"):
        ops.load(azure.uri("m"), options=options | {"az_account_key": "AAAA"})
    # Nothing is sent to another account than the one that it is for.
    azure.account = "account2"
    azure.requests.clear()
    with pytest.raises(errors.PermissionDenied, match="was not signed, because there are no"):
        ops.load(f"az://account2/{CONTAINER}/m.tensors", options=place(azure))
    (asked,) = azure.requests
    assert "authorization" not in asked.headers and "sig" not in asked.query


def test_a_token_that_has_expired_is_read_again(azure: Azure, tmp_path: Path) -> None:
    ops.save(azure.uri("m"), SMALL, options=azure.options())
    token = tmp_path / "token"
    token.write_text("expired")
    options = place(azure) | {"az_bearer_token": f"file:{token}"}
    with pytest.raises(errors.PermissionDenied, match="InvalidAuthenticationInfo"):
        ops.load(azure.uri("m"), options=options)
    azure.requests.clear()
    azure.before = lambda request: (token.write_text(TOKEN), None)[1]
    assert_same(ops.load(azure.uri("m"), options=options), SMALL)
    assert [request.status for request in azure.requests] == [401, 206]


@pytest.mark.parametrize(
    "given",
    [
        {"az_account_key": "c2VzYW1lNDI="},
        {"az_account_key": "sesame42sesame42 is no base64"},
        {"az_sas_token": "sesame42sesame42 is no token"},
        {"az_sas_token": "sv=2021-12-02&sr=c&sp=r&se=2100-01-01T00:00:00Z&sig=sesame42sesame42%3D"},
        {"az_bearer_token": "sesame42sesame42"},
        {"az_bearer_token": "sesame42\nsesame42"},
    ],
    ids=str,
)
def test_no_secret_is_in_an_error(azure: Azure, given: dict[str, str]) -> None:
    """The server repeats signatures and tokens in its refusals."""
    options = place(azure) | given
    for act in (
        lambda: ops.load(azure.uri("m"), options=options),
        lambda: ops.save(azure.uri("m"), SMALL, options=options),
        lambda: tensorizer_ops.verify(azure.uri("m"), options=options),
    ):
        with pytest.raises((errors.PermissionDenied, errors.InvalidArgument)) as caught:
            act()
        text = str(caught.value)
        assert "sesame" not in text and "c2Vz" not in text
        if isinstance(caught.value, errors.PermissionDenied):
            assert f"'{azure.uri('m')}'" in text
            sent = azure.requests[-1].headers.get("authorization", "x SharedKey account1:none")
            assert sent.rpartition(":")[2] not in text


def test_an_expired_sas_token_is_refused(azure: Azure) -> None:
    options = place(azure) | {"az_sas_token": azure.sas(hours=-1)}
    with pytest.raises(errors.PermissionDenied, match=r"status 403: 'AuthenticationFailed: Sig"):
        ops.load(azure.uri("m"), options=options)


@pytest.mark.parametrize("where", ["option", "BlobEndpoint", "DefaultEndpointsProtocol"])
def test_an_endpoint_without_tls_must_be_allowed(
    azure: Azure, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"az_account_key": KEY}
    if where == "option":
        options["az_endpoint"] = azure.url
    else:
        value = "http" if where == "DefaultEndpointsProtocol" else f"{azure.url}/{ACCOUNT}"
        connection = f"AccountName={ACCOUNT};{where}={value}"
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection)
    with pytest.raises(errors.InvalidArgument, match=f"{where}.*not encrypted: set option 'force_"):
        ops.load(azure.uri("m"), options=options)


def test_https_stays_https(azure: Azure) -> None:
    ops.save(azure.uri("m"), SMALL, options=azure.options())
    azure.requests.clear()
    options = azure.options(az_endpoint=azure.url.replace("http:", "https:"), retries="0")
    with pytest.raises(OSError):
        ops.load(azure.uri("m"), options=options)
    assert azure.requests == []


@pytest.mark.parametrize("token", ["https://a.blob.core.windows.net/c/m?sig=x", "??sig=x", "sig="])
def test_what_is_no_sas_token(azure: Azure, token: str) -> None:
    with pytest.raises(errors.InvalidArgument, match="'az_sas_token' must be a SAS token"):
        ops.load(azure.uri("m"), options=place(azure) | {"az_sas_token": token})


@pytest.mark.parametrize("name", ["Content-Length", "x-ms-range"])
def test_headers_that_each_request_has(azure: Azure, name: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=f"'header.{name}' cannot be set: each"):
        ops.save(azure.uri("m"), SMALL, options=azure.options(**{f"header.{name}": "3"}))


def test_a_blob_that_changes_during_a_load(azure: Azure) -> None:
    ops.save(azure.uri("m"), LARGE, options=azure.options())
    old = azure.blobs["m"].data

    def change(request: Recorded) -> None:
        if "if-match" in request.headers and azure.blobs["m"].data is old:
            azure.put("m", bytes(old))
            azure.blobs["m"].data = bytearray(old)

    azure.before = change
    with pytest.raises(errors.Unavailable, match="has changed while it was loaded"):
        ops.load(azure.uri("m"), options=azure.options())
    assert 412 in [request.status for request in azure.requests]


def busy_at_first(azure: Azure) -> None:
    """Lets every first request of a kind fail."""
    seen: set[str] = set()

    def refuse(request: Recorded) -> None:
        kind = f"{request.method} {request.query} {request.headers.get('x-ms-range')}"
        if kind not in seen:
            seen.add(kind)
            raise Refusal(503, "ServerBusy")

    azure.before = refuse


@pytest.mark.parametrize("model", MODELS)
def test_a_server_that_is_busy_is_asked_again(azure: Azure, model: str) -> None:
    busy_at_first(azure)
    ops.save(azure.uri("m"), MODELS[model], options=azure.options())
    assert_same(ops.load(azure.uri("m"), options=azure.options()), MODELS[model])
    statuses = [request.status for request in azure.requests]
    assert statuses.count(503) == len(statuses) / 2
    with pytest.raises(errors.Unavailable, match=r"status 503: 'ServerBusy: No\.'"):
        busy_at_first(azure)
        ops.load(azure.uri("m"), options=azure.options(retries="0"))


def is_list(request: Recorded | Passed) -> bool:
    return request.query.get("comp") == "blocklist"


def test_nothing_is_visible_before_the_list_of_blocks(azure: Azure) -> None:
    ops.save(azure.uri("m"), SMALL, options=azure.options())
    old = azure.blobs["m"]

    def refuse(request: Recorded) -> None:
        assert azure.blobs == {"m": old}
        if is_list(request):
            raise Refusal(403, "AuthorizationFailure")

    azure.before = refuse
    for name in ("m", "new"):
        with pytest.raises(errors.PermissionDenied, match="AuthorizationFailure"):
            ops.save(azure.uri(name), LARGE, options=azure.options())
    assert azure.blobs == {"m": old}
    writer = torch.classes.tensorizer.Writer(azure.uri("new"), azure.options())
    writer.add("a", sample(torch.float32, (5000, 1000), 1))
    del writer
    assert azure.blobs == {"m": old}
    # The blocks that are left do not hinder a later save.
    azure.before = None
    ops.save(azure.uri("new"), LARGE, options=azure.options())
    assert_same(ops.load(azure.uri("new"), options=azure.options()), LARGE)


def test_a_list_whose_answer_is_lost_is_sent_again(azure: Azure) -> None:
    lists: list[str] = []

    def first(request: Passed) -> bool:
        if is_list(request):
            lists.append("")
            return len(lists) == 1
        return False

    with recorder(azure.port) as between:
        between.loses = first
        through = azure.options(az_endpoint=f"http://127.0.0.1:{between.port}")
        ops.save(azure.uri("m"), LARGE, options=through)
    assert len(lists) == 2
    assert_same(ops.load(azure.uri("m"), options=azure.options()), LARGE)


def test_another_save_that_ends_first(azure: Azure) -> None:
    def put(request: Recorded) -> None:
        if is_list(request):
            azure.put("m", b"of another save")

    azure.before = put
    with pytest.raises(errors.Unavailable, match="another save of this blob has ended meanwhile"):
        ops.save(azure.uri("m"), LARGE, options=azure.options())
    assert azure.blobs["m"].data == b"of another save"


def test_two_saves_at_the_same_time_do_not_mix(azure: Azure) -> None:
    other = {name: tensor + 1 for name, tensor in LARGE.items()}

    def save(request: Recorded) -> None:
        if is_list(request):
            azure.before = None
            ops.save(azure.uri("m"), other, options=azure.options())

    azure.before = save
    with pytest.raises(errors.Unavailable, match="another save of this blob has ended"):
        ops.save(azure.uri("m"), LARGE, options=azure.options())
    assert_same(ops.load(azure.uri("m"), options=azure.options()), other)


def test_blocks_of_another_program_with_other_names(azure: Azure) -> None:
    azure.client("m").stage_block("YQ==", b"a")
    with pytest.raises(errors.Unavailable, match=r"InvalidBlobOrBlock.*save under another"):
        ops.save(azure.uri("m"), LARGE, options=azure.options())
    azure.client("m").commit_block_list([])
    ops.save(azure.uri("m"), LARGE, options=azure.options())


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("answer", "what"), [("200 OK", "<html>"), ("201 Created", "<html>"), ("201 Created", "")]
)
def test_an_answer_that_is_not_from_azure(azure: Azure, answer: str, what: str, model: str) -> None:
    with recorder(azure.port) as between:
        page = f"HTTP/1.1 {answer}\r\nContent-Length: {len(what)}\r\n\r\n{what}".encode()
        between.answers = lambda request: page
        through = azure.options(az_endpoint=f"http://127.0.0.1:{between.port}", retries="0")
        shown = f"{answer[:3]} and " + ("an HTML" if what else "neither")
        with pytest.raises(errors.Unavailable, match=f"is not from Azure: status {shown}"):
            ops.save(azure.uri("m"), MODELS[model], options=through)


def test_models_in_several_blobs(azure: Azure) -> None:
    options = azure.options()
    target = azure.uri("deep/model.safetensors")
    tensorizer_ops.save(target, LARGE, options=options | {"max_shard_size": "10000000"})
    names = sorted(azure.blobs)
    assert len(names) == 4 and all(name.startswith("deep/model") for name in names)
    index = azure.uri("deep/model.safetensors.index.json")
    assert_same(ops.load(index, options=options), LARGE)
    # Another one replaces it, whose files are removed.
    tensorizer_ops.save(target, SMALL, options=options | {"max_shard_size": "10000000"})
    assert not {*names[:3]} & {*azure.blobs}
    assert_same(ops.load(target, options=options), SMALL)
    data = azure.client("deep/model.safetensors").download_blob().readall()
    assert_same(safetensors.torch.load(data), SMALL)
    with pytest.raises(errors.InvalidArgument, match="valid for this one blob"):
        tensorizer_ops.save(
            target,
            LARGE,
            options=place(azure)
            | {
                "az_sas_token": azure.sas(blob="deep/model.safetensors"),
                "max_shard_size": "9000000",
            },
        )


@pytest.mark.parametrize(
    ("uri", "variable", "value"),
    [
        ("az://a/b/c", "AZURE_STORAGE_CONNECTION_STRING", "AccountName=a;BlobEndpoint=host:1"),
        ("hf://a/b/c", "HF_ENDPOINT", "host:1"),
    ],
)
def test_an_endpoint_of_the_environment_has_a_scheme(
    monkeypatch: pytest.MonkeyPatch, uri: str, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=rf"{variable} is 'host:1', and must begin with http://"):
        tensorizer_ops.info(uri)
