"""Files that were signed in whole, of which no part can be checked alone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from local_servers.web import Web
from support.raw_format import INDEX_START, Block, pack
from support.samples import assert_same
from support.scripted import Asked, scripted
from support.signer import Signer
from tensorizer_ops import errors, trust


@pytest.fixture
def large(web: Web, signer: Signer) -> Iterator[tuple[Path, dict[str, torch.Tensor]]]:
    """A model on a web server that is too large to be one shard, signed in whole."""
    folder = web.root / "whole"
    folder.mkdir()
    tensors = {f"t{i}": torch.randn(8 << 18) for i in range(3)}
    tensors |= {f"small{i}": torch.randn(1000) for i in range(40)}
    tensors["last"] = torch.randn(5, 7)
    file = folder / "m.tensors"
    tensorizer_ops.save(file, tensors)
    os.utime(file, (1_600_000_000, 1_600_000_000))
    tensorizer_ops.sign(file, key=signer.private, method="files")
    yield file, tensors
    shutil.rmtree(folder)


Large = tuple[Path, dict[str, torch.Tensor]]


def filled(uri: Path | str, tensors: dict[str, torch.Tensor], **how: Any) -> dict[str, Any]:
    outputs = {name: torch.zeros_like(value) for name, value in tensors.items()}
    tensorizer_ops.load_into(outputs, uri, **how)
    return outputs


def test_files_that_were_signed_in_whole_are_read_once(
    large: Large, web: Web, signer: Signer, tmp_path: Path
) -> None:
    file, tensors = large
    uri, options = web.url("whole/m.tensors"), signer.options
    bundle = file.with_name("m.tensors.sig").stat().st_size

    def served_once() -> bool:
        return 1 <= (web.served() - bundle) / file.stat().st_size <= 1.02

    web.served()
    for verify in ("none", "all"):
        assert_same(tensorizer_ops.load(uri, options=options, verify=verify), tensors)
        assert served_once()
    assert_same(filled(uri, tensors, options=options), tensors)
    assert served_once()
    tensorizer_ops.verify(uri, options=options)
    assert served_once()
    assert tensorizer_ops.digest(uri, options=options) == tensorizer_ops.digest(file)
    assert served_once()
    copy = tmp_path / "copy.tensors"
    tensorizer_ops.convert(uri, copy, source_options=options)
    assert served_once()
    assert_same(tensorizer_ops.load(copy), tensors)
    trust.verify(uri, policy=options["trust"])
    assert served_once()
    reader = torch.classes.tensorizer.Reader(uri, options)
    assert_same(reader.load(None, torch.device("cpu"), None, "none", False, 0), tensors)
    assert reader.names() == [*tensors]  # what was checked is known
    last = reader.load(["last"], torch.device("cpu"), None, "none", False, 0)["last"]
    assert torch.equal(last, tensors["last"])
    assert_same(tensorizer_ops.load(file, options=options), tensors)


def test_parts_of_files_that_were_signed_in_whole(
    large: Large, web: Web, signer: Signer, tmp_path: Path
) -> None:
    file, tensors = large
    uri = web.url("whole/m.tensors")
    first = signer.options | {"hash_first": "true"}
    out = torch.empty(5, 7)
    model = torch.nn.Module()
    model.last = torch.nn.Parameter(torch.zeros(5, 7))

    def read(place: Path | str, options: dict[str, str]) -> Any:
        with tensorizer_ops.Reader(place, options=options) as reader:
            return reader["last"]

    parts: list[Callable[[Path | str, dict[str, str]], Any]] = [
        read,
        lambda place, options: tensorizer_ops.load(place, names=["last"], options=options)["last"],
        lambda place, options: tensorizer_ops.load(
            place, slices={"t0": slice(0, 5)}, options=options
        ),
        lambda place, options: tensorizer_ops.load_into(
            {"last": out}, place, strict=False, options=options
        ),
        lambda place, options: tensorizer_ops.load_into(
            model, place, strict=False, options=options
        ),
        lambda place, options: tensorizer_ops.info(place, options=options),
        lambda place, options: torch.ops.tensorizer.names(str(place), options=options),
        lambda place, options: tensorizer_ops.update(
            place, tmp_path / "updated.tensors", source_options=options
        ),
        lambda place, options: tensorizer_ops.convert(
            place, tmp_path / "part.tensors", names=["last"], source_options=options
        ),
    ]
    for place in (file, uri):
        for part in parts:
            with pytest.raises(ValueError, match=r"it was signed in whole.*hash_first=\"true\""):
                part(place, signer.options)
            part(place, first)
    assert torch.equal(out, tensors["last"])
    assert torch.equal(model.last, tensors["last"])
    assert torch.equal(read(uri, first), tensors["last"])
    with pytest.raises(ValueError, match="'hash_first' are for loads with the option 'trust'"):
        tensorizer_ops.load(file, options={"hash_first": "true"})


@pytest.mark.parametrize("at", [3 << 20, -1])
def test_changed_files_that_were_signed_in_whole(
    large: Large, web: Web, signer: Signer, tmp_path: Path, at: int
) -> None:
    """Nothing is returned, and no file is written."""
    file, tensors = large
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    target = tmp_path / "target"
    uri, options = web.url("whole/m.tensors"), signer.options
    takes: list[Callable[[], Any]] = [
        lambda: tensorizer_ops.load(uri, options=options),
        lambda: tensorizer_ops.load(file, options=options),
        lambda: tensorizer_ops.convert(uri, target / "c.tensors", source_options=options),
        lambda: tensorizer_ops.convert(uri, target / "c.safetensors", source_options=options),
        lambda: tensorizer_ops.digest(file, options=options),
        lambda: trust.verify(uri, policy=options["trust"]),
    ]
    for take in takes:
        with pytest.raises(errors.HashMismatch, match=r"m\.tensors"):
            take()
    assert not target.exists() or not [*target.iterdir()]
    outputs = {name: torch.zeros_like(value) for name, value in tensors.items()}
    with pytest.raises(errors.HashMismatch, match=r"m\.tensors"):
        tensorizer_ops.load_into(outputs, uri, options=options)


@pytest.mark.parametrize("form", ["tensors", "safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "descriptor"])
def test_nobody_sees_a_changed_file_that_was_signed_in_whole(
    large: Large, signer: Signer, tmp_path: Path, kind: str, form: str
) -> None:
    """Nor a part of it, in a target that others see while it is written."""
    file, _ = large
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    target = tmp_path / f"target.{form}"
    if kind == "pipe":
        os.mkfifo(target)
    with open(os.open(target, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK), "rb", buffering=0) as out:
        uri = target if kind == "pipe" else f"fd:{out.fileno()}"
        with pytest.raises(errors.HashMismatch, match=r"m\.tensors"):
            tensorizer_ops.convert(
                file,
                uri,
                hashes="none",
                source_options=signer.options,
                target_options={"format": form},
            )
        assert not out.read(1)


def test_headers_in_any_order(signer: Signer, tmp_path: Path) -> None:
    """An index that nobody has compared yet cannot make a load read a file again and again."""
    dtype = b"<V2\0torch.bfloat16"
    blocks = [
        Block(f"{i:04}", "<V2", (1,), bytes(2), header={"dtype": dtype}, hashes=())
        for i in range(1000)
    ]
    content = pack(blocks, terminator=bytes(17 << 20))
    begin, size = INDEX_START, int.from_bytes(content[INDEX_START - 8 : INDEX_START], "little")
    entries = [content[at : at + size // 1000] for at in range(begin, begin + size, size // 1000)]
    content = content[:begin] + b"".join(reversed(entries)) + content[begin + size :]
    file = tmp_path / "m.tensors"
    file.write_bytes(content)
    tensorizer_ops.sign(file, key=signer.private, method="files")
    served = {f"/{path.name}": path.read_bytes() for path in (file, tmp_path / "m.tensors.sig")}
    sent = []

    def answer(asked: Asked) -> None:
        asked.say_range(served[asked.path], ETag='"1"')
        begin, last = asked.headers["range"].removeprefix("bytes=").split("-")
        sent.append(min(int(last) + 1, len(served[asked.path])) - int(begin))

    with scripted(answer) as server:
        assert len(tensorizer_ops.load(server.url(), options=signer.options)) == 1000
    assert sum(sent) < 3 * len(content)


def test_a_model_of_transformers_that_was_signed_in_whole(tmp_path: Path, signer: Signer) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=20_000, hidden_size=256, intermediate_size=64, num_hidden_layers=1
    )
    model = transformers.LlamaForCausalLM(config)
    folder = tmp_path / "llama"
    tensorizer_ops.hf.save_pretrained(model, folder)
    file = folder / "model.tensors"
    assert file.stat().st_size > 16 << 20
    tensorizer_ops.sign(folder, key=signer.private, method="files")
    loaded = tensorizer_ops.hf.from_pretrained(folder, options=signer.options)
    assert_same(loaded.state_dict(), model.state_dict())
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(errors.HashMismatch, match=r"model\.tensors"):
        tensorizer_ops.hf.from_pretrained(folder, options=signer.options)
