"""Files of the Hugging Face Hub, by hf:// URIs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save as to_safetensors

import tensorizer_ops
from local_servers.hub_server import TOKEN, Hub, Repository, hub_server
from support.samples import assert_same, sample
from support.signer import Signer
from tensorizer_ops import errors
from tensorizer_ops._base.folder import Folder

MODEL = {f"layer {i}.weight": sample(torch.float32, (200, 50 + i), i) for i in range(6)}
OTHER = {name: tensor + 1 for name, tensor in MODEL.items()}
PR = "refs/pr/1"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    with hub_server() as server:
        repository = server.repositories["org/Model-1.5"] = Repository()
        repository.commit(files_of(OTHER), PR, "v1")
        repository.commit(files_of(MODEL))
        yield server


def files_of(model: dict[str, torch.Tensor]) -> dict[str, bytes]:
    """One model in one file, and in two with an index."""
    first, second = (dict(list(model.items())[i::2]) for i in range(2))
    index = {
        "weight_map": {
            **dict.fromkeys(first, "a.safetensors"),
            **dict.fromkeys(second, "b.safetensors"),
        }
    }
    return {
        "model.safetensors": to_safetensors(model),
        "sub folder/small.safetensors": to_safetensors({"x": torch.ones(2)}),
        "shards/a.safetensors": to_safetensors(first),
        "shards/b.safetensors": to_safetensors(second),
        "shards/model.safetensors.index.json": json.dumps(index).encode(),
    }


def in_order(model: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return dict(sorted(model.items()))


def load(hub: Hub, place: str, token: str = "") -> dict[str, torch.Tensor]:
    return tensorizer_ops.load(f"hf://{place}", options=hub.options(token))


def test_signed_names_are_those_of_the_hub(hub: Hub, tmp_path: Path) -> None:
    """The Hub decodes nothing, so that `%2E` is not a dot."""
    model = tmp_path / "model"
    model.mkdir()
    names = ("a.json", "a%2Ejson", "a.json?b", "a.json#b")
    for name in names:
        (model / name).write_text(name)
    signer = Signer(tmp_path / "keys")
    tensorizer_ops.sign(model, key=signer.private)
    files = {path.name: path.read_bytes() for path in model.iterdir()}
    repository = hub.repositories["org/signed"] = Repository()
    repository.commit(files)
    options = hub.options() | signer.options
    folder = Folder("hf://org/signed", options)
    assert [folder.read(name).decode() for name in names] == list(names)
    repository.commit(files | dict.fromkeys(names, files["a.json"]))
    for name in names[1:]:
        with pytest.raises(errors.HashMismatch):
            Folder("hf://org/signed", options).read(name)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("org/Model-1.5", MODEL),
        ("models/org/Model-1.5/model.safetensors", MODEL),
        ("org/Model-1.5@main/model.safetensors", MODEL),
        ("org/Model-1.5@v1", OTHER),
        (f"org/Model-1.5@{PR}/model.safetensors", OTHER),
        ("org/Model-1.5@refs%2Fpr%2F1", OTHER),
        ("org/Model-1.5/shards/model.safetensors.index.json", MODEL),
        ("org/Model-1.5/shards", MODEL),
        ("org/Model-1.5@v1/shards", OTHER),
        ("org/Model-1.5/sub folder/small.safetensors", {"x": torch.ones(2)}),
    ],
)
def test_places(hub: Hub, place: str, expected: dict[str, torch.Tensor]) -> None:
    loaded = load(hub, place)
    assert_same({name: loaded[name] for name in expected}, expected)
    assert len(loaded) == len(expected)


def test_parts_are_read_by_ranges(hub: Hub) -> None:
    big = {"first": torch.arange(2_000_000), "last": torch.arange(10)}
    hub.repositories["org/big"] = Repository()
    hub.repositories["org/big"].commit({"model.safetensors": to_safetensors(big)})
    uri = "hf://org/big/model.safetensors"
    loaded = tensorizer_ops.load(uri, names=["last"], options=hub.options())
    assert torch.equal(loaded["last"], big["last"])
    # One request finds the other server; later ones go there.
    assert [request.elsewhere for request in hub.requests].count(False) == 1


def test_one_commit_is_read_whatever_becomes_of_the_branch(hub: Hub) -> None:
    repository = hub.repositories["org/Model-1.5"]
    with tensorizer_ops.Reader("hf://org/Model-1.5/shards", options=hub.options()) as reader:
        assert len(reader) == len(MODEL)
        repository.commit(files_of(OTHER))
        assert_same({name: reader[name] for name in sorted(MODEL)}, dict(sorted(MODEL.items())))
    commits = {request.path.split("/")[4] for request in hub.requests if not request.elsewhere}
    assert len(commits - {"main"}) == 1


def test_signatures_that_expire_are_renewed(hub: Hub) -> None:
    hub.valid_for = 3
    big = {"a": torch.arange(3_000_000), "b": torch.arange(100)}
    hub.repositories["org/big"] = Repository()
    hub.repositories["org/big"].commit({"model.safetensors": to_safetensors(big)})
    options = {**hub.options(), "chunk_size": "4194304", "connections": "1"}
    assert_same(tensorizer_ops.load("hf://org/big", options=options), big)
    assert len(hub.uses) > 1


LARGE = {f"{i}": sample(torch.float32, (1024, 1024 + i), i) for i in range(5)}


@pytest.fixture
def with_marks(hub: Hub) -> Hub:
    """A large and a small file with marks in the header, the first tensor and the last one."""
    for name, model in {"large": LARGE, "small": {"a": torch.ones(9), "b": torch.ones(9)}}.items():
        marked = {key: tensor.clone() for key, tensor in model.items()}
        for key, mark in ((min(marked), b"FIRST..."), (max(marked), b"LAST....")):
            marked[key].view(-1)[-2:] = torch.frombuffer(bytearray(mark), dtype=torch.float32)
        repository = hub.repositories[f"org/{name}"] = Repository()
        repository.commit({"model.safetensors": to_safetensors(marked, {"mark": "HEADER"})})
    return hub


@pytest.mark.parametrize("name", ["large", "small"])
@pytest.mark.parametrize("mark", [b"HEADER", b"FIRST", b"LAST", None])
def test_a_whole_file_is_verified_by_the_digest_of_the_hub(
    with_marks: Hub, name: str, mark: bytes | None
) -> None:
    uri, options = f"hf://org/{name}", with_marks.options()
    expected = tensorizer_ops.load(uri, options=options)
    into = {key: torch.full_like(tensor, 7) for key, tensor in expected.items()}
    if mark is None:
        assert_same(tensorizer_ops.load(uri, verify="all", options=options), expected)
        tensorizer_ops.load_into(into, uri, verify="all", options=options)
        assert_same(into, expected)
        tensorizer_ops.verify(uri, options=options)
        return
    with_marks.damaged = (mark, mark.lower())
    tensorizer_ops.load(uri, options=options)
    digest = "SHA-256" if name == "large" else "SHA-1 of git"
    for check in (
        lambda: tensorizer_ops.load(uri, verify="all", options=options),
        lambda: tensorizer_ops.load_into(into, uri, verify="all", options=options),
        lambda: tensorizer_ops.verify(uri, options=options),
    ):
        with pytest.raises(tensorizer_ops.errors.HashMismatch, match=f"the {digest} of all"):
            check()
    assert not any(tensor.any() for tensor in into.values())


@pytest.mark.parametrize("threads", [1, 4])
def test_small_reads_are_hashed_in_the_order_of_the_file(hub: Hub, threads: int) -> None:
    many = {f"{i:04}": torch.full((i % 300,), i) for i in range(4000)}
    hub.repositories["org/many"] = Repository()
    hub.repositories["org/many"].commit({"model.safetensors": to_safetensors(many)})
    options = {**hub.options(), "chunk_size": "65536"}
    for ceiling in ("2MiB", "48MiB"):
        loaded = tensorizer_ops.load(
            "hf://org/many",
            verify="all",
            threads=threads,
            options={**options, "memory_ceiling": ceiling},
        )
        assert_same(in_order(loaded), many)


def test_shards_and_their_index_are_verified(hub: Hub) -> None:
    uri, options = "hf://org/Model-1.5/shards", hub.options()
    loaded = tensorizer_ops.load(uri, verify="all", options=options)
    assert_same(in_order(loaded), MODEL)
    hub.damaged = (b'": "a.safe', b'":  "a.saf')
    with pytest.raises(tensorizer_ops.errors.HashMismatch, match="SHA-1 of git"):
        tensorizer_ops.load(uri, options=options)
    last = MODEL["layer 5.weight"].numpy().tobytes()[-16:]
    hub.damaged = (last, b"x" * 16)
    with pytest.raises(tensorizer_ops.errors.HashMismatch, match=r"b.safetensors.*SHA-256"):
        tensorizer_ops.load(uri, verify="all", options=options)


def test_parts_are_not_verified_by_the_digest_of_the_hub(hub: Hub) -> None:
    uri, options = "hf://org/Model-1.5", hub.options()
    with pytest.raises(ValueError, match="a part of it cannot be verified: it keeps no hashes"):
        tensorizer_ops.load(uri, names=["layer 1.weight"], verify="all", options=options)
    with tensorizer_ops.Reader(uri, options=options) as reader:
        for _ in range(2):
            assert_same(in_order(reader.load(verify="all")), MODEL)
            part = {"layer 1.weight": reader["layer 1.weight"]}
            assert_same(part, {"layer 1.weight": MODEL["layer 1.weight"]})


def test_repositories_that_were_renamed(hub: Hub) -> None:
    hub.renamed["old/name"] = "org/Model-1.5"
    assert_same(load(hub, "old/name/model.safetensors"), load(hub, "org/Model-1.5"))


@pytest.mark.parametrize("way", ["option", "HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME"])
def test_the_token_is_sent_to_the_hub_only(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: str
) -> None:
    private = hub.repositories["org/private"] = Repository(private=True)
    private.commit(files_of(MODEL))
    place = "org/private/model.safetensors"
    with pytest.raises(FileNotFoundError, match="or it is private: there is no token"):
        load(hub, place)
    (tmp_path / "token").write_text(TOKEN + "\n")
    values = {"HF_TOKEN": TOKEN, "HF_TOKEN_PATH": tmp_path / "token", "HF_HOME": tmp_path}
    if way in values:
        monkeypatch.setenv(way, str(values[way]))
    hub.requests.clear()
    assert_same(load(hub, place, "" if way in values else TOKEN), MODEL)
    sent = {request.elsewhere: request.headers.get("authorization") for request in hub.requests}
    assert sent == {False: f"Bearer {TOKEN}", True: None}
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    if way in values:
        with pytest.raises(FileNotFoundError, match="there is no token"):
            load(hub, place)


@pytest.mark.parametrize(
    ("place", "error", "match"),
    [
        ("org/none/m.safetensors", FileNotFoundError, "no such repository, or it is private"),
        ("org/Model-1.5@v9/m.safetensors", FileNotFoundError, "has no such revision"),
        ("org/Model-1.5/m.safetensors", FileNotFoundError, "the revision has no such file"),
        ("org/gated/m.safetensors", PermissionError, "accept its terms at .*/org/gated; there is"),
        ("org/empty", FileNotFoundError, "names no file, and none in it has the name of a model"),
        ("org", ValueError, "names no repository: write hf://ORG/MODEL/FILE"),
        ("org/a b/m.safetensors", ValueError, "names no repository"),
        ("org/m@/m.safetensors", ValueError, "empty revision"),
        ("org/m/../../x/m.safetensors", ValueError, "segment"),
    ],
)
def test_errors(hub: Hub, place: str, error: type[Exception], match: str) -> None:
    hub.repositories["org/gated"] = Repository(gated=True)
    hub.repositories["org/empty"] = Repository()
    hub.repositories["org/empty"].commit({"README.md": b"#"})
    with pytest.raises(error, match=match) as info:
        load(hub, place)
    assert TOKEN not in str(info.value)


def test_nothing_is_asked_offline(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match="HF_HUB_OFFLINE is set, so the Hub is not asked"):
        load(hub, "org/Model-1.5")
    assert not hub.requests


def test_the_endpoint_must_encrypt() -> None:
    with hub_server() as hub, pytest.raises(ValueError, match="which is not encrypted"):
        tensorizer_ops.load("hf://a/b", options={"hf_endpoint": hub.url})


def test_nothing_is_saved_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"huggingface_hub.upload_file\(\)"):
        tensorizer_ops.save("hf://org/model/m.tensors", MODEL)
