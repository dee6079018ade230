"""The weight transfer engine ``tensorizer_ops`` in a real vLLM, on CPUs.

After each update the server's tokens, and their log-probabilities, are those of a server that was
started with that version. ``make test-vllm`` runs this.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from local_servers.dav_server import dav_server
from local_servers.s3_server import s3_server
from local_servers.waiting import wait_until
from support.signer import Signer
from support.vllm_server import (
    Server,
    ours,
    save_model,
    serving,
    started,
    vllm_environment,
)
from tensorizer_ops import Publisher

TRANSFER = ("--weight-transfer-config", '{"backend": "tensorizer_ops"}')
UPDATES = 20
# Versions whose answers are compared with those of servers that start with them.
COMPARED = (1, 2, 10, 20)


@pytest.fixture(scope="module")
def versions(model: Path) -> dict[int, Path]:
    """Files with the model after each step: one element in a hundred changes."""
    tensors = tensorizer_ops.load(model, copy=True)
    generator = torch.Generator().manual_seed(3)
    files = {}
    for version in range(UPDATES + 1):
        for tensor in tensors.values():
            mask = torch.rand(tensor.shape, generator=generator) < 0.01
            tensor[mask] += 0.05
        files[version] = model.with_name(f"{version}.tensors")
        tensorizer_ops.save(files[version], tensors)
    return files


@pytest.fixture(scope="module")
def expected(
    tmp_path_factory: pytest.TempPathFactory, bare: Path, versions: dict[int, Path]
) -> dict[int, list[Any]]:
    found = {}
    for version in COMPARED:
        folder = tmp_path_factory.mktemp("expected") / "server"
        with serving(folder, bare, *ours(versions[version])) as server:
            found[version] = server.complete()
    return found


@pytest.fixture(params=["folder", "http"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path / "run")
        return
    with dav_server(tmp_path / "web") as url:
        yield url


def begin(server: Server, place: str, folder: Path, **options: str | None) -> None:
    init = {"uri": place, "folder": str(folder), "interval": 0.05, "options": options}
    server.post("/init_weight_transfer_engine", {"init_info": init})


def update(server: Server, version: int, mode: str = "abort", patience: float = 100) -> None:
    server.post(f"/pause?mode={mode}")
    server.post("/start_weight_update")
    server.post("/update_weights", {"update_info": {"version": version, "patience": patience}})
    server.post("/finish_weight_update", {"weight_version": str(version)})
    server.post("/resume")


def test_updates_of_a_running_server(
    tmp_path: Path,
    place: str,
    bare: Path,
    versions: dict[int, Path],
    expected: dict[int, list[Any]],
) -> None:
    with (
        serving(
            tmp_path / "server", bare, *ours(versions[0]), *TRANSFER, VLLM_SERVER_DEV_MODE="1"
        ) as server,
        Publisher(place, whole_every=7) as publisher,
        ThreadPoolExecutor(1) as requests,
    ):
        begin(server, place, tmp_path / "node")
        for step in range(1, UPDATES + 1):
            assert publisher.publish(versions[step], step=step).number == step
            running = requests.submit(server.complete)
            update(server, step, mode=("abort", "wait", "keep")[step % 3])
            running.exception()  # one that was aborted has fewer tokens
            assert server.get("/weight_info") == {"weight_version": str(step)}
            if step in expected:
                assert server.complete() == expected[step], step
        node = tmp_path / "node"
        assert len(list(node.rglob("version-*.tensors"))) == 2


@pytest.mark.parametrize("ranks", [1, 2])
def test_elements_change_in_place(
    tmp_path: Path, bare: Path, versions: dict[int, Path], plain: dict[str, str], ranks: int
) -> None:
    place = str(tmp_path / "run")
    first = [*ours(versions[0]), *TRANSFER]
    with (
        serving(
            tmp_path / "server", bare, *first, ranks=ranks, VLLM_SERVER_DEV_MODE="1", **plain
        ) as server,
        Publisher(place) as publisher,
    ):
        begin(server, place, tmp_path / "node")
        for step in (1, 2, 3):
            publisher.publish(versions[step], step=step)
            update(server, step)
        found = server.complete()
        log = server.log.read_text()
    for step, how in {1: "layers", 2: "elements", 3: "elements"}.items():
        assert log.count(f"version {step} was taken over by {how} in") == ranks, log
    with serving(tmp_path / "other", bare, *ours(versions[3]), ranks=ranks, **plain) as server:
        assert server.complete() == found


def test_others_change_the_weights(
    tmp_path: Path, bare: Path, versions: dict[int, Path], plain: dict[str, str]
) -> None:
    """Only what an update has left is taken for its version: also if nothing differs since."""
    place = str(tmp_path / "run")
    extension = ("--worker-extension-cls", "tensorizer_ops.vllm.WorkerExtension")
    first = [*ours(versions[0]), *TRANSFER, *extension]
    with (
        serving(tmp_path / "server", bare, *first, VLLM_SERVER_DEV_MODE="1", **plain) as server,
        Publisher(place) as publisher,
    ):

        def has(version: int) -> bool:
            call = {"method": "attest", "args": [str(versions[version])]}
            (attested,) = server.post("/collective_rpc", call)["results"]
            return bool(attested["equal"])

        begin(server, place, tmp_path / "node")
        for step, (content, reload) in enumerate(
            [(1, False), (2, False), (3, True), (3, True), (3, False), (1, False)], start=1
        ):
            publisher.publish(versions[content], step=step)
            if reload:
                server.post("/collective_rpc", {"method": "reload_weights"})
                assert has(0)
                # An update of nothing does not vouch for what is there.
                server.post("/start_weight_update")
                server.post("/finish_weight_update", {"weight_version": "none"})
            update(server, step)
            assert has(content), step
        with pytest.raises(urllib.error.HTTPError):
            server.post("/start_draft_weight_update")
        log = server.log.read_text()
    assert "does not support draft model weight updates" in log
    expected = ("layers", "elements", "layers", "layers", "elements", "elements")
    for step, how in enumerate(expected, start=1):
        assert f"version {step} was taken over by {how} in" in log, log
    assert log.count("the weights are no longer those of version") == 2


def test_a_reranker_made_of_a_causal_model(
    tmp_path: Path, bare: Path, versions: dict[int, Path], plain: dict[str, str]
) -> None:
    """vLLM makes its ``score`` of the head, which is not in the model and has not changed."""
    place = str(tmp_path / "run")
    frozen = tensorizer_ops.load(versions[2], copy=True)
    frozen["lm_head.weight"] = tensorizer_ops.load(versions[1])["lm_head.weight"]
    tensorizer_ops.save(tmp_path / "2.tensors", frozen)
    files = {1: versions[1], 2: tmp_path / "2.tensors"}
    kind = {
        "architectures": ["LlamaForSequenceClassification"],
        "classifier_from_token": ["b", "a"],
        "method": "from_2_way_softmax",
    }
    given = [
        *ours(versions[0]),
        *TRANSFER,
        *("--runner", "pooling", "--hf-overrides", json.dumps(kind)),
        *("--worker-extension-cls", "tensorizer_ops.vllm.WorkerExtension"),
    ]
    with (
        serving(tmp_path / "server", bare, *given, VLLM_SERVER_DEV_MODE="1", **plain) as server,
        Publisher(place) as publisher,
    ):
        begin(server, place, tmp_path / "node")
        for step, how in {1: "layers", 2: "elements"}.items():
            publisher.publish(files[step], step=step)
            update(server, step)
            call = {"method": "attest", "args": [str(files[step])]}
            (attested,) = server.post("/collective_rpc", call)["results"]
            assert attested["equal"], attested
            assert f"version {step} was taken over by {how} in" in server.log.read_text()


def test_signed_experts(tmp_path: Path, plain: dict[str, str]) -> None:
    """A version is packed as the weights before it, and one that is not signed never arrives."""
    place = str(tmp_path / "run")
    signer = Signer(tmp_path)
    old, new = tmp_path / "old", tmp_path / "new"
    for seed, folder in enumerate((old, new)):
        save_model(folder, seed=seed, kind="mixtral")
        tensorizer_ops.save(folder / "m.tensors", tensorizer_ops.load(folder))
        tensorizer_ops.sign(folder, key=signer.private)
    extension = ("--worker-extension-cls", "tensorizer_ops.vllm.WorkerExtension")
    given = [*ours(old / "m.tensors", options=signer.options), *TRANSFER, *extension]
    with serving(tmp_path / "server", old, *given, VLLM_SERVER_DEV_MODE="1", **plain) as server:
        begin(server, place, tmp_path / "node")  # whom the loader trusts
        with Publisher(place, sign=signer.private) as publisher:
            publisher.publish(new / "m.tensors", step=1)
        update(server, 1)
        found = server.complete()
        call = {"method": "attest", "args": [str(new / "m.tensors"), signer.options]}
        (attested,) = server.post("/collective_rpc", call)["results"]
        assert attested["equal"], attested
        with Publisher(place, whole_every=1) as publisher:
            publisher.publish(old / "m.tensors", step=2)
        refused(server, 2, "it is not signed", patience=1)
        assert server.complete() == found
        begin(server, place, tmp_path / "node", trust=None)
        update(server, 2)
        assert server.complete() != found  # unsigned, as the client wants it
    with serving(tmp_path / "other", new, *ours(new / "m.tensors"), **plain) as server:
        assert server.complete() == found


def test_what_cannot_be_taken_over(
    tmp_path: Path, bare: Path, versions: dict[int, Path], expected: dict[int, list[Any]]
) -> None:
    place = str(tmp_path / "run")
    with (
        serving(
            tmp_path / "server", bare, *ours(versions[1]), *TRANSFER, VLLM_SERVER_DEV_MODE="1"
        ) as server,
        Publisher(place, whole_every=1) as publisher,
    ):
        refused(server, 1, "call init_weight_transfer_engine first")
        publisher.publish(versions[1], step=1)
        whole = next(path for path in Path(place).iterdir() if path.name.startswith("00000001"))
        whole.write_bytes(whole.read_bytes()[:-100])
        begin(server, place, tmp_path / "node")
        refused(server, 2, "has not come within 0.1 seconds", patience=0.1)
        # A damaged version never arrives.
        refused(server, 1, "has not come within 1 seconds: ", patience=1)
        assert server.complete() == expected[1]
        tensors = tensorizer_ops.load(versions[2])
        lost = "model.layers.1.mlp.down_proj.weight"
        del tensors[lost]
        publisher.publish(tensors, step=2)
        refused(server, 2, f"lacks the tensor '{lost}'")
        assert "between the versions 2 and None" in server.log.read_text()
        publisher.publish(versions[2], step=3)
        update(server, 3)
        assert server.complete() == expected[2]
        # Now there is a version to go back to.
        publisher.publish(tensors, step=4)
        refused(server, 4, f"lacks the tensor '{lost}'")
        assert "the weights are those of version 3 again" in server.log.read_text()
        assert server.complete() == expected[2]
        publisher.publish(versions[10], step=5)
        update(server, 5)
        assert server.complete() == expected[10]


def refused(server: Server, version: int, why: str, patience: float = 100) -> None:
    with pytest.raises(urllib.error.HTTPError) as refusal:
        update(server, version, patience=patience)
    assert why in refusal.value.read().decode() + server.log.read_text()
    server.post("/resume")


def test_the_example(tmp_path: Path) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "rl" / "run.py"
    done = subprocess.run(
        [sys.executable, str(example), str(tmp_path)],
        env=vllm_environment(tmp_path),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step 5: version 5, paused for" in done.stdout
    assert "weights of the server: 5" in done.stdout
    assert "gives the same tokens" in done.stdout


def test_two_ranks_share_what_one_follows(
    tmp_path: Path, bare: Path, versions: dict[int, Path]
) -> None:
    place = str(tmp_path / "run")
    first = [*ours(versions[0]), *TRANSFER]
    with (
        serving(tmp_path / "server", bare, *first, ranks=2, VLLM_SERVER_DEV_MODE="1") as server,
        Publisher(place) as publisher,
    ):
        begin(server, place, tmp_path / "node")
        # An error of one call leaves the ranks in step.
        refused(server, 1, "has not come within 0.1 seconds", patience=0.1)
        with pytest.raises(urllib.error.HTTPError):
            server.post("/finish_weight_update")
        for step in (1, 2):
            publisher.publish(versions[step], step=step)
            update(server, step)
        found = server.complete()
        (folder,) = (tmp_path / "node").iterdir()
        there = sorted(path.name.split("-")[1] for path in folder.glob("version-*"))
        assert there == ["1", "2"]
        server.post("/shutdown_weight_transfer_engine")
        assert not folder.exists()
    with serving(tmp_path / "started", bare, *ours(versions[2]), ranks=2) as server:
        assert server.complete() == found


TRAINER = """
import itertools, json, sys
from tensorizer_ops import Publisher
place, options, *files = sys.argv[1:]
with Publisher(place, fenced=False, options=json.loads(options), whole_every=4) as publisher:
    for step in itertools.count():
        print(publisher.publish(files[step % len(files)], step=step).number, flush=True)
"""


def test_trainer_and_server_are_killed(
    tmp_path: Path, bare: Path, versions: dict[int, Path], expected: dict[int, list[Any]]
) -> None:
    """Others go on where they were: the weights come from S3, and stay on the node."""
    with s3_server(tmp_path / "s3") as s3:
        place, options = s3.uri("run"), s3.options()
        server_arguments = [*ours(versions[0]), *TRANSFER]

        def start(name: str) -> AbstractContextManager[Server]:
            variables = s3.environment() | {"VLLM_SERVER_DEV_MODE": "1"}
            return started(tmp_path / name, bare, *server_arguments, **variables)

        with start("server") as server:
            files = [str(versions[1]), str(versions[2])]
            trainer = subprocess.Popen(
                [sys.executable, "-c", TRAINER, place, json.dumps(options), *files],
                stdout=subprocess.PIPE,
                text=True,
            )
            assert trainer.stdout is not None
            wait_until(server.answers, server.process, server.log)
            init = {"uri": place, "folder": str(tmp_path / "node"), "options": options}
            server.post("/init_weight_transfer_engine", {"init_info": init})
            last = [int(trainer.stdout.readline()) for _ in range(5)][-1]
            trainer.kill()
            trainer.wait()
            with Publisher(place, fenced=False, options=options) as publisher:
                version = publisher.publish(versions[10], step=10).number
                assert version > last
            update(server, version)
            assert server.complete() == expected[10]
        # Its end was SIGKILL, for all of its processes.
        with start("other") as server:
            wait_until(server.answers, server.process, server.log)
            server.post("/init_weight_transfer_engine", {"init_info": init})
            update(server, version)
            assert server.complete() == expected[10]
