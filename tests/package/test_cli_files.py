"""The subcommands that write files."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import get_args

import pytest
import torch

import tensorizer_ops
from local_servers.redis_server import RedisServer
from support.command import COMMAND, TENSORS, run
from support.process import TIMEOUT, environment, warm_python
from support.samples import assert_same, flip, zoo
from support.shards import split, write_shards
from tensorizer_ops import Hashes
from tensorizer_ops._front.inspection import File


def test_convert_between_formats(model: Path, tmp_path: Path) -> None:
    there, back = tmp_path / "m.safetensors", tmp_path / "back.tensors"
    run("convert", model, there)
    assert File(there).format().name == "safetensors"
    run("convert", there, back, "--hashes", "chunked")
    assert File(back).digest_chunk() == 1 << 20
    assert_same(tensorizer_ops.load(back, verify="all"), TENSORS)
    assert "--entry" in run("convert", model, back, "--entry", "x", status=2).stderr


def test_convert_to_a_folder_asks_for_a_name(model: Path, tmp_path: Path) -> None:
    for target in (tmp_path, f"{tmp_path}/new/"):
        error = run("convert", model, target, status=3).stderr
        assert "Is a directory: name a file in it, such as model.tensors" in error


@pytest.mark.parametrize("legacy", [False, True])
def test_convert_a_checkpoint(tmp_path: Path, legacy: bool) -> None:
    torch.save(
        {"state_dict": {**TENSORS, "version": 3}, "epoch": 7},
        tmp_path / "m.pt",
        _use_new_zipfile_serialization=not legacy,
    )
    done = run("convert", tmp_path / "m.pt", tmp_path / "m.safetensors")
    assert "epoch, version" in done.stderr
    assert_same(tensorizer_ops.load(tmp_path / "m.safetensors", names=["a", "b"]), TENSORS)
    assert tensorizer_ops.metadata(tmp_path / "m.safetensors") == {"format": "pt"}
    assert run("convert", tmp_path / "m.pt", tmp_path / "m.tensors", "-q").stderr == ""


def test_weights_beside_others_are_taken_and_named(tmp_path: Path) -> None:
    moments = {"state": {0: {"exp_avg": torch.ones(2)}}}
    torch.save(
        {"model": TENSORS, "ema": {"c": torch.ones(1)}, "optimizer": moments}, tmp_path / "m.pt"
    )
    done = run("convert", tmp_path / "m.pt", tmp_path / "m.tensors")
    assert done.stderr.splitlines() == [
        "took 'model'; --entry takes another one: 'ema'",
        "left out: optimizer",
    ]
    assert_same(tensorizer_ops.load(tmp_path / "m.tensors"), TENSORS)


def test_deep_entries_of_a_checkpoint(tmp_path: Path) -> None:
    torch.save({"run": {"net": TENSORS}}, tmp_path / "one.pt")
    run("convert", tmp_path / "one.pt", tmp_path / "m.tensors")
    assert_same(tensorizer_ops.load(tmp_path / "m.tensors"), TENSORS)
    torch.save({"net": {"enc": TENSORS, "dec.x": {"c": torch.ones(1)}}}, tmp_path / "two.pt")
    error = run("convert", tmp_path / "two.pt", tmp_path / "m.tensors", status=3).stderr
    assert "--entry: 'net.enc', 'net.dec.x'" in error
    run("convert", tmp_path / "two.pt", tmp_path / "m.tensors", "--entry", "net.dec.x")
    assert tensorizer_ops.names(tmp_path / "m.tensors") == ["c"]


def test_checkpoints_that_are_none(tmp_path: Path) -> None:
    target = tmp_path / "m.tensors"
    layer = torch.nn.Linear(2, 2)
    torch.jit.script(layer).save(str(tmp_path / "jit.pt"))
    torch.save(layer, tmp_path / "module.pt")
    (tmp_path / "empty.pt").touch()
    (tmp_path / "text.pt").write_text("hello")
    for name, why in (
        ("jit", "TorchScript program"),
        ("module", "an object of torch.nn.modules.linear.Linear"),
        ("empty", "the file is empty"),
        ("text", "torch.save did not write it"),
    ):
        error = run("convert", tmp_path / f"{name}.pt", target, status=3).stderr
        assert error.count("\n") == 1 and why in error and "weights_only" not in error
    assert not target.exists()


def test_convert_writes_no_file_that_is_named_as_a_checkpoint(tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / "m.pt")
    before = (tmp_path / "m.pt").read_bytes()
    assert "'.pt'" in run("convert", tmp_path / "m.pt", tmp_path / "m.pt", status=2).stderr
    assert (tmp_path / "m.pt").read_bytes() == before


def test_tensors_without_data_are_named(tmp_path: Path) -> None:
    torch.save({"a": torch.empty(2, device="meta"), "b": torch.ones(1)}, tmp_path / "m.pt")
    done = run("convert", tmp_path / "m.pt", tmp_path / "m.tensors")
    assert done.stderr == "without data, because they are on the meta device: a\n"


def test_the_entry_of_a_checkpoint_is_chosen(tmp_path: Path) -> None:
    torch.save({"ema": TENSORS, "raw": {"c": torch.ones(1)}}, tmp_path / "m.ckpt")
    error = run("convert", tmp_path / "m.ckpt", tmp_path / "m.tensors", status=3).stderr
    assert "--entry" in error and "'ema', 'raw'" in error
    run("convert", tmp_path / "m.ckpt", tmp_path / "m.tensors", "--entry", "ema")
    assert_same(tensorizer_ops.load(tmp_path / "m.tensors"), TENSORS)
    run("convert", tmp_path / "m.ckpt", tmp_path / "m.tensors", "--entry", "none", status=3)


class Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_no_code_of_a_checkpoint_runs(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1), "b": Hostile(tmp_path / "made")}, tmp_path / "m.pt")
    error = run("convert", tmp_path / "m.pt", tmp_path / "m.tensors", status=3).stderr
    assert error.count("\n") == 1 and "m.pt" in error
    assert not (tmp_path / "made").exists() and not (tmp_path / "m.tensors").exists()


def test_no_weights_are_lost_beside_other_tensors(tmp_path: Path) -> None:
    rest = {"rng_state": torch.ones(5), "optimizer": {}, "step": 5}
    for name in ("model", "state_dict", "model_state_dict"):
        torch.save({**rest, name: TENSORS}, tmp_path / "m.pt")
        done = run("convert", tmp_path / "m.pt", tmp_path / "m.tensors")
        assert f"took {name!r}; --entry takes another one: ''" in done.stderr
        assert_same(tensorizer_ops.load(tmp_path / "m.tensors"), TENSORS)
    torch.save({"a": torch.ones(1), "net": {"enc": TENSORS, "dec": TENSORS}}, tmp_path / "m.pt")
    error = run("convert", tmp_path / "m.pt", tmp_path / "x.tensors", status=3).stderr
    assert "--entry: '', 'net.enc', 'net.dec'" in error
    error = run("convert", tmp_path / "m.pt", tmp_path / "x", "--entry", "net", status=3).stderr
    assert "--entry: 'enc', 'dec'" in error
    run("convert", tmp_path / "m.pt", tmp_path / "x.tensors", "--entry", "")
    assert tensorizer_ops.names(tmp_path / "x.tensors") == ["a"]


def test_keys_that_are_no_names(tmp_path: Path) -> None:
    for keys in (1, "1"), ("a", None), ("a", ("b", 1)):
        torch.save({key: torch.ones(1) for key in keys}, tmp_path / "m.pt")
        assert (
            "tensor" in run("convert", tmp_path / "m.pt", tmp_path / "m.tensors", status=3).stderr
        )
    torch.save({1: torch.ones(1), 2: torch.ones(1)}, tmp_path / "m.pt")
    run("convert", tmp_path / "m.pt", tmp_path / "m.tensors")
    assert tensorizer_ops.names(tmp_path / "m.tensors") == ["1", "2"]


def bin_folder(folder: Path, shards: list[dict[str, torch.Tensor]]) -> Path:
    folder.mkdir()
    weights = {}
    for number, shard in enumerate(shards):
        name = f"pytorch_model-{number}.bin"
        torch.save(shard, folder / name)
        weights.update(dict.fromkeys(shard, name))
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    return index


def test_an_index_lists_what_its_shards_have(tmp_path: Path) -> None:
    index = bin_folder(tmp_path / "m", [{"a": torch.ones(1)}, {"b": torch.ones(1)}])
    one, two = json.loads(index.read_text())["weight_map"].values()
    for lie in {"a": one, "b": two, "c": one}, {"b": two, "c": one}, {}:
        index.write_text(json.dumps({"weight_map": lie}))
        error = run("convert", tmp_path / "m", tmp_path / "m.tensors", status=3).stderr
        assert "list" in error and error.count("\n") == 1
        assert not (tmp_path / "m.tensors").exists()


def test_shards_with_the_same_tensor(tmp_path: Path) -> None:
    bin_folder(tmp_path / "m", [{"a": torch.ones(1)}, {"a": torch.zeros(1), "b": torch.ones(1)}])
    index = tmp_path / "m" / "pytorch_model.bin.index.json"
    names = {"a": "pytorch_model-0.bin", "b": "pytorch_model-1.bin"}
    index.write_text(json.dumps({"weight_map": names}))
    error = run("convert", tmp_path / "m", tmp_path / "m.tensors", status=3).stderr
    assert "two of its shards have the tensor 'a'" in error


def test_convert_a_hugging_face_folder(tmp_path: Path) -> None:
    shards = split({f"t{i}": torch.full((3,), float(i)) for i in range(9)}, 3)
    expected = {name: tensor for shard in shards for name, tensor in shard.items()}
    index = bin_folder(tmp_path / "bin", shards)
    for source in (index, index.parent):
        run("convert", source, tmp_path / "m.tensors")
        loaded = tensorizer_ops.load(tmp_path / "m.tensors", names=list(expected))
        assert_same(loaded, expected)
    index = write_shards(tmp_path / "safe", shards)
    for source in (index, index.parent):
        run("convert", source, tmp_path / "n.tensors")
        assert_same(tensorizer_ops.load(tmp_path / "n.tensors", names=list(expected)), expected)


@pytest.mark.parametrize(
    "index",
    [
        '{"weight_map": {"a": "../m.bin"}}',
        '{"weight_map": {"a": "/etc/passwd"}}',
        '{"weight_map": {"a": ".."}}',
        '{"weight_map": {"a": 1}}',
        '{"weight_map": []}',
        "[" * 100_000,
        "{}",
        "",
    ],
)
def test_a_wrong_index_is_refused(tmp_path: Path, index: str) -> None:
    torch.save(TENSORS, tmp_path / "m.bin")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "pytorch_model.bin.index.json").write_text(index)
    error = run("convert", folder, tmp_path / "m.tensors", status=3).stderr
    assert "pytorch_model.bin.index.json" in error
    assert not (tmp_path / "m.tensors").exists()


@pytest.mark.parametrize("hashes", get_args(Hashes))
def test_a_copy_has_the_format_and_hashes_of_its_source(tmp_path: Path, hashes: str) -> None:
    source, target = tmp_path / "m.tensors", tmp_path / "copy"
    options = {"digest_chunk": 65536} if "chunked" in hashes else {"digests": True}
    tensorizer_ops.save(source, zoo(), hashes=hashes, options=options, metadata={"k": "v"})
    run("copy", source, target)
    facts = [json.loads(run("info", path, "--json").stdout) for path in (source, target)]
    assert facts[0].pop("file") != facts[1].pop("file") and facts[0] == facts[1]
    assert_same(tensorizer_ops.load(target), zoo())


def test_a_copy_has_no_name_of_another_format(model: Path, tmp_path: Path) -> None:
    safetensors = tmp_path / "m.safetensors"
    run("convert", model, safetensors)
    for source, target in ((model, "x.SafeTensors"), (safetensors, "x.tensors")):
        assert "convert makes" in run("copy", source, tmp_path / target, status=2).stderr
        assert not (tmp_path / target).exists()
    run("copy", safetensors, tmp_path / "x.safetensors")


def test_copies_to_and_from_a_server(redis: RedisServer, model: Path, tmp_path: Path) -> None:
    safetensors = tmp_path / "m.safetensors"
    run("convert", model, safetensors)
    run("copy", safetensors, redis.url("m"), "--target-option", "ttl=600")
    run("copy", redis.url("m"), tmp_path / "back")
    assert File(tmp_path / "back").format().name == "safetensors"
    assert_same(tensorizer_ops.load(tmp_path / "back", verify="all"), TENSORS)


def test_a_damaged_file_is_not_copied(model: Path, tmp_path: Path) -> None:
    flip(model, File(model).index()[0].data_offset)
    run("copy", model, tmp_path / "copy", status=1)
    assert not (tmp_path / "copy").exists()


def test_the_copy_of_an_encrypted_file_costs_as_much_to_open(model: Path, tmp_path: Path) -> None:
    secret, copied = tmp_path / "secret.tensors", tmp_path / "copied.tensors"
    passphrase = tmp_path / "passphrase"
    passphrase.write_text("hunter22\n")
    run("encrypt", model, secret, "--passphrase-file", passphrase, "--kdf", "2,33554432")
    run("copy", secret, copied, "--passphrase-file", passphrase)
    for path in (secret, copied):
        assert "from a passphrase (2 passes over 32.0 MiB)" in run("info", path).stdout


def test_update(tmp_path: Path) -> None:
    local, newer = tmp_path / "local.tensors", tmp_path / "newer.tensors"
    tensorizer_ops.save(local, TENSORS, hashes="all")
    changed = {**TENSORS, "b": torch.zeros(4, dtype=torch.int64)}
    tensorizer_ops.save(newer, changed)
    done = run("copy", "--update", newer, local)
    assert re.fullmatch(r"fetched \d+ B, kept 24 B\n", done.stderr)
    assert_same(tensorizer_ops.load(local, verify="all"), changed)


def test_keys(model: Path, tmp_path: Path) -> None:
    old, new = tmp_path / "old.key", tmp_path / "new.key"
    for key in (old, new):
        run("keygen", key)
        assert key.stat().st_size == 32 and stat.S_IMODE(key.stat().st_mode) == 0o600
    before = old.read_bytes()
    assert before != new.read_bytes()
    run("keygen", old, status=3)
    assert old.read_bytes() == before

    secret, plain = tmp_path / "secret.tensors", tmp_path / "plain.tensors"
    run("encrypt", model, secret, "--key-file", old)
    for options in ((), ("--key-file", old)):
        shown = run("info", secret, *options).stdout
        assert "key is random; authenticates data, names and shapes\n" in shown
    run("rekey", secret, secret, "--key-file", old, "--new-key-file", new)
    run("verify", secret, "--key-file", old, status=1)
    run("verify", secret, "-o", f"key=file:{new}")
    copied = tmp_path / "copied.tensors"
    assert "encrypted" in run("copy", secret, copied, status=2).stderr
    run("copy", secret, copied, "--key-file", new)
    assert File(copied).format().encrypted
    run("decrypt", copied, plain, "-o", f"key=file:{new}")
    assert_same(tensorizer_ops.load(plain, verify="all"), TENSORS)


@pytest.mark.parametrize("command", ["copy", "diff", "bench"])
def test_streams_that_would_be_read_twice_are_refused(
    command: str, model: Path, tmp_path: Path
) -> None:
    pipe, writer = os.pipe()
    os.close(writer)
    target = {"copy": [tmp_path / "new"], "diff": [model], "bench": []}[command]
    for stream in ("/dev/stdin", "fd:0"):
        arguments = [*COMMAND[-2:], command, stream, *map(str, target)]
        done = warm_python().run(arguments, environment(), TIMEOUT, stdin=pipe)
        assert done.returncode == 2 and "only once" in done.stderr
        assert not (tmp_path / "new").exists()
    os.close(pipe)
