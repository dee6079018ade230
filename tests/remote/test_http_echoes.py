"""Secrets that were sent to a server are in no error message, even if the server repeats them."""

from __future__ import annotations

import base64
import importlib.util
import json
import traceback
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import torch

import tensorizer_ops
from local_servers.web import Web
from support.own_sigstore import OwnSigstore
from support.scripted import Asked, scripted
from support.signer import Signer
from tensorizer_ops import trust
from tensorizer_ops._base.quoting import in_one_line, quoted
from tensorizer_ops._hf.downloads import download

ops = torch.ops.tensorizer

Place = tuple[str, dict[str, str]]

KEY, SECRET, TOKEN, HEADER = "AKIAKEYKEYKEY", "secret+secret", "session/token==", "Bearer sesame4"


def echo(asked: Asked) -> None:
    """Responds with an error that repeats the whole request, also in upper case."""
    shown = [asked.path, *asked.headers.values()]
    text = " ".join(text.replace("&", "&amp;").replace("<", "&lt;") for text in shown)
    body = f"<Error><Code>InvalidToken</Code><Message>{text} {text.upper()}</Message></Error>"
    asked.body()
    asked.say("400 Bad Request", body.encode())


@pytest.mark.parametrize("version", ["s3v4", "s3"])
def test_errors_of_s3(version: str) -> None:
    with scripted(echo) as server:
        options = {
            "s3_endpoint": server.url(""),
            "force_http": "true",
            "s3_access_key_id": KEY,
            "s3_secret_access_key": SECRET,
            "s3_session_token": TOKEN,
            "s3_signature_version": version,
            "header.X-Token": HEADER,
            "retries": "0",
        }
        with pytest.raises(PermissionError, match="InvalidToken") as loaded:
            ops.load("s3://bucket/key", options=options)
        with pytest.raises(PermissionError, match="InvalidToken") as saved:
            ops.save("s3://bucket/key", {"x": torch.ones(3)}, options=options)
        (signature,) = {
            part.removeprefix("Signature=")
            for part in server.asked[-1].headers["authorization"].split(", ")
            if part.startswith("Signature=")
        }
    for error in (loaded, saved):
        text = str(error.value).lower()
        for secret in (KEY, SECRET, TOKEN, "sesame4", signature):
            assert secret.lower() not in text, text


@pytest.mark.parametrize("uri", ["s3://bucket/key", "gs://bucket/key", "hf://a/model/key"])
def test_errors_of_keys_with_parameters(uri: str, caplog: pytest.LogCaptureFixture) -> None:
    """They may have been copied with the key from a signed URL."""
    secret = "sesame/42+sesame="
    with scripted(echo) as server:
        own = {"s3_endpoint": server.url(""), "s3_anonymous": "true"}
        own = {"hf_endpoint": server.url("")} if uri.startswith("hf") else own
        options = {"retries": "0", "force_http": "true", **own}
        with pytest.raises((ConnectionError, PermissionError)) as error:
            ops.load(f"{uri}?X-Amz-Signature={secret}", options=options)
        assert secret in unquote(server.asked[-1].path)
    for text in (str(error.value), caplog.text):
        assert "sesame" not in text


def safetensors(header: str) -> bytes:
    return len(header.encode()).to_bytes(8, "little") + header.encode()


def headers_that_repeat(secret: str) -> list[bytes]:
    """Return files with the secret in every place of a header that errors quote."""
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    places = [
        {secret: entry | {"dtype": "F1"}},
        {"x": entry | {"dtype": secret}},
        {"x": entry | {secret: 1}},
        {"__metadata__": {secret: 1}},
        {"__metadata__": {"x": "1"}, secret: entry | {"shape": [2]}},
        {"metadata": {}, "weight_map": {secret: 1}},
        {"metadata": {}, "weight_map": {"x": f"a/../{secret}"}},
    ]
    files = [safetensors(json.dumps(place)) + bytes(4) for place in places]
    files += [json.dumps(place).encode() for place in places[-2:]]
    return [*files, secret.encode(), secret.encode() * 1000]


@pytest.mark.parametrize("place", range(len(headers_that_repeat("x"))))
@pytest.mark.parametrize("sent", ["header", "password", "parameter", "s3", "signed", "az"])
def test_errors_of_what_is_no_file(sent: str, place: int) -> None:
    """A server that answers with the request itself gives a malformed file."""
    secret = {"s3": TOKEN, "signed": "AKIAKEYKEYKEY"}.get(sent, "sesame4")
    content = headers_that_repeat(secret)[place]
    with scripted(lambda asked: asked.say_range(content)) as server:
        options = {"retries": "0"}
        url = server.url()
        if sent == "header":
            options["header.Authorization"] = f"Bearer {secret}"
        elif sent == "password":
            url = url.replace("//", f"//me:{secret}@")
        elif sent == "parameter":
            url += f"?signature={secret}"
        elif sent == "az":
            url = "az://account/container/key"
            options |= {"az_endpoint": server.url(""), "force_http": "true"}
            options["az_sas_token"] = f"sr=c&sig={secret}"
        else:
            url = "s3://bucket/key"
            options |= {
                "s3_endpoint": server.url(""),
                "force_http": "true",
                "s3_access_key_id": KEY,
                "s3_secret_access_key": SECRET,
                "s3_session_token": TOKEN,
                "s3_signature_version": "s3" if sent == "signed" else "s3v4",
            }
        for act in (ops.load, ops.names, ops.verify, tensorizer_ops.metadata):
            with pytest.raises((ConnectionError, ValueError)) as error:
                act(url, options=options)
            assert secret[:5] not in str(error.value)


@pytest.fixture
def damaged(tmp_path: Path) -> bytes:
    """Return a file of tensors that all are damaged, and whose names were sent to the server."""
    name = "sesame4."
    tensors = {f"{name}{i}": torch.full((300_000,), 0x5A, dtype=torch.uint8) for i in range(8)}
    ops.save(str(tmp_path / "m"), tensors)
    return (tmp_path / "m").read_bytes().replace(b"\x5a" * 300_000, b"\x5b" * 300_000)


def test_errors_of_a_file_that_can_be_read(damaged: bytes, tmp_path: Path) -> None:
    """Some are made on the threads of a load or a save, others by what asks for tensors."""
    options = {"header.Authorization": "Bearer sesame4", "chunk_size": "65536"}
    with scripted(lambda asked: asked.say_range(damaged)) as server:
        url = server.url()
        names = ops.names(url, options=options)
        small = dict.fromkeys(names, torch.ones(2, dtype=torch.uint8))
        other = dict.fromkeys(names, torch.ones(300_000, dtype=torch.uint8))
        acts = [
            lambda: ops.load(url, verify="all", threads=8, options=options),
            lambda: tensorizer_ops.verify(url, threads=8, options=options),
            lambda: tensorizer_ops.convert(url, tmp_path / "to", source_options=options),
            lambda: tensorizer_ops.load_into({"x": torch.ones(2)}, url, options=options),
            lambda: tensorizer_ops.load_into(small, url, options=options),
            lambda: tensorizer_ops.load_into(other, url, verify="all", options=options),
            lambda: tensorizer_ops.verify_tensors(url, small, options=options),
            lambda: tensorizer_ops.verify_tensors(url, other, options=options),
            lambda: ops.load(url, names=[names[0] + "x"], options=options),
        ]
        for number, act in enumerate(acts):
            # Any of the threads may be the first to find damage.
            for _ in range(2):
                with pytest.raises(tensorizer_ops.errors.Error) as error:
                    act()
                assert "sesame4" not in str(error.value), number


def test_errors_of_a_file_with_other_data_of_tied_tensors(tmp_path: Path) -> None:
    ops.save(str(tmp_path / "m"), {"sesame4.1": torch.ones(3), "sesame4.2": torch.zeros(3)})
    content = (tmp_path / "m").read_bytes()
    module = dict.fromkeys(["sesame4.1", "sesame4.2"], torch.ones(3))
    with scripted(lambda asked: asked.say_range(content)) as server:
        with pytest.raises(ValueError, match="one tensor here") as error:
            tensorizer_ops.load_into(module, server.url() + "?key=sesame4")
        assert "sesame4" not in str(error.value)


def test_errors_of_shards_that_are_named_as_what_was_sent() -> None:
    index = json.dumps({"metadata": {}, "weight_map": {"x": "sesame4.safetensors"}})

    def answer(asked: Asked) -> None:
        if asked.path == "/m.safetensors.index.json":
            asked.say_range(index.encode())
        else:
            asked.say("404 Not Found")

    with scripted(answer) as server:
        with pytest.raises(FileNotFoundError, match="one of its 1 shards") as error:
            options = {"header.Authorization": "Bearer sesame4"}
            ops.load(server.url("m.safetensors.index.json"), options=options)
        assert "sesame4" not in str(error.value)


@pytest.mark.parametrize("place", ["mediaType", "payloadType", "hint", "key"])
def test_errors_of_bundles(tmp_path: Path, place: str) -> None:
    signer, other = Signer(tmp_path / "trusted"), Signer(tmp_path / "other")
    tensorizer_ops.save(tmp_path / "m", {"x": torch.ones(3)})
    tensorizer_ops.sign(tmp_path / "m", key=other.private)
    content, bundle = (tmp_path / "m").read_bytes(), json.loads((tmp_path / "m.sig").read_text())
    material, envelope = bundle["verificationMaterial"], bundle["dsseEnvelope"]
    part = {"hint": material["publicKey"], "payloadType": envelope}.get(place, bundle)
    part["sesame4" if place == "key" else place] = "sesame4"

    def answer(asked: Asked) -> None:
        is_bundle = asked.path.endswith(".sig")
        asked.say_range(json.dumps(bundle).encode() if is_bundle else content)

    with scripted(answer) as server:
        given = {"header.Authorization": "Bearer sesame4", "retries": "0"}
        who = {"identity": "a", "issuer": "b", "root": OwnSigstore().trusted_root(tmp_path / "r")}
        acts = [
            lambda: tensorizer_ops.load(server.url("m"), options=given | signer.options),
            lambda: trust.verify(server.url("m"), policy=signer.options["trust"], options=given),
        ]
        if importlib.util.find_spec("sigstore"):
            acts.append(lambda: trust.add_sigstore("s", server.url("m.sig"), options=given, **who))
        for act in acts:
            with pytest.raises(tensorizer_ops.errors.Error, match=r"m\.sig") as error:
                act()
            assert "sesame4" not in str(error.value)


LONG = "sesame42sesame"


def test_errors_that_repeat_what_was_sent_for_another_file() -> None:
    """Such as the signature of the bundle, or a redirect whose text libcurl cuts."""

    def answer(asked: Asked) -> None:
        if "?" in asked.path:
            asked.say("404 Not Found")
        else:
            host = LONG if asked.path == "/first" else "x" * 225 + LONG
            asked.say("302 Found", Location=f"http://{host}.invalid/x")

    with scripted(answer) as server:
        options = {"connect_timeout": "1", "retries": "0"}
        with pytest.raises(FileNotFoundError):
            ops.load(server.url(f"m?signature={LONG}"), options=options)
        for name in ("first", "second"):
            with pytest.raises((ConnectionError, TimeoutError)) as error:
                ops.load(server.url(name), options=options)
            assert "sesame" not in str(error.value)


def test_secrets_that_a_server_makes_a_process_forget() -> None:
    """By parameters of its redirects, of which it can choose thousands."""

    def answer(asked: Asked) -> None:
        if asked.path.startswith("/flood"):
            number = len(server.asked)
            query = "&".join(f"p{i}=parameter{number}-{i}%2B" for i in range(90))
            asked.say("302 Found", Location=f"/flood?{query}")
        elif "?" in asked.path:
            asked.say("404 Not Found")
        else:
            asked.say("302 Found", Location=f"http://{LONG}.invalid/x")

    with scripted(answer) as server:
        options = {"connect_timeout": "1", "retries": "0"}
        with pytest.raises(FileNotFoundError):
            ops.load(server.url(f"m?signature={LONG}"), options=options)
        for _ in range(12):
            with pytest.raises(ConnectionError, match="redirects"):
                ops.load(server.url("flood"), options=options)
        with pytest.raises((ConnectionError, TimeoutError)) as error:
            ops.load(server.url("m"), options=options)
        assert "sesame" not in str(error.value)


def lists_that_repeat(secret: str) -> dict[str, tuple[str, str]]:
    """Return files that Python reads, by the name of a case: their names, and what is in them."""
    version = {"number": 1, "step": 1, "digest": "v2:" + "0" * 64, "delta": None, "delta_size": 0}
    version |= {"whole": f"00000001-{'0' * 16}.tensors", "whole_size": 1}

    def versions(**changed: Any) -> str:
        listed = {"format": 1, "publisher": "0" * 16, "versions": [version | changed]}
        return json.dumps(listed | {"unlisted": []})

    return {
        "key": ("versions.tensors", versions(**{secret: 1})),
        "name": ("versions.tensors", versions(whole=secret)),
        "digest": ("versions.tensors", versions(digest=[secret])),
        "sums": ("SHA256SUMS", f"{'0' * 64}  ../{secret}\n"),
        "missing": ("SHA256SUMS", f"# incomplete: {secret}\n"),
        "index": ("model.safetensors.index.json", json.dumps({"weight_map": {"a": f"/{secret}"}})),
    }


@pytest.mark.parametrize("case", lists_that_repeat("x"))
@pytest.mark.parametrize(
    "secret", [LONG, "\x1b[31m" * 9, LONG * 9999], ids=["secret", "escapes", "flood"]
)
def test_errors_of_lists_that_python_reads(tmp_path: Path, case: str, secret: str) -> None:
    name, text = lists_that_repeat(secret)[case]
    content = text.encode()
    if name == "versions.tensors":
        tensorizer_ops.save(tmp_path / "m", {}, metadata={"tensorizer_ops.versions": text})
        content = (tmp_path / "m").read_bytes()

    def answer(asked: Asked) -> None:
        if asked.path == f"/{name}":
            asked.say_range(content)
        else:
            asked.say("404 Not Found")

    with scripted(answer) as server:
        options = {"header.Authorization": f"Bearer {LONG}"}
        with pytest.raises(ValueError) as error:
            if name == "versions.tensors":
                next(tensorizer_ops.follow(server.url(""), {}, options=options))
            else:
                list(download(server.url(""), str(tmp_path / "target"), options, lambda *_: None))
    text = str(error.value)
    assert "sesame4" not in text and "\x1b" not in text and len(text) < 2000


def test_tracebacks_of_what_transformers_refuses() -> None:
    def answer(asked: Asked) -> None:
        if asked.path == "/m/config.json":
            asked.say_range(json.dumps({"model_type": asked.headers["x-key"]}).encode())
        elif asked.path == "/m/model.safetensors":
            asked.say_range(safetensors("{}"))
        else:
            asked.say("404 Not Found")

    with scripted(answer) as server:
        options = {"header.X-Key": LONG, "retries": "0"}
        with pytest.raises(ValueError, match="does not take the config") as error:
            tensorizer_ops.hf.from_pretrained(server.url("m"), options=options)
    assert LONG not in "".join(traceback.format_exception(error.value))


@pytest.mark.parametrize("http2", ["false", "true"])
def test_a_login_of_netrc_is_in_no_error(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, http2: str
) -> None:
    """Also of others; and libcurl shows it in lower case with HTTP/2."""
    password = f"in netrc, for {http2}"
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".netrc").write_text(f'machine localhost\nlogin me\npassword "{password}"\n')
    tensorizer_ops.save(web.root / "logged-in.tensors", {"x": torch.ones(3)})
    url = f"https://localhost:{web.tls_port}/logged-in.tensors"
    ops.load(url, options={"ca_file": web.ca, "http2": http2})
    assert quoted(password) == "'...'"


def test_secrets_of_redirects_are_in_no_error() -> None:
    def answer(asked: Asked) -> None:
        if "?" in asked.path:
            asked.say("404 Not Found")
        else:
            asked.say("302 Found", Location="/m?signature=made-by-the-server")

    with scripted(answer) as server, pytest.raises(FileNotFoundError):
        ops.load(server.url("m"))
    assert quoted("made-by-the-server") == "'...'"


def test_secrets_that_overlap_in_an_error() -> None:
    """A server knows them, and can redirect to what ends as another one begins."""
    secret = "7-begins-and-ends-with-7"

    def answer(asked: Asked) -> None:
        if "?" in asked.path:
            asked.say_range(headers_that_repeat("zzzzzzzzzzzz" * 9 + secret + secret[1:])[0])
        else:
            asked.say("302 Found", Location="/m?p=" + "zzzzzzzzzzzz" * 9 + secret[0])

    with scripted(answer) as server, pytest.raises(ValueError, match=r"\.\.\.") as error:
        ops.load(server.url("m"), options={"header.X-Token": secret})
    assert "ends-with" not in str(error.value)


def test_secrets_in_what_is_no_text() -> None:
    with scripted(lambda asked: asked.say("404 Not Found")) as server:
        for secret in ("90417735520186", r"with\a\backslash", "two  blanks of it"):
            with pytest.raises(FileNotFoundError):
                ops.load(server.url("m"), options={"header.X-Token": secret})
    assert quoted(90417735520186) == "..."
    assert "backslash" not in quoted([r"with\a\backslash"])
    assert in_one_line(ValueError("a\nb two  blanks of it")) == "ValueError: 'a b ...'"


def test_errors_of_what_verifies_bundles(tmp_path: Path) -> None:
    pytest.importorskip("sigstore")
    sigstore = OwnSigstore()
    bundle = sigstore.bundle(b"{}", "a@b.invalid", "https://c.invalid")
    (entry,) = bundle["verificationMaterial"]["tlogEntries"]
    entry["kindVersion"]["version"] = "sesame4"
    who = {"identity": "a@b.invalid", "issuer": "https://c.invalid"}
    who["root"] = str(sigstore.trusted_root(tmp_path / "root"))
    with scripted(lambda asked: asked.say_range(json.dumps(bundle).encode())) as server:
        given = {"header.Authorization": "Bearer sesame4"}
        with pytest.raises(tensorizer_ops.errors.Crypto, match=r"got \.\.\.'$"):
            trust.add_sigstore("s", server.url("m.sig"), options=given, **who)


def test_errors_that_repeat_the_target_of_a_redirect() -> None:
    """Its parameters may be a signature, and count as sent with the first request."""
    others = "&".join(f"number{i}" for i in range(99))
    content = headers_that_repeat("sesame4")[1]

    def answer(asked: Asked) -> None:
        if "?" in asked.path:
            asked.say_range(content)
        else:
            asked.say("307 Temporary Redirect", Location=f"/x?signature=sesame4&{others}")

    with scripted(answer) as server:
        with pytest.raises(ValueError, match="dtype") as error:
            ops.load(server.url())
        assert "sesame4" not in str(error.value)
        assert len(server.asked) == 2


def test_errors_of_where_a_redirect_leads() -> None:
    """libcurl's error text contains the host name that cannot be resolved."""

    def answer(asked: Asked) -> None:
        token = asked.headers["x-token"]
        asked.say("302 Found", Location=f"http://{token}.invalid/x?{token}")

    with scripted(answer) as server:
        with pytest.raises((ConnectionError, TimeoutError)) as error:
            options = {"header.X-Token": "sesame4", "connect_timeout": "1", "retries": "0"}
            ops.load(server.url(), options=options)
        assert "sesame4" not in str(error.value)
        assert server.asked


@pytest.mark.parametrize(
    "uri",
    [
        "http:///me:sesame42@127.0.0.1:1/x",
        "http:////me:sesame42@127.0.0.1:1/x",
        "s3://me:sesame42@bucket/key",
        "s3://me:sesame42@bucket",
        "s3://me:ses/ame42@bucket/key",
        "gs://me:sesame42@bucket/key",
    ],
)
def test_uris(uri: str) -> None:
    options = {"retries": "0", "s3_anonymous": "true", "connect_timeout": "1"}
    if "ses/" in uri:
        options |= {"s3_endpoint": "http://127.0.0.1:1", "force_http": "true"}
    for act in (lambda: ops.load(uri, options=options), lambda: ops.save(uri, {}, options=options)):
        with pytest.raises((ConnectionError, TimeoutError, ValueError)) as error:
            act()
        assert "ame42" not in str(error.value)


def log_in(sent: str, server: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Set the login "me:sesame/42"; return a URL and options for which it is sent to the server."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    proxy, elsewhere = server.replace("//", "//me:sesame%2F42@"), "http://elsewhere.invalid"
    if sent == "header":
        login = base64.b64encode(b"me:sesame/42").decode()
        return f"{server}/m", {"header.Authorization": f"Basic {login}"}
    if sent == "netrc":
        (home / ".netrc").write_text("machine 127.0.0.1 login me password sesame/42")
        return f"{server}/m", {}
    if sent == "s3":
        monkeypatch.setenv("http_proxy", proxy)
        anonymous = {"s3_anonymous": "true", "force_http": "true"}
        return "s3://bucket/key", anonymous | {"s3_endpoint": elsewhere}
    monkeypatch.setenv(sent, proxy.removeprefix("http://"))
    return f"{elsewhere}/m", {}


@pytest.mark.parametrize("form", ["sent", "decoded", "password"])
@pytest.mark.parametrize("sent", ["header", "netrc", "http_proxy", "all_proxy", "ALL_PROXY", "s3"])
def test_errors_that_repeat_a_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: str, form: str
) -> None:
    login = base64.b64encode(b"me:sesame/42").decode()
    repeated = {"sent": login, "decoded": "me:sesame/42", "password": "sesame/42"}[form]
    content = headers_that_repeat(repeated)[0]
    with scripted(lambda asked: asked.say_range(content)) as server:
        url, options = log_in(sent, server.url("").rstrip("/"), tmp_path, monkeypatch)
        with pytest.raises(ValueError, match=r"\.\.\.") as error:
            ops.load(url, options=options | {"retries": "0"})
        headers = server.asked[0].headers
        assert f"Basic {login}" in (headers["authorization"], headers["proxy-authorization"])
    assert repeated not in str(error.value)
