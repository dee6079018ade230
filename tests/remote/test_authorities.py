"""Where the certificate authorities of the system are found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from local_servers.web import Web, nginx

METADATA = {"from": "a server with a certificate"}
PROGRAM = "import sys, tensorizer_ops; print(tensorizer_ops.metadata(sys.argv[1]))"


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    with nginx(tmp_path_factory.mktemp("web")) as server:
        file = server.root / "m.tensors"
        tensorizer_ops.save(file, {"x": torch.ones(3)}, metadata=METADATA)
        yield server


def metadata_from(web: Web, *before: str, **environment: str) -> str:
    """Return what a new process reads, started by the command `before`, or its last error."""
    command = [*before, sys.executable, "-c", PROGRAM, web.tls_url("m.tensors")]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=60
    )
    return (done.stdout or done.stderr).strip().splitlines()[-1]


def test_the_environment_names_a_file(web: Web, tmp_path: Path) -> None:
    assert metadata_from(web, SSL_CERT_FILE=web.ca) == str(METADATA)
    assert "certificate" in metadata_from(web)
    assert "certificate" in metadata_from(web, SSL_CERT_FILE=str(tmp_path / "nowhere"))


@pytest.mark.parametrize("place", ["/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"])
def test_other_distributions_keep_them_elsewhere(web: Web, place: str) -> None:
    script = f'mount -t tmpfs none /etc/ssl && cp "{web.ca}" {place} && exec "$@"'
    elsewhere = ["unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh"]
    if subprocess.run([*elsewhere, "true"], capture_output=True).returncode:
        pytest.skip("this machine does not let a process mount a folder of its own")
    assert metadata_from(web, *elsewhere) == str(METADATA)
