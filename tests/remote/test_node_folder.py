"""Processes of a machine that share what they fetch: the option ``node_folder``."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from local_servers.redis_server import RedisServer
from local_servers.s3_server import S3
from local_servers.web import Web, nginx
from support.ranks import Ranks, run_ranks
from support.samples import assert_same
from tensorizer_ops._front import serving

# What ranks of a server take of the tensors of a model, as a list of parts.
TAKEN = {
    "tensor parallel": """
        if tensor.dim() < 2:
            return [tensor]
        dim = 1 if "down" in name else 0
        length = tensor.shape[dim] // size
        return [tensor.narrow(dim, rank * length, length)]
    """,
    "pipeline stages": """
        return [tensor] if int(name.split(".")[1]) * size // LAYERS == rank else []
    """,
    "experts": """
        return list(tensor[rank::size]) if "experts" in name else [tensor]
    """,
    "whole": """
        return [tensor]
    """,
}
LAYERS = 8

# Reports the digest of each part that the rank takes.
RANK = f"""
import hashlib
from tensorizer_ops._front.serving import Settings, weights
uri, node, taken, killed = given
LAYERS = {LAYERS}
scope = {{"rank": rank, "size": size, "LAYERS": LAYERS}}
exec("def take(name, tensor):\\n" + taken, scope)
found = {{}}
options = {{"node_folder": node}} if node else {{}}
for name, tensor in weights(Settings({{"uri": uri, "verify": "all", "options": options}}), uri):
    parts = [torch.empty(part.shape, dtype=part.dtype).copy_(part)
             for part in scope["take"](name, tensor)]
    found[name] = [hashlib.sha256(part.numpy()).hexdigest() for part in parts]
    if killed == str(rank) and name.startswith("layers.3"):
        os.kill(os.getpid(), signal.SIGKILL)
report(found)
"""

# Makes a process one that is in no group.
ALONE = """
import types
from tensorizer_ops._front import serving
serving.dist = types.SimpleNamespace(is_available=lambda: False)
"""


@pytest.fixture(scope="module")
def model() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for layer in range(LAYERS):
        shapes = {"norm": (512,), "up": (2048, 512), "down": (512, 2048), "experts": (16, 128, 256)}
        for name, shape in shapes.items():
            tensors[f"layers.{layer}.{name}"] = torch.randn(shape, generator=generator)
    return tensors


@pytest.fixture
def file(web: Web, model: dict[str, torch.Tensor]) -> Iterator[Path]:
    path = web.root / "node.tensors"
    tensorizer_ops.save(path, model, hashes="chunked")
    os.utime(path, (1_600_000_000, 1_600_000_000))
    web.requests()
    yield path
    path.unlink()


def expected(model: dict[str, torch.Tensor], kind: str, rank: int, size: int) -> dict[str, Any]:
    scope: dict[str, Any] = {"rank": rank, "size": size, "LAYERS": LAYERS}
    exec("def take(name, tensor):\n" + TAKEN[kind], scope)
    return {
        name: [
            hashlib.sha256(part.contiguous().numpy()).hexdigest()
            for part in scope["take"](name, tensor)
        ]
        for name, tensor in model.items()
    }


def run(where: Path, uri: str, node: Path | str, kind: str, count: int, killed: str = "") -> Ranks:
    return run_ranks(where, RANK, uri, node, TAKEN[kind], killed, count=count)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("kind", TAKEN)
def test_ranks_fetch_each_byte_once(
    tmp_path: Path,
    web: Web,
    file: Path,
    model: dict[str, torch.Tensor],
    kind: str,
    count: int,
) -> None:
    done = run(tmp_path / "run", web.url(file.name), tmp_path / "node", kind, count)
    for rank, found in enumerate(done.reports):
        assert found == expected(model, kind, rank, count)
    assert file.stat().st_size <= web.served() <= 1.02 * file.stat().st_size


def test_bytes_that_nobody_wanted(tmp_path: Path, web: Web) -> None:
    """They are read along with those that somebody wants, and are right for others."""
    tensors = {"wide": torch.randn(64, 1 << 16)} | {f"small{i}": torch.randn(9) for i in range(40)}
    path = web.root / "along.tensors"
    tensorizer_ops.save(path, tensors, hashes="all")
    os.utime(path, (1_600_000_000, 1_600_000_000))
    options = {"node_folder": str(tmp_path / "node")}
    with tensorizer_ops.Reader(web.url(path.name), options=options) as first:
        tensorizer_ops.load_slices(first, {"wide": (slice(None), slice(0, (1 << 16) - 2000))})
        first.load(names=[f"small{i}" for i in range(0, 40, 2)])
        assert_same(tensorizer_ops.load(web.url(path.name), options=options), tensors)


def test_engines_that_know_nothing_of_each_other(
    tmp_path: Path, web: Web, file: Path, model: dict[str, torch.Tensor]
) -> None:
    done = run_ranks(
        tmp_path / "run",
        ALONE + RANK,
        web.url(file.name),
        tmp_path / "node",
        TAKEN["whole"],
        "",
        count=2,
    )
    for rank, found in enumerate(done.reports):
        assert found == expected(model, "whole", rank, 2)
    assert web.served() <= 1.02 * file.stat().st_size


def test_other_ranks_go_on_when_one_is_killed(
    tmp_path: Path, web: Web, file: Path, model: dict[str, torch.Tensor]
) -> None:
    done = run(tmp_path / "run", web.url(file.name), tmp_path / "node", "whole", 3, killed="1")
    assert done.statuses == [0, -9, 0]
    assert done.reports == [expected(model, "whole", 0, 3), None, expected(model, "whole", 2, 3)]
    # What it had not put into the file is fetched again: some requests at most.
    assert web.served() <= 1.5 * file.stat().st_size


def test_the_file_of_the_node_goes_with_its_last_user(
    shared_memory: Path, web: Web, file: Path, model: dict[str, torch.Tensor]
) -> None:
    options = {"node_folder": str(shared_memory / "made")}
    with tensorizer_ops.Reader(web.url(file.name), options=options) as reader:
        assert len(reader) == len(model)
        (node,) = (shared_memory / "made").iterdir()
        assert node.stat().st_mode & 0o777 == 0o600
        assert_same(tensorizer_ops.load(web.url(file.name), options=options, verify="all"), model)
        assert node.exists()
        web.requests()
        assert_same(tensorizer_ops.load(web.url(file.name), options=options, verify="all"), model)
        assert web.served() == 4096  # the answer that has the version of the file
    assert not node.exists()


def test_a_server_keeps_it_for_ranks_that_begin_later(
    tmp_path: Path,
    web: Web,
    file: Path,
    model: dict[str, torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timers: list[threading.Timer] = []
    monkeypatch.setattr(threading.Timer, "start", lambda timer: timers.append(timer))
    node = tmp_path / "node"
    settings = serving.Settings({"uri": web.url(file.name), "options": {"node_folder": str(node)}})
    assert_same(dict(serving.weights(settings, "")), model)
    assert len(list(node.iterdir())) == 1
    (timer,) = timers
    assert timer.interval >= 60
    assert timer.daemon
    timer.function()
    assert not list(node.iterdir())


def test_files_whose_urls_differ_only_in_their_parameters(tmp_path: Path, web: Web) -> None:
    """As if a server chose the file by them: nginx ignores them, and gives both the same ETag."""
    path = web.root / "chosen.tensors"
    tensorizer_ops.save(path, {"w": torch.zeros(1000)})
    os.utime(path, (1_600_000_000, 1_600_000_000))
    options = {"node_folder": str(tmp_path / "node")}
    with tensorizer_ops.Reader(web.url("chosen.tensors?file=1"), options=options) as reader:
        assert_same(dict(reader), {"w": torch.zeros(1000)})
        tensorizer_ops.save(path, {"w": torch.ones(1000)})
        os.utime(path, (1_600_000_000, 1_600_000_000))
        other = tensorizer_ops.load(web.url("chosen.tensors?file=2"), options=options)
        assert_same(other, {"w": torch.ones(1000)})
        names = [node.name for node in (tmp_path / "node").iterdir()]
        assert all(re.fullmatch(r"tensorizer_ops-load-[0-9a-f]{32}", name) for name in names)


def test_servers_whose_urls_look_alike(tmp_path: Path) -> None:
    """Their ports and folders could be logins, if an "@" ended these in the path."""
    options = {"node_folder": str(tmp_path / "node")}
    with nginx(tmp_path / "other") as other, nginx(tmp_path / "own") as own:
        for web, folder, value in ((other, "x@y", 666), (own, "models@y", 1)):
            file = web.root / folder / "m.tensors"
            file.parent.mkdir()
            tensorizer_ops.save(file, {"w": torch.full((1000,), value)})
            os.utime(file, (1_600_000_000, 1_600_000_000))
        host = socket.gethostname()
        theirs = f"http://{host}:{other.port}/x@y/m.tensors"
        with tensorizer_ops.Reader(theirs, options=options) as reader:
            assert_same(dict(reader), {"w": torch.full((1000,), 666)})
            ours = f"http://{host}:{own.port}/models@y/m.tensors"
            found = tensorizer_ops.load(ours, options=options)
            assert_same(found, {"w": torch.full((1000,), 1)})


def test_encrypted_files_stay_encrypted(
    tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODE_KEY", "5e" * 32)
    tensors = {"w": torch.arange(100_000)}
    key = {"key": "env:NODE_KEY"}
    tensorizer_ops.save(web.root / "secret.tensors", tensors, options={**key, "kdf": "min"})
    options = {**key, "node_folder": str(tmp_path / "node")}
    with tensorizer_ops.Reader(web.url("secret.tensors"), options=options) as reader:
        assert_same(dict(reader), tensors)
        (node,) = (tmp_path / "node").iterdir()
        size = (web.root / "secret.tensors").stat().st_size
        assert node.read_bytes()[:size] == (web.root / "secret.tensors").read_bytes()


def test_s3(tmp_path: Path, s3: S3) -> None:
    tensors = {"w": torch.arange(1_000_000)}
    tensorizer_ops.save(s3.uri("node.tensors"), tensors, options=s3.options())
    options = s3.options(node_folder=str(tmp_path / "node"))
    with tensorizer_ops.Reader(s3.uri("node.tensors"), options=options) as reader:
        assert_same(tensorizer_ops.load(s3.uri("node.tensors"), options=options), tensors)
        assert_same(dict(reader), tensors)
        # A new object is another file of the node.
        newer = {"w": tensors["w"] + 1}
        tensorizer_ops.save(s3.uri("node.tensors"), newer, options=s3.options())
        assert_same(tensorizer_ops.load(s3.uri("node.tensors"), options=options), newer)


def test_a_shared_model_of_several_files(tmp_path: Path, web: Web) -> None:
    tensors = {f"w{i}": torch.full((100_000,), i) for i in range(4)}
    folder = web.root / "sharded"
    options = {"max_shard_size": "1MB"}
    tensorizer_ops.save(folder / "model.safetensors", tensors, options=options)
    shared = {"node_folder": str(tmp_path / "node")}
    uri = web.url("sharded/model.safetensors.index.json")
    with tensorizer_ops.Reader(uri, options=shared) as reader:
        assert_same(dict(reader), tensors)
        assert len(list((tmp_path / "node").iterdir())) >= 4


def test_where_it_cannot_be_done(
    tmp_path: Path, web: Web, file: Path, redis: RedisServer, model: dict[str, torch.Tensor]
) -> None:
    options = {"node_folder": str(tmp_path / "node")}
    tensorizer_ops.save(redis.url("m"), {"w": torch.ones(3)})
    for uri in (web.url(f"no-ranges/{file.name}"), redis.url("m")):
        with pytest.raises(ValueError, match="option 'node_folder' needs a server that supports"):
            tensorizer_ops.load(uri, options=options)
    (tmp_path / "plain").write_text("")
    with pytest.raises(OSError, match=f"cannot create '{tmp_path}/plain/node'"):
        tensorizer_ops.load(
            web.url(file.name), options={"node_folder": str(tmp_path / "plain" / "node")}
        )
    assert os.listdir(tmp_path) == ["plain"]
    # A file of this machine is shared by the system already.
    assert_same(tensorizer_ops.load(file, options=options), model)
    assert not (tmp_path / "node").exists()
