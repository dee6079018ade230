"""What users of other libraries type: each is an error that names what is meant here."""

from __future__ import annotations

import operator
import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import tensorizer_ops
from tensorizer_ops import checkpoint, errors, hf

load: Any = tensorizer_ops.load
save: Any = tensorizer_ops.save
TENSORS = {"encoder.weight": torch.ones(3), "bias": torch.zeros(2)}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    save("m.tensors", TENSORS)
    return "m.tensors"


def refusal(call: Callable[[], object], kind: type[Exception] = Exception) -> str:
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text and len(text) < 300
    return text


KEYWORDS: dict[str, tuple[Callable[..., object], dict[str, Any]]] = {
    ": did you mean 'device'?": (load, {"map_location": "cpu"}),
    ": did you mean 'names'?": (load, {"prefix": "encoder."}),
    ": did you mean 'dtype'?": (load, {"torch_dtype": torch.float16}),
    ": did you mean 'threads'?": (load, {"num_workers": 2}),
    ": did you mean 'verify'?": (load, {"verify_hash": True}),
    ": did you mean 'options'?": (load, {"storage_options": {}}),
    ": it is an option, so give options={'memory_ceiling': ...}": (load, {"memory_ceiling": 1}),
    ": leave it out, as no file has a pickle": (load, {"weights_only": True}),
}


@pytest.mark.parametrize("advice", KEYWORDS)
def test_keywords(model: str, advice: str) -> None:
    function, keywords = KEYWORDS[advice]
    text = refusal(lambda: function(model, **keywords), TypeError)
    assert text.startswith("load() got an unexpected keyword argument ") and text.endswith(advice)


def test_arguments_without_keywords(model: str) -> None:
    given = "load() takes 1 positional argument, and 2 were given: give the others as keywords"
    assert refusal(lambda: load(model, ["bias"]), TypeError) == f"{given}, such as names="
    assert refusal(lambda: load(model, "cpu"), TypeError) == f"{given}, such as device="
    reader: Any = tensorizer_ops.Reader(model)
    assert refusal(lambda: reader.rewrite("x.tensors", "all"), TypeError) == (
        "Reader.rewrite() takes 1 positional argument, and 2 were given: give the others as "
        "keywords, such as hashes="
    )


@pytest.mark.parametrize(
    "name", ["safetensors.load_file", "safetensors.safe_open", "hf.from_pretrained"]
)
def test_names_of_modules(name: str) -> None:
    last = name.rpartition(".")[2]
    text = refusal(lambda: getattr(tensorizer_ops, last), AttributeError)
    assert text == (
        f"module 'tensorizer_ops' has no attribute {last!r}: did you mean tensorizer_ops.{name}?"
    )
    assert callable(operator.attrgetter(name)(tensorizer_ops))


OPTIONS = {
    "endpoint_url": "s3_endpoint",
    "AWS_ENDPOINT_URL": "s3_endpoint",
    "region_name": "s3_region",
    "aws_skip_signature": "s3_anonymous",
    "max_pool_connections": "connections",
    "read_timeout": "stall_timeout",
    "account_key": "az_account_key",
    "headers": "header.NAME",
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(model: str, name: str) -> None:
    text = refusal(lambda: load(model, options={name: "1"}), errors.InvalidArgument)
    assert text == f"unknown option {name!r}: did you mean {OPTIONS[name]!r}?"


def test_sizes_and_durations_with_units(model: str, tmp_path: Path) -> None:
    fine = {
        "memory_ceiling": ("64MiB", "64mb", "0.25 GB", 100_000_000.0),
        "staging": ("1GiB",),
        "chunk_size": ("8MiB",),
        "max_bandwidth": ("10MB", "10MB/s", "0"),
        "timeout": ("1m", "0.5", "90s", "500ms", "2h", "0"),
        "kdf_limit": ("4,1GiB",),
    }
    for name, values in fine.items():
        for value in values:
            assert load(model, options={name: value}).keys() == TENSORS.keys()
    for name, value in [
        ("memory_ceiling", "1G"),
        ("memory_ceiling", "64 M iB"),
        ("memory_ceiling", "0.1KB"),
        ("memory_ceiling", "99999999TB"),
        ("memory_ceiling", "-64MB"),
        ("timeout", "1y"),
        ("timeout", "m"),
        ("chunk_size", "1kb"),
    ]:
        text = refusal(lambda: load(model, options={name: value}), errors.InvalidArgument)  # noqa: B023
        assert text.startswith(f"option {name!r} is {value!r}, and must be a number of ")
        assert ", such as " in text
    large = {f"t{i}": torch.ones(1000) for i in range(4)}
    save("s.safetensors", large, options={"max_shard_size": "8KB"})
    assert len(list(tmp_path.glob("s-*-of-00002.safetensors"))) == 2
    save("c.tensors", large, options={"digest_chunk": "64KiB"})


def test_metadata_with_numbers(model: str) -> None:
    given: Any = {"step": 7, "loss": 0.5, "best": True, "text": "x"}
    wanted = {"step": "7", "loss": "0.5", "best": "true", "text": "x"}
    save(model, TENSORS, metadata=given)
    assert tensorizer_ops.metadata(model) == wanted
    with tensorizer_ops.Writer(model, metadata=given) as writer:
        writer["x"] = torch.ones(1)
    assert tensorizer_ops.metadata(model) == wanted
    text = refusal(lambda: save(model, TENSORS, metadata={"step": [7]}), TypeError)
    assert text == "metadata['step'] is list, and must be str, int, float or bool"


def test_devices(model: str) -> None:
    for name, meant in {"gpu": "cuda", "GPU:1": "cuda:1", "cpuu": "cpu"}.items():
        text = refusal(lambda: load(model, device=name), errors.InvalidArgument)  # noqa: B023
        assert text == f"device is {name!r}: did you mean {meant!r}?"
    assert refusal(lambda: load(model, device="unlike")).startswith("device is 'unlike': ")
    if not torch.backends.mps.is_built():
        text = refusal(lambda: load(model, device="mps"), errors.InvalidArgument)
        assert text.startswith("device is 'mps', for which this torch was not built")


def test_paths(model: str, tmp_path: Path) -> None:
    for path, meant in {"n.tensors": model, "m": model, "./m.tensor": model}.items():
        for call in (load, tensorizer_ops.names, tensorizer_ops.info):
            text = refusal(lambda: call(path), errors.NotFound)  # noqa: B023
            assert text.endswith(f": No such file or directory: did you mean {meant!r}?")
    text = refusal(lambda: load("unlike"), errors.NotFound)
    assert text.endswith(f", in the working directory {os.getcwd()!r}")
    assert refusal(lambda: load(tmp_path / "unlike")).endswith("No such file or directory")
    for name in ("org/name", "meta-llama/Llama-3-8B"):
        text = refusal(lambda: load(name), errors.NotFound)  # noqa: B023
        assert f"; a model of the Hugging Face Hub is 'hf://{name}" in text
        text = refusal(lambda: hf.from_pretrained(name), errors.NotFound)  # noqa: B023
        assert f"; a model of the Hugging Face Hub is 'hf://{name}" in text
    assert "hub" not in refusal(lambda: load("org/name.tensors"))


def test_values_of_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "c.tensors"
    text = refusal(lambda: checkpoint.save(path, {"a": numpy.ones(3)}), TypeError)
    assert text.endswith("which only pickle could save: give torch.as_tensor() of it")
    state = {"models": [torch.nn.Linear(1, 1)]}
    text = refusal(lambda: checkpoint.save(path, state), TypeError)
    assert text.endswith("which only pickle could save: give its state_dict()")


def test_checkpoints_without_a_place() -> None:
    for call in (checkpoint.save, checkpoint.save_async, checkpoint.load):
        text = refusal(lambda: call({"x": torch.ones(1)}), TypeError)  # noqa: B023
        assert text.startswith("uri is dict, and must be str,")


def test_modules_and_their_states(tmp_path: Path) -> None:
    path = str(tmp_path / "m.tensors")
    module = torch.nn.Linear(2, 2)
    serializer: Any = tensorizer_ops.TensorSerializer(path)
    text = refusal(lambda: serializer.write_module(OrderedDict(module.state_dict())), TypeError)
    assert text == ("m is OrderedDict, and must be a torch.nn.Module: write_state_dict() takes one")
    text = refusal(lambda: serializer.write_state_dict(module), TypeError)
    assert text == "state_dict is Linear, and must be a dict of tensors: give its state_dict()"
    serializer.write_module(module)
    serializer.close()
    with tensorizer_ops.TensorDeserializer(path, device="cpu") as opened:
        given: Any = opened
        for call in (given.load_into_module, given.verify_module):
            assert refusal(lambda: call({}), TypeError).startswith(  # noqa: B023
                "m is dict, and must be a torch.nn.Module"
            )


def test_files_without_hashes(model: str) -> None:
    save(model, TENSORS, hashes="none")
    text = refusal(lambda: load(model, verify="all"), errors.InvalidArgument)
    assert text.endswith("saved without hashes, and convert() writes a copy with hashes")
    tensorizer_ops.convert(model, model)
    load(model, verify="all")


def test_apostrophes_are_not_escaped(tmp_path: Path) -> None:
    path = tmp_path / "it's.tensors"
    assert f'"{path}"' in refusal(lambda: load(path), errors.NotFound)
    both = tmp_path / 'it\'s "no".tensors'
    assert "it\\'s" in refusal(lambda: load(both), errors.NotFound)
