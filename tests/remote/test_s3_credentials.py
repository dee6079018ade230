"""The sources of S3 credentials, each with a load from a server that checks signatures."""

from __future__ import annotations

import http.server
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from local_servers.s3_server import KEY_ID, S3, SECRET, s3_server
from support.aws_server import Aws, aws_server
from support.recorder import Recorded, Recorder, recorder
from support.samples import assert_same, sample, zoo
from tensorizer_ops.errors import InvalidArgument

ops = torch.ops.tensorizer

LARGE = {f"t{i}": sample(torch.float32, (1000, 250 + i), i) for i in range(12)}  # 12 MB
# More keys that the server accepts. The sources of new keys return them one after another.
MORE = {f"AKIANUMBER{number}": f"secret {number}" for number in range(1, 10)}


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3_server(tmp_path_factory.mktemp("s3"), more_keys=MORE) as server:
        ops.save(str(server.root / "bucket" / "zoo.tensors"), zoo())
        ops.save(str(server.root / "bucket" / "large.tensors"), LARGE, hashes="all")
        yield server


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory and an environment without credentials."""
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    (tmp_path / ".aws").mkdir()
    return tmp_path


@pytest.fixture
def set_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def set_all(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_all


def check(options: dict[str, str] | None = None) -> None:
    assert_same(ops.load("s3://bucket/zoo.tensors", options=options or {}), zoo())


@contextmanager
def agent(answer: Callable[[], str], seen: list[str]) -> Iterator[str]:
    """A service that returns credentials, and records the Authorization header of each request."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization", ""))
            body = answer().encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/credentials"
        finally:
            server.shutdown()
            thread.join()


KEYS = f"aws_access_key_id = {KEY_ID}\naws_secret_access_key = {SECRET}\n"


def test_the_environment(s3: S3, set_environment: Callable[..., None]) -> None:
    set_environment(**s3.environment())
    check()


def test_profiles(s3: S3, home: Path, set_environment: Callable[..., None]) -> None:
    url = f"http://127.0.0.1:{s3.port}"
    (home / ".aws/config").write_text(
        f"[profile one]\nregion = us-east-1\nservices = here\n"
        f"[services here]\ns3 =\n  endpoint_url = {url}\n"
    )
    (home / ".aws/credentials").write_text(f"[one]\n{KEYS}")
    check({"s3_profile": "one"})
    set_environment(AWS_PROFILE="one")
    check()
    set_environment(AWS_ACCESS_KEY_ID="AKIAWRONG", AWS_SECRET_ACCESS_KEY="wrong")
    with pytest.raises(PermissionError, match="403"):
        check()
    check({"s3_profile": "one"})
    with pytest.raises(ValueError, match="no profile 'two'"):
        check({"s3_profile": "two"})


def test_s3cmd_s_file(s3: S3, home: Path, set_environment: Callable[..., None]) -> None:
    text = (
        f"[default]\naccess_key = {KEY_ID}\nsecret_key = {SECRET}\nbucket_location = US\n"
        f"host_base = 127.0.0.1:{s3.port}\nuse_https = False\n"
    )
    (home / ".s3cfg").write_text(text)
    check()
    (home / ".s3cfg").rename(home / "other")
    set_environment(AWS_ACCESS_KEY_ID="AKIAWRONG", AWS_SECRET_ACCESS_KEY="wrong")
    check({"s3_config_path": str(home / "other")})
    with pytest.raises(FileNotFoundError):
        check({"s3_config_path": str(home / "missing")})


def test_a_container(s3: S3, home: Path, set_environment: Callable[..., None]) -> None:
    answer = {"AccessKeyId": KEY_ID, "SecretAccessKey": SECRET, "Token": "a token"}
    seen: list[str] = []
    (home / "token").write_text("a secret\n")
    with agent(lambda: json.dumps(answer), seen) as url:
        set_environment(
            AWS_ENDPOINT_URL=f"http://127.0.0.1:{s3.port}",
            AWS_CONTAINER_CREDENTIALS_FULL_URI=url,
            AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=str(home / "token"),
        )
        check()
        set_environment(AWS_CONTAINER_CREDENTIALS_FULL_URI="http://example.com/")
        with pytest.raises(ValueError, match="container's credentials"):
            check()
    assert seen == ["a secret"]


def test_nobody(s3: S3, set_environment: Callable[..., None]) -> None:
    """The metadata service is not asked either, because the environment disables it."""
    endpoint = {"s3_endpoint": f"http://127.0.0.1:{s3.port}", "force_http": "true"}
    with recorder(s3.port) as machine:
        set_environment(AWS_EC2_METADATA_SERVICE_ENDPOINT=f"http://127.0.0.1:{machine.port}")
        with pytest.raises(PermissionError, match=r"no credentials for S3 .* s3_anonymous"):
            check(endpoint)
        with pytest.raises(PermissionError, match="s3_anonymous"):
            ops.save("s3://bucket/x", zoo(), options=endpoint)
        assert not machine.requests


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aws]:
    with aws_server(tmp_path_factory.mktemp("aws")) as server:
        options = {"s3_endpoint": server.url, "force_http": "true", "s3_anonymous": "true"}
        options["header.x-amz-acl"] = "public-read"
        ops.save("s3://bucket/zoo.tensors", zoo(), options=options)
        yield server


@pytest.fixture
def asked(aws: Aws, set_environment: Callable[..., None]) -> Iterator[Recorder]:
    """Records the requests to AWS. The environment directs all of them here."""
    with recorder(aws.port) as front:
        set_environment(AWS_ENDPOINT_URL=f"http://127.0.0.1:{front.port}", AWS_REGION="us-east-1")
        yield front


def test_roles(aws: Aws, asked: Recorder, home: Path) -> None:
    (home / ".aws/config").write_text(
        f"[default]\nrole_arn = {aws.role}\nsource_profile = user\nexternal_id = a/b\n"
        f"[profile user]\naws_access_key_id = {aws.key_id}\naws_secret_access_key = {aws.secret}\n"
    )
    aws.check(True)
    check()
    sts, s3, *_ = asked.take()
    assert key_of(sts) == aws.key_id and key_of(s3).startswith("ASIA")
    with pytest.raises(PermissionError, match="AccessDenied"):
        check({"s3_profile": "user"})
    config = (home / ".aws/config").read_text()
    (home / ".aws/config").write_text(config.replace(aws.secret, "wrong"))
    with pytest.raises(PermissionError, match=r"refuses the role .* 'SignatureDoesNotMatch'"):
        check()


def test_web_identities(
    aws: Aws, asked: Recorder, home: Path, set_environment: Callable[..., None]
) -> None:
    (home / "token").write_text("header.body.signature\n")
    set_environment(AWS_WEB_IDENTITY_TOKEN_FILE=str(home / "token"), AWS_ROLE_ARN=aws.role)
    aws.check(False)
    check()
    sts, s3, *_ = asked.take()
    assert "authorization" not in sts.headers and key_of(s3).startswith("ASIA")


def test_a_machine(aws: Aws, asked: Recorder, set_environment: Callable[..., None]) -> None:
    set_environment(
        AWS_EC2_METADATA_DISABLED="false",
        AWS_EC2_METADATA_SERVICE_ENDPOINT=f"http://127.0.0.1:{asked.port}",
    )
    aws.check(False)
    check()
    token, role, credentials, s3, *_ = asked.take()
    assert (token.method, token.path) == ("PUT", "/latest/api/token")
    assert "x-aws-ec2-metadata-token" in role.headers.keys() & credentials.headers.keys()
    assert key_of(s3) == "test-key" and s3.headers["x-amz-security-token"] == "test-session-token"


def test_anonymous(aws: Aws, asked: Recorder, set_environment: Callable[..., None]) -> None:
    set_environment(AWS_ACCESS_KEY_ID=aws.key_id, AWS_SECRET_ACCESS_KEY=aws.secret)
    aws.check(False)
    check({"s3_anonymous": "true"})
    assert all("authorization" not in request.headers for request in asked.take())
    check()
    assert all(key_of(request) == aws.key_id for request in asked.take())


def test_options_are_checked(home: Path) -> None:
    for name, value in (
        ("s3_addressing", "both"),
        ("s3_anonymous", "yes"),
        ("force_http", "1"),
        ("s3_access_key_id", "a\nb"),
        ("s3_access_key_id", "alone"),
        ("s3_region", "a/b"),
        ("s3_endpoint", "ftp://host"),
    ):
        with pytest.raises(InvalidArgument):
            check({"s3_anonymous": "true"} | {name: value})
    with pytest.raises(ValueError) as error:
        check({"s3_secret_access_key": "a\nsesame"})
    assert "sesame" not in str(error.value)


def program(home: Path, seconds: int | None) -> str:
    """Sets a credential_process that returns another key each time, with an optional lifetime."""
    script = home / "keys.sh"
    ending = ',\\"Expiration\\":\\"$(tail -n 1 ' + f"{home}/expirations" + ')\\"'
    script.write_text(
        f"date -u -d '+{seconds or 0} seconds' +%Y-%m-%dT%H:%M:%SZ >> {home}/expirations\n"
        f"n=$(wc -l < {home}/expirations)\n"
        'echo "{\\"Version\\":1,\\"AccessKeyId\\":\\"AKIANUMBER$n\\",'
        '\\"SecretAccessKey\\":\\"secret $n\\",\\"SessionToken\\":\\"token $n\\"'
        f'{ending if seconds else ""}}}"\n'
    )
    (home / ".aws/config").write_text(f"[default]\ncredential_process = sh {script}\n")
    return str(script)


def expired(request: Recorded) -> bytes:
    body = b"<Error><Code>ExpiredToken</Code><Message>too late</Message></Error>"
    return b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def key_of(request: Recorded) -> str:
    return request.headers["authorization"].partition("Credential=")[2].partition("/")[0]


@pytest.fixture
def between(s3: S3, set_environment: Callable[..., None]) -> Iterator[Recorder]:
    with recorder(s3.port) as front:
        set_environment(AWS_ENDPOINT_URL_S3=f"http://127.0.0.1:{front.port}")
        yield front


def test_keys_that_expire_in_the_middle_are_replaced_before(home: Path, between: Recorder) -> None:
    """No request is signed with an expired key. A load of 48 requests outlasts a key."""
    program(home, 5)
    signed: dict[str, list[str]] = {}

    def answers(request: Recorded) -> None:
        signed.setdefault(key_of(request), []).append(request.headers["x-amz-date"])
        time.sleep(0.6)

    between.answers = answers
    options = {"chunk_size": str(256 << 10), "connections": "4"}
    loaded = ops.load("s3://bucket/large.tensors", verify="all", options=options)
    assert_same(loaded, LARGE)
    assert len(signed) > 1
    expirations = (home / "expirations").read_text().replace("-", "").replace(":", "").split()
    for key, moments in signed.items():
        assert max(moments) <= expirations[int(key.removeprefix("AKIANUMBER")) - 1], key


def test_keys_that_are_refused_in_the_middle_are_replaced(home: Path, between: Recorder) -> None:
    program(home, None)
    counts: dict[str, int] = {}

    def answers(request: Recorded) -> bytes | None:
        counts[key_of(request)] = counts.get(key_of(request), 0) + 1
        return expired(request) if counts[key_of(request)] > 20 else None

    between.answers = answers
    options = {"chunk_size": str(256 << 10)}
    loaded = ops.load("s3://bucket/large.tensors", verify="all", options=options)
    assert_same(loaded, LARGE)
    assert sorted(counts) == sorted(MORE)[: len(counts)] and len(counts) > 1


def test_keys_that_cannot_be_replaced(
    s3: S3, between: Recorder, set_environment: Callable[..., None]
) -> None:
    count = 0

    def answers(request: Recorded) -> bytes | None:
        nonlocal count
        count += 1
        return expired(request) if count > 5 else None

    between.answers = answers
    options = {"chunk_size": str(256 << 10), "connections": "1"}
    keys = {"s3_access_key_id": KEY_ID, "s3_secret_access_key": SECRET}
    with pytest.raises(PermissionError, match="ExpiredToken: too late"):
        ops.load("s3://bucket/large.tensors", threads=1, options=options | keys)
    assert count == 6
    count = 0
    set_environment(AWS_ACCESS_KEY_ID=KEY_ID, AWS_SECRET_ACCESS_KEY=SECRET)
    with pytest.raises(PermissionError, match="no new ones"):
        ops.load("s3://bucket/large.tensors", threads=1, options=options)
    assert count == 6
