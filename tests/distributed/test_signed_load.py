"""Loads of signed files that ranks share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint

import tensorizer_ops
from support.ranks import run_ranks
from support.signer import Signer
from tensorizer_ops import checkpoint

LOAD = """
gathers, trust, uri, *others = given
if gathers == "True":
    from tensorizer_ops._distributed import peers
    peers.host = lambda: str(rank)
if others and rank == 1:
    uri = others[0]
try:
    loaded = distributed.load(uri, options={"trust": f"file:{trust}"})
    report(sum(tensor.sum().item() for tensor in loaded.values()))
except Exception as error:
    report(f"{type(error).__name__}: {error}")
"""


@pytest.fixture
def model(tmp_path: Path, signer: Signer) -> Path:
    tensors = {f"t{i}": torch.ones(1_000_000, dtype=torch.int32) for i in range(4)}
    folder = tmp_path / "model"
    tensorizer_ops.save(folder / "m.tensors", tensors)
    tensorizer_ops.save(folder / "m.safetensors", tensors, hashes="none")
    tensorizer_ops.sign(folder, key=signer.private)
    return folder


@pytest.mark.parametrize("gathers", [False, True], ids=["one host", "several hosts"])
@pytest.mark.parametrize("name", ["m.tensors", "m.safetensors"])
def test_signed_files(
    tmp_path: Path, model: Path, signer: Signer, name: str, gathers: bool
) -> None:
    file = model / name
    ranks = run_ranks(tmp_path / "ranks", LOAD, gathers, signer.public, file)
    assert ranks.reports == [4_000_000] * 4
    content = bytearray(file.read_bytes())
    content[-1_000_000] ^= 1  # in what one rank reads
    file.write_bytes(content)
    for report in run_ranks(tmp_path / "again", LOAD, gathers, signer.public, file).reports:
        assert report.startswith("HashMismatch")
        assert "are not those that the key" in report
    file.with_name("model.sig").unlink()
    for report in run_ranks(tmp_path / "none", LOAD, gathers, signer.public, file).reports:
        assert report.startswith("Crypto")
        assert "it is not signed" in report


def test_all_ranks_load_the_same_signed_model(tmp_path: Path, model: Path, signer: Signer) -> None:
    """Others differ where no rank looks before it loads."""
    tensors = tensorizer_ops.load(model / "m.safetensors", copy=True)
    tensors["t3"][7] = 2
    other = tmp_path / "other" / "m.safetensors"
    tensorizer_ops.save(other, tensors, hashes="none")
    tensorizer_ops.sign(other, key=signer.private)
    where = (True, signer.public, model / "m.safetensors", other)
    for report in run_ranks(tmp_path / "ranks", LOAD, *where).reports:
        assert "rank 1 loads something else" in report


SERVE = """
from tensorizer_ops._front.serving import Settings, weights
from tensorizer_ops._front.weight import Weight
trust, *places = given
found = {}
try:
    settings = Settings({"uri": places[rank], "options": {"trust": f"file:{trust}"}})
    for name, tensor in weights(settings, places[rank]):
        half = len(tensor) // size
        found[name] = torch.empty(half).copy_(tensor[rank * half :][:half]).sum().item()
    report(found)
except Exception as error:
    report(f"{len(found)} {type(error).__name__}: {error}")
"""


@pytest.mark.parametrize("whole", [True, False], ids=["folder", "file"])
def test_all_ranks_of_a_server_read_the_same_signed_model(
    tmp_path: Path, signer: Signer, whole: bool
) -> None:
    for value, name in enumerate(("older", "newer")):
        tensors = {"small": torch.full((4,), value), "large": torch.full((600_000,), value)}
        file = tmp_path / name / "m.tensors"
        tensorizer_ops.save(file, tensors)
        tensorizer_ops.sign(file.parent if whole else file, key=signer.private)

    def load(*names: str) -> list[object]:
        places = [tmp_path / name if whole else tmp_path / name / "m.tensors" for name in names]
        folder = tmp_path / f"ranks {names}"
        return run_ranks(folder, SERVE, signer.public, *places, count=2).reports

    assert load("newer", "newer") == [{"small": 2, "large": 300_000}] * 2
    for report in load("older", "newer"):
        assert str(report).startswith("0 HashMismatch")
        assert "ranks read different signed models" in str(report)
    for report in load("newer", "none"):
        assert str(report).startswith("0 NotFound")
    if whole:  # what the server reads of the folder itself is signed, too
        shutil.copytree(tmp_path / "newer", tmp_path / "added")
        (tmp_path / "added" / "config.json").write_text("{}")
        for report in load("newer", "added"):
            assert str(report).startswith("0 Crypto")


CHECKPOINT = """
import torch.distributed.checkpoint as dcp
from tensorizer_ops import checkpoint
trust, kind, *places = given
reader = getattr(checkpoint, kind)(places[rank], options={"trust": f"file:{trust}"})
state = {"w": torch.zeros(3)}
try:
    dcp.load(state, storage_reader=reader)
    report(state["w"].tolist())
except dcp.api.CheckpointException as error:
    report(str(error))
"""


@pytest.mark.parametrize("kind", ["HuggingFaceStorageReader", "TensorizerStorageReader"])
def test_all_ranks_read_the_same_signed_checkpoint(
    tmp_path: Path, signer: Signer, kind: str
) -> None:
    older, newer = tmp_path / "older", tmp_path / "newer"
    writer = getattr(checkpoint, kind.replace("Reader", "Writer"))(older)
    torch.distributed.checkpoint.save({"w": torch.zeros(3)}, storage_writer=writer, no_dist=True)
    shutil.copytree(older, newer)  # with the same list of files
    (file,) = (path for path in newer.iterdir() if path.name != "checkpoint.tensors")
    metadata = tensorizer_ops.metadata(file)
    tensorizer_ops.save(file, {"w": torch.ones(3)}, metadata=metadata)
    for place in (older, newer):
        tensorizer_ops.sign(place, key=signer.private)

    def load(*places: str) -> list[object]:
        folder = tmp_path / f"ranks {places}"
        given = (signer.public, kind, *(tmp_path / place for place in places))
        return run_ranks(folder, CHECKPOINT, *given, count=2).reports

    assert load("newer", "newer") == [[1.0] * 3] * 2
    for report in load("older", "newer"):
        assert "ranks read different signed checkpoints" in str(report)


PARTS = """
from torch.distributed.device_mesh import init_device_mesh
trust, how, *places = given
parts = {"tp_plan": "auto"}
if how == "device_mesh":
    parts = {"device_mesh": init_device_mesh("cpu", (size,))}
if how == "torchrun":  # transformers initialises torch.distributed
    dist.destroy_process_group()
    elastic = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ.update({**elastic, **address, **ranks})
try:
    options = {"trust": f"file:{trust}"}
    tensorizer_ops.hf.from_pretrained(places[rank], **parts, options=options)
    report("loaded")
except tensorizer_ops.errors.HashMismatch as error:
    report(str(error))
"""


@pytest.mark.parametrize("how", ["tp_plan", "device_mesh", "torchrun"])
def test_all_ranks_read_parts_of_the_same_signed_model(
    tmp_path: Path, signer: Signer, how: str
) -> None:
    pytest.importorskip("transformers")
    from support.hf_models import llama

    model = llama()
    for place in ("older", "newer"):
        for parameter in model.parameters():
            parameter.data.add_(1)
        tensorizer_ops.hf.save_pretrained(model, tmp_path / place)
        tensorizer_ops.sign(tmp_path / place, key=signer.private)
    shutil.copytree(tmp_path / "older", tmp_path / "damaged")
    weights = tmp_path / "damaged" / "model.tensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    expected = {"older": "loaded", "newer": "ranks read different signed models"}
    if how != "torchrun":  # which ends the others if one fails before they meet
        expected["damaged"] = "are not those that the key"
    for second, text in expected.items():
        given = (PARTS, signer.public, how, tmp_path / "older", tmp_path / second)
        for report in run_ranks(tmp_path / f"with {second}", *given, count=2).reports:
            assert text in report


CHAIN = """
import shutil
from pathlib import Path
from tensorizer_ops.checkpoint import Chain
private, trust, pattern, *places = given
places = [Path(place) for place in places]
how = {"options": {"trust": f"file:{trust}"}}
if "/" in pattern or rank == 0:
    group = None if "/" in pattern else False
    Chain(places[0], sign=Path(private), **how).save(1, {"w": torch.ones(3)}, group)
dist.barrier()
if rank == 0:  # what is signed again under its name
    shutil.copytree(*places)
    (file,) = places[1].glob(pattern)
    tensors, metadata = tensorizer_ops.load(file, copy=True), tensorizer_ops.metadata(file)
    tensorizer_ops.save(file, tensors, metadata={**metadata, "again": "yes"})
    tensorizer_ops.sign(file, key=Path(private))
dist.barrier()
same = Chain(places[1], **how).load({"w": torch.zeros(3)}).step
try:
    report(Chain(places[rank], **how).load({"w": torch.zeros(3)}).step)
except tensorizer_ops.errors.InvalidFormat as error:
    report(f"{same} {error}")
"""


@pytest.mark.parametrize("pattern", ["step-1-*.tensors", "step-1-*/checkpoint.tensors"])
def test_all_ranks_read_the_same_signed_step(tmp_path: Path, signer: Signer, pattern: str) -> None:
    where = (signer.private, signer.public, pattern, tmp_path / "older", tmp_path / "newer")
    for report in run_ranks(tmp_path / "ranks", CHAIN, *where, count=2).reports:
        assert report.startswith("1 no step of")
        assert report.endswith("ranks read different signed checkpoints")
