"""Where the certificate authorities of the system are found."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from local_servers.waiting import LAST_RESORT
from local_servers.web import Web, nginx, openssl

METADATA = {"from": "a server with a certificate"}
VARIABLES = {"AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"}
PROGRAM = """
import json, sys, tensorizer_ops
print(tensorizer_ops.metadata(sys.argv[1], options=json.loads(sys.argv[2])))
"""


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    with nginx(tmp_path_factory.mktemp("web")) as server:
        file = server.root / "m.tensors"
        tensorizer_ops.save(file, {"x": torch.ones(3)}, metadata=METADATA)
        (server.root / "bucket").symlink_to(".")
        yield server


def metadata_from(web: Web, *before: str, place: str = "https", **environment: str) -> str:
    """Return what a new process reads, started by the command `before`, or its last error."""
    options = {"retries": "0"}
    if place == "s3":
        options |= {"s3_endpoint": web.tls_url(""), "s3_addressing": "path"}
        options |= {"s3_access_key_id": "a", "s3_secret_access_key": "b"}
    uri = web.tls_url("m.tensors") if place == "https" else "s3://bucket/m.tensors"
    command = [*before, sys.executable, "-c", PROGRAM, uri, json.dumps(options)]
    given = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run(
        command, env=given | environment, capture_output=True, text=True, timeout=LAST_RESORT
    )
    return (done.stdout or done.stderr).strip().splitlines()[-1]


def test_the_environment_names_a_file(web: Web, tmp_path: Path) -> None:
    assert metadata_from(web, SSL_CERT_FILE=web.ca) == str(METADATA)
    assert "certificate" in metadata_from(web)


@pytest.mark.parametrize("name", ["CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_the_variables_of_other_clients(web: Web, tmp_path: Path, name: str) -> None:
    for place in ("https", "s3"):
        assert metadata_from(web, place=place, **{name: web.ca}) == str(METADATA)
    shutil.copy(web.ca, tmp_path / "ca.pem")
    openssl(tmp_path, "rehash", ".")
    assert metadata_from(web, **{name: str(tmp_path)}) == str(METADATA)
    # The file must exist.
    said = metadata_from(web, **{name: str(tmp_path / "nowhere")})
    assert "InvalidArgument" in said
    assert f"{tmp_path}/nowhere" in said
    assert f"which the environment variable {name} names" in said


def test_the_order_of_the_variables(web: Web, tmp_path: Path) -> None:
    names = ["CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"]
    for first, *others in (names, names[1:]):
        later = dict.fromkeys(others, str(tmp_path / "nowhere"))
        assert metadata_from(web, **later, **{first: web.ca}) == str(METADATA)


def test_the_variables_of_aws_s_tools(web: Web, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(f"[profile p]\nca_bundle = {web.ca}\n[profile none]\n")
    files = {"AWS_CONFIG_FILE": str(config), "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none")}
    bundle = {"AWS_CA_BUNDLE": web.ca}
    assert metadata_from(web, place="s3", **files, **bundle) == str(METADATA)
    assert metadata_from(web, place="s3", **files, AWS_PROFILE="p") == str(METADATA)
    assert "certificate" in metadata_from(web, place="s3", **files, AWS_PROFILE="none")
    # The variable comes before the profile, and both before the variables of other clients.
    nowhere = str(tmp_path / "nowhere")
    other = {"AWS_PROFILE": "p", "CURL_CA_BUNDLE": web.ca}
    said = metadata_from(web, place="s3", **files, **other, AWS_CA_BUNDLE=nowhere)
    assert nowhere in said
    assert "variable AWS_CA_BUNDLE names" in said
    # They are not for other servers.
    assert "certificate" in metadata_from(web, **bundle)


@pytest.mark.parametrize("place", ["/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"])
def test_other_distributions_keep_them_elsewhere(web: Web, place: str) -> None:
    script = f'mount -t tmpfs none /etc/ssl && cp "{web.ca}" {place} && exec "$@"'
    elsewhere = ["unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh"]
    if subprocess.run([*elsewhere, "true"], capture_output=True).returncode:
        pytest.skip("this machine does not let a process mount a folder of its own")
    assert metadata_from(web, *elsewhere) == str(METADATA)


def test_a_system_without_authorities(web: Web) -> None:
    script = (
        "mount -t tmpfs none /etc/ssl && { [ ! -d /etc/pki ] || mount -t tmpfs none /etc/pki; }"
    )
    without = ["unshare", "--mount", "--map-root-user", "sh", "-c", f'{script} && exec "$@"', "sh"]
    if subprocess.run([*without, "true"], capture_output=True).returncode:
        pytest.skip("this machine does not let a process mount a folder of its own")
    said = metadata_from(web, *without)
    assert "this system has no certificate authorities where they usually are: install" in said
