"""Models of Hugging Face in ``torch.distributed.checkpoint``: safetensors files and their index."""

from __future__ import annotations

import filecmp
import json
import os
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import tensorizer_ops
from local_servers.azure_server import Azure
from local_servers.hub_server import Repository, hub_server
from local_servers.s3_server import S3
from support.ranks import TENSORS, run_ranks
from support.samples import assert_same
from support.shards import write_shards
from tensorizer_ops import checkpoint, errors
from tensorizer_ops.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
INDEX = "model.safetensors.index.json"

ALL = (
    "import warnings\nimport torch.distributed.checkpoint as dcp\n"
    "from tensorizer_ops.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter\n"
    + TENSORS
    + """
del full["middle"], tensors["middle"]  # safetensors has no such type
full['"quoted"\\n\\u00e9'] = tensors['"quoted"\\n\\u00e9'] = torch.ones(3)
"""
)
SAVED = (
    ALL
    + """
where, one, how = given[0], given[1], json.loads(given[2])
dcp.save(tensors, storage_writer=HuggingFaceStorageWriter(where, **how))
if rank == 0:
    options = how.get("options", {})
    hashes = how.get("hashes", "chunked")
    tensorizer_ops.save(f"{one}/model.safetensors", full, hashes=hashes, options=options,
                        metadata={"format": "pt"})
    os.system(f"cp -r {one} {one}.all")
    tensorizer_ops.save(f"{one}.all/all.safetensors", full, hashes="none")
"""
)
# Into other shards than were saved.
LOADED = (
    ALL
    + """
wanted = {}
for name, whole in full.items():
    place = [Shard(1 if whole.ndim > 1 else 0)] if whole.ndim and name != "plain" else None
    for state, value in ((wanted, whole), (tensors, torch.zeros_like(whole))):
        state[name] = distribute_tensor(value, line, place, src_data_rank=None) if place else value
where, options = given[0], json.loads(given[1])
reader = HuggingFaceStorageReader(where, options=options, verify=given[2])
dcp.load(tensors, storage_reader=reader)
for name, tensor in tensors.items():
    found, local = (one.to_local() if hasattr(one, "to_local") else one
                    for one in (tensor, wanted[name]))
    assert found.dtype == local.dtype and found.shape == local.shape
    assert torch.equal(*(one.contiguous().view(-1).view(torch.uint8) for one in (found, local)))
"""
)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"hashes": "none"},
        {"options": {"max_shard_size": "1MB", "fsync": "false"}},
    ],
)
def test_the_files_are_those_of_one_process(tmp_path: Path, how: dict[str, Any]) -> None:
    ours, one = tmp_path / "ours", tmp_path / "one"
    run_ranks(tmp_path / "save", SAVED, ours, one, json.dumps(how))
    names = sorted(os.listdir(one))
    assert len(names) == (1 if "options" not in how else 8)
    assert sorted(os.listdir(ours)) == names
    assert filecmp.cmpfiles(ours, one, names, shallow=False)[0] == names
    stored: dict[str, torch.Tensor] = {}
    for name in names:
        if name != INDEX:
            stored |= safetensors.torch.load_file(ours / name)
    wanted = tensorizer_ops.load(tmp_path / "one.all" / "all.safetensors")
    assert stored.keys() == wanted.keys()
    assert_same({name: stored[name] for name in wanted}, wanted)
    for count in (2, 4):
        verify = how.get("hashes", "all")  # "none", if there are none
        run_ranks(tmp_path / f"load{count}", LOADED, ours, "{}", verify, count=count)


@pytest.mark.parametrize("place", ["s3", "azure"])
def test_stores(tmp_path: Path, request: pytest.FixtureRequest, place: str) -> None:
    server: S3 | Azure = request.getfixturevalue(place)
    uri, options = server.uri("run/7"), server.options()
    for round, most in enumerate(("3MB", "6MB", "1GB")):
        how = {"options": {**options, "max_shard_size": most}}
        code = ALL + (
            "dcp.save(tensors, storage_writer=HuggingFaceStorageWriter(given[0], "
            "**json.loads(given[1])))"
        )
        run_ranks(tmp_path / f"save{round}", code, uri, json.dumps(how))
        run_ranks(tmp_path / f"load{round}", LOADED, uri, json.dumps(options), "all", count=2)
        assert server.uploads() == []
    if place == "s3":
        assert s3_names(server) == ["run/7/model.safetensors"]


def s3_names(server: Any) -> list[str]:
    return sorted(str(name) for name in server.objects())


BOTH = """
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from tensorizer_ops import checkpoint
line = init_device_mesh("cpu", (size,))
def made(zero=False):
    generator = torch.Generator().manual_seed(3)
    def new(placement, dtype, *shape):
        whole = torch.randn(shape, generator=generator).to(dtype)
        whole = torch.zeros_like(whole) if zero else whole
        return distribute_tensor(whole, line, [placement], src_data_rank=None)
    return {
        "rows": new(Shard(0), torch.bfloat16, 7, 33),
        "columns": new(Shard(1), torch.float32, 9, 11),
        "few": new(Shard(0), torch.float16, 2, 3), "same": new(Replicate(), torch.float32, 5)}
def check(state):
    for name, wanted in made().items():
        assert torch.equal(state[name].full_tensor(), wanted.full_tensor()), name
folder, what = given
mapping = {"rows": 1, "columns": 2, "few": 1, "same": 2}
if what == "save":
    state = made()
    for name, numbers in (("one", None), ("two", mapping)):
        ours = checkpoint.HuggingFaceStorageWriter(f"{folder}/ours-{name}", numbers)
        dcp.save(state, storage_writer=ours)
        theirs = dcp.HuggingFaceStorageWriter(
            f"{folder}/theirs-{name}", numbers, save_distributed=True, enable_consolidation=True)
        dcp.save(state, storage_writer=theirs)
else:
    for reader in (checkpoint.HuggingFaceStorageReader, dcp.HuggingFaceStorageReader):
        for name in ("ours-one", "ours-two", "theirs-one", "theirs-two"):
            state = made(zero=True)
            dcp.load(state, storage_reader=reader(f"{folder}/{name}"))
            check(state)
            if name.startswith("theirs"):
                state = made(zero=True)
                dcp.load(state, storage_reader=reader(f"{folder}/{name}/sharded"))
                check(state)
"""


def test_torchs_writer_and_reader(tmp_path: Path) -> None:
    """Each reads what the other has written, with other numbers of ranks."""
    run_ranks(tmp_path / "save", BOTH, tmp_path, "save")
    for count in (1, 2, 3):
        run_ranks(tmp_path / f"load{count}", BOTH, tmp_path, "load", count=count)
    for name in ("one", "two"):
        for theirs in (tmp_path / f"theirs-{name}").glob("model-*"):
            ours = (
                tmp_path / f"ours-{name}" / ("model.safetensors" if name == "one" else theirs.name)
            )
            loaded = safetensors.torch.load_file(theirs)
            found = safetensors.torch.load_file(ours)
            assert found.keys() == loaded.keys()
            assert all(torch.equal(found[key], loaded[key]) for key in found)
    ours, theirs = (
        json.loads((tmp_path / f"{who}-two" / INDEX).read_text()) for who in ("ours", "theirs")
    )
    assert ours["weight_map"] == theirs["weight_map"]
    assert ours["metadata"]["total_size"] == 7 * 33 * 2 + 9 * 11 * 4 + 2 * 3 * 2 + 5 * 4


LLAMA = """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import init_device_mesh
from support.hf_models import llama
from tensorizer_ops.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
torch.manual_seed(int(given[1]))
model = llama().to(torch.bfloat16)
for layer in (*model.model.layers, model):
    fully_shard(layer, mesh=init_device_mesh("cpu", (size,)))
state = get_model_state_dict(model)
if given[2] == "save":
    options = {"max_shard_size": "20kB"}
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(given[0], options=options))
    if rank == 0:
        model.config.save_pretrained(given[0])
else:
    reader = HuggingFaceStorageReader(given[0], options=json.loads(given[3]))
    dcp.load(state, storage_reader=reader)
report({name: tensor.full_tensor().float().tolist() for name, tensor in state.items()})
"""


def test_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "model"
    saved = run_ranks(tmp_path / "save", LLAMA, folder, 1, "save").reports[0]
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert saved == {name: one.float().tolist() for name, one in model.state_dict().items()}
    model.save_pretrained(tmp_path / "theirs")
    files = {path.name: path.read_bytes() for path in (tmp_path / "theirs").iterdir()}
    with hub_server() as hub:
        hub.repositories["org/model"] = repository = Repository()
        repository.commit(files)
        more = json.dumps({"hf_endpoint": hub.url, "force_http": "true"})
        given = ("hf://org/model", 2, "load", more)
        assert run_ranks(tmp_path / "load", LLAMA, *given, count=2).reports == [saved, saved]


# Of one tensor, each rank has several boxes; and what tensor parallelism cuts, FSDP cuts once more.
BOXES = """
import torch.distributed.checkpoint as dcp
from torch.distributed._shard.sharded_tensor import Shard, init_from_local_shards
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from tensorizer_ops.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
whole = torch.arange(600.0).view(24, 25)
def pieces(value):
    return init_from_local_shards([
        Shard(value[at : at + 3].clone(), ShardMetadata([at, 0], [3, 25], f"rank:{rank}/cpu"))
        for at in range(3 * rank, 24, 3 * size)], whole.shape)
def parts(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Linear(16, 7))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    return {**get_model_state_dict(model), "pieces": pieces(whole if seed else whole * 0)}
saved = parts(1)
dcp.save(saved, storage_writer=HuggingFaceStorageWriter(given[0]))
loaded = parts(0)
dcp.load(loaded, storage_reader=HuggingFaceStorageReader(given[0]))
for one, other in zip(loaded.pop("pieces").local_shards(), saved.pop("pieces").local_shards()):
    assert torch.equal(one.tensor, other.tensor)
for name, tensor in saved.items():
    assert torch.equal(tensor.to_local(), loaded[name].to_local()), name
report({name: tensor.full_tensor().tolist() for name, tensor in saved.items()})
"""


def test_several_boxes_and_strided_shards(tmp_path: Path) -> None:
    outcome = run_ranks(tmp_path / "ranks", BOXES, tmp_path / "model")
    found = safetensors.torch.load_file(tmp_path / "model" / "model.safetensors")
    assert torch.equal(found.pop("pieces"), torch.arange(600.0).view(24, 25))
    assert {name: one.tolist() for name, one in found.items()} == outcome.reports[0]


# The state is replaced by another one: of which one rank fails, or the group cannot be the one.
FAILING = """
import resource
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
from tensorizer_ops.checkpoint import HuggingFaceStorageWriter
class Failing(DefaultSavePlanner):
    def resolve_data(self, item):
        if rank == 2 and item.index.fqn == "b":
            raise OSError("this rank fails")
        return super().resolve_data(item)
line = init_device_mesh("cpu", (size,))
state = {name: distribute_tensor(torch.ones(4000, 1000), line, [Shard(0)], src_data_rank=None)
         for name in "ab"}
some = dist.new_group([0, 1])
said, kept = [], []
def failing(state, planner=None, mapping={"a": 1, "b": 2}, group=None):
    writer = HuggingFaceStorageWriter(given[0], mapping, group)
    kept.append(writer)
    try:
        dcp.save(state, storage_writer=writer, planner=planner)
    except dcp.CheckpointException as error:
        said.append({str(key): str(value[0]) for key, value in error.failures.items()})
failing(state, Failing())
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
if rank == 2:  # a write fails
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, limits[1]))
failing(state)
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
failing(state, mapping={"a": 1})
failing({**state, "step": 3})
if rank in (0, 1):
    failing(state, group=some)
else:
    failing(state)
report(said)
"""


def test_failures(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    old = {"a": torch.zeros(3), "old": torch.ones(9)}
    write_shards(folder, [{"a": old["a"]}, {"old": old["old"]}])
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    said = run_ranks(tmp_path / "ranks", FAILING, folder).reports
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    for rank in range(4):
        failing, write, mapping, step, group = said[rank]
        assert failing.keys() == {"0", "1", "2", "3"}
        assert "this rank fails" in failing["2"] and "rank 2: this rank" in failing["0"]
        assert all("fqn_to_index_mapping has no file for 'b'" in text for text in mapping.values())
        assert len(mapping) == 4
        assert "File too large" in write["2"] and "rank 2: " in write["3"]
        assert all("state['step'] is no tensor" in text for text in step.values())
        assert all("has 2: give it the same group" in text for text in group.values())


def save(folder: Path, state: dict[str, Any], *given: Any, **how: Any) -> None:
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(folder, *given, **how), no_dist=True)


def loaded(folder: str | Path, *names: str, shape: Any = (4,), **how: Any) -> dict[str, Any]:
    state = {name: torch.zeros(shape) for name in names}
    dcp.load(state, storage_reader=HuggingFaceStorageReader(folder, **how), no_dist=True)
    return state


def test_models_replace_each_other(tmp_path: Path) -> None:
    """Of one process, in one file and several. Nothing of an older model is left."""
    two = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", INDEX]
    turns: list[Any] = [{"a": 1, "b": 2}, {"b": 1, "a": 2}, None, {"a": 7, "b": 3}, None, None]
    for value, mapping in enumerate(turns):
        state = {name: torch.full((4,), value + at) for at, name in enumerate("ab")}
        save(tmp_path, state, mapping)
        found = loaded(tmp_path, "a", "b", verify="all")
        assert found["a"].tolist() == [value] * 4 and found["b"].tolist() == [value + 1] * 4
        names = sorted(os.listdir(tmp_path))
        if mapping is None:
            assert names == ["model.safetensors"]
        elif value == 1:  # beside the older model
            assert len(names) == 3 and names[-1] == INDEX and names != two
        else:
            assert names == two
    text = safetensors.safe_open(tmp_path / "model.safetensors", "pt").metadata()
    assert text["format"] == "pt"
    (tmp_path / "model.safetensors").chmod(0o640)
    save(tmp_path, {"a": torch.ones(4), "b": torch.ones(4)}, {"a": 1, "b": 2})
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("model-*")} == {0o640}


def test_a_save_that_does_not_finish_leaves_no_model(tmp_path: Path) -> None:
    save(tmp_path, {"a": torch.ones(4)})
    before = sorted(os.listdir(tmp_path))
    writer = HuggingFaceStorageWriter(tmp_path, {"a": 1, "b": 2})
    planner = dcp.DefaultSavePlanner()
    state = {"a": torch.zeros(4), "b": torch.zeros(4)}

    def begin() -> None:
        writer.reset()
        planner.set_up_planner(state, is_coordinator=True)
        plan = writer.prepare_local_plan(planner.create_local_plan())
        (plan,) = writer.prepare_global_plan(planner.create_global_plan([plan])[0])
        writer.write_data(plan, planner)

    begin()
    names = [name for name in os.listdir(tmp_path) if not name.startswith(".")]
    assert sorted(names) == before
    assert loaded(tmp_path, "a")["a"].tolist() == [1] * 4
    begin()
    writer.finish(dcp.Metadata({}), [])
    assert sorted(os.listdir(tmp_path)) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        INDEX,
    ]


def test_async_save(tmp_path: Path) -> None:
    code = """
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
from tensorizer_ops.checkpoint import HuggingFaceStorageWriter
group = dist.new_group(backend="gloo")
line = init_device_mesh("cpu", (size,))
whole = torch.arange(40.0).view(8, 5)
state = {"a": distribute_tensor(whole, line, [Shard(1)], src_data_rank=None)}
writer = HuggingFaceStorageWriter(given[0], group=group)
for number in range(2):
    saving = dcp.async_save(state, storage_writer=writer, process_group=group)
    state["a"].to_local().add_(1)
    saving.result()
"""
    run_ranks(tmp_path / "ranks", code, tmp_path / "model", count=2)
    found = loaded(tmp_path / "model", "a", shape=(8, 5))["a"]
    assert torch.equal(found, torch.arange(40.0).view(8, 5) + 1)


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidArgument, match="both fqn_to_index_mapping and"):
        HuggingFaceStorageWriter(tmp_path, {"a": 1}, options={"max_shard_size": 1})
    with pytest.raises(CheckpointException, match="folder, or to a prefix in S3"):
        save("redis://localhost/x", {"a": torch.ones(1)})  # type: ignore[arg-type]
    with pytest.raises(CheckpointException, match="needs a path or a checkpoint_id"):
        save(None, {"a": torch.ones(1)})  # type: ignore[arg-type]
    with pytest.raises(CheckpointException, match="is on the meta device"):
        save(tmp_path, {"a": torch.ones(1, device="meta")})
    assert os.listdir(tmp_path) == []
    writer = HuggingFaceStorageWriter("s3://b/c", options={"s3_secret_access_key": "hidden"})
    assert repr(writer) == "<tensorizer_ops.checkpoint.HuggingFaceStorageWriter: 's3://b/c'>"


def ranks_files(folder: Path, *infos: Any) -> None:
    """Write files of ranks, each with two rows of `w`, which begin where the infos say."""
    folder.mkdir()
    for number, info in enumerate(infos, start=1):
        name = f"shard-{number:05}-model-00001-of-00001.safetensors"
        text = info if isinstance(info, str) else json.dumps({"w": {"saved_offsets": info}})
        metadata = {"DCP_SHARDING_INFO": text, "DCP_VERSION": "1.0", "format": "pt"}
        safetensors.torch.save_file({"w": torch.ones(2, 3)}, folder / name, metadata)


def test_hostile_files_of_ranks(tmp_path: Path) -> None:
    ranks_files(tmp_path / "good", [0, 0], [2, 0])
    assert loaded(tmp_path / "good", "w", shape=(4, 3))["w"].sum() == 12
    bad: list[Any] = [
        *([0, 0], [1, 0], [3, 0], [0], [0, 0, 0], [2, -1], [2, 0.5], [1 << 63, 0], [True, 0]),
        *(["2", "0"], "2", {}, None, "[", "[1]", "3", '{"w": {}}', '{"w": 3}', "[" * 100_000),
    ]
    for number, info in enumerate(bad):
        folder = tmp_path / str(number)
        ranks_files(folder, [0, 0], info)
        with pytest.raises(errors.InvalidFormat, match=r"DCP_SHARDING_INFO .* is damaged"):
            HuggingFaceStorageReader(folder).read_metadata()
    first = tmp_path / "good" / "shard-00001-model-00001-of-00001.safetensors"
    safetensors.torch.save_file({"w": torch.ones(2, 3).half()}, first, {"DCP_SHARDING_INFO": "{}"})
    with pytest.raises(errors.InvalidFormat, match="different types"):
        HuggingFaceStorageReader(tmp_path / "good").read_metadata()
    first.unlink()
    with pytest.raises(errors.InvalidFormat, match="lacks some of it"):
        HuggingFaceStorageReader(tmp_path / "good").read_metadata()


def test_hostile_models(tmp_path: Path) -> None:
    index = write_shards(tmp_path, [{"a": torch.ones(4)}, {"b": torch.ones(4)}])
    first = tmp_path / "model-00001-of-00002.safetensors"
    second = tmp_path / "model-00002-of-00002.safetensors"
    good = json.loads(index.read_text())
    assert loaded(tmp_path, "a", "b")["b"].sum() == 4
    for name in ("../model.safetensors", "/etc/passwd", second.name):
        index.write_text(json.dumps({"weight_map": {**good["weight_map"], "a": name}}))
        with pytest.raises(errors.InvalidFormat):
            HuggingFaceStorageReader(tmp_path).read_metadata()
    index.write_text(json.dumps(good))
    first.unlink()
    with pytest.raises(errors.NotFound, match="00001"):
        HuggingFaceStorageReader(tmp_path).read_metadata()
    index.unlink()
    write_shards(tmp_path, [{"a": torch.ones(4)}, {"b": torch.ones(4)}]).unlink()
    with pytest.raises(errors.Error, match="index"):  # shards of a save that did not end
        HuggingFaceStorageReader(tmp_path).read_metadata()


def test_damage_is_found(tmp_path: Path) -> None:
    save(tmp_path, {"a": torch.ones(1 << 16)})
    (file,) = tmp_path.iterdir()
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    loaded(tmp_path, "a", shape=1 << 16)
    with pytest.raises(CheckpointException, match="tensor 'a'"):
        loaded(tmp_path, "a", shape=1 << 16, verify="all")


def test_names_are_public() -> None:
    assert {"HuggingFaceStorageReader", "HuggingFaceStorageWriter"} <= set(checkpoint.__all__)
