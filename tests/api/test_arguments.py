"""Arguments with wrong values or in a wrong order: each is an error that says what to give."""

from __future__ import annotations

import inspect
import io
import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import tensorizer_ops
from tensorizer_ops import Reader, _core, keys, safetensors

HIDDEN = "hidden"


def refused(call: Callable[[], object]) -> str:
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_swapped_arguments(path: str) -> None:
    tensors = {"x": torch.ones(3)}
    module = torch.nn.Linear(2, 2)
    places = "str, bytes, os.PathLike or a binary file object"
    save: Any = tensorizer_ops.save
    assert refused(lambda: save(tensors, path)) == (
        f"uri is dict, and must be {places}: the order is save(uri, tensors)"
    )
    assert "the order is save(uri, tensors)" in refused(lambda: save(module, path))
    load_into: Any = tensorizer_ops.load_into
    assert "the order is load_into(module, uri)" in refused(lambda: load_into(path, module))
    assert "the order" not in refused(lambda: load_into(path, path))
    save_file: Any = safetensors.save_file
    assert "the order is save_file(tensors, filename)" in refused(lambda: save_file(path, tensors))


def test_what_is_no_tensor_says_what_to_do(path: str) -> None:
    inner = {"w": torch.ones(2)}
    for value, advice in {
        "nested": (inner, "save that dict alone, or give what is in it names such as 't.KEY'"),
        "module": (torch.nn.Linear(2, 2), "save its state_dict()"),
        "number": (3, "save torch.as_tensor() of it"),
        "list": ([1, 2], "save torch.as_tensor() of it"),
        "tensors": ([torch.ones(1)], "such as 't.0'"),
        "text": ("hidden", "give texts as metadata="),
        "array": (numpy.ones(3), "save torch.as_tensor() of it"),
        "None": (None, "leave it out"),
        "other": (object(), "it is object"),
    }.values():
        for save in (
            tensorizer_ops.save,
            lambda *given: tensorizer_ops.save_async(*given).result(),
        ):
            text = refused(lambda save=save, value=value: save(path, {"t": value}))
            assert "tensor 't' cannot be saved: it is " in text
            assert advice in text
            assert "hidden" not in text
    text = refused(lambda: tensorizer_ops.save(path, torch.nn.Linear(2, 2)))
    assert text == "tensors is Linear, and must be a dict of tensors: give its state_dict()"
    text = refused(lambda: tensorizer_ops.save(path, [torch.ones(1)]))
    assert text == "tensors is list, and must be a dict of tensors, such as a state_dict()"
    assert not os.path.exists(path)


DISTRIBUTED = """
import sys, torch, tensorizer_ops
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
tensor = distribute_tensor(torch.ones(4), init_device_mesh("cpu", (1,)), [Shard(0)])
try:
    tensorizer_ops.save(sys.argv[1], {"w": tensor})
except ValueError as error:
    print(error)
tensorizer_ops.save(sys.argv[1], {"w": tensor.full_tensor()})
print(tensorizer_ops.load(sys.argv[1])["w"].tolist())
dist.destroy_process_group()
"""


def test_distributed_tensors(path: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DISTRIBUTED, path], capture_output=True, text=True, check=True
    )
    refusal, loaded = done.stdout.splitlines()
    assert "tensor 'w' cannot be saved: it is a DTensor" in refusal
    assert "tensorizer_ops.distributed.save() on all ranks" in refusal
    assert loaded == "[1.0, 1.0, 1.0, 1.0]"


def test_misspelt_words(path: str) -> None:
    tensors = {"encoder.weight": torch.ones(3), "encoder.bias": torch.ones(3)}
    tensorizer_ops.save(path, tensors)
    load, save = tensorizer_ops.load, tensorizer_ops.save
    calls: dict[str, Callable[[], object]] = {
        "'encoder.weight'": lambda: load(path, names=["encoder.weigth"]),
        "'encoder.bias'": lambda: load(path, names=["module.encoder.bias"]),
        "'memory_ceiling'": lambda: load(path, options={"memory_celing": 1}),
        "'crc32'": lambda: load(path, verify="crc23"),
        "'all+chunked'": lambda: save(path, tensors, hashes="all+chunk"),
        "'safetensors'": lambda: save(path, tensors, options={"format": "safetensor"}),
        "'https'": lambda: load("htps://host/m.tensors"),
        "'threads'": lambda: load(path, thread=1),
    }
    for meant, call in calls.items():
        with pytest.raises((KeyError, TypeError, ValueError)) as caught:
            call()
        assert f": did you mean {meant}?" in str(caught.value)
        assert len(str(caught.value)) < 300
    for call in (
        lambda: load(path, names=["unlike"]),
        lambda: load(path, options={"unlike": 1}),
        lambda: load(path, unlike=1),
    ):
        with pytest.raises((KeyError, TypeError, ValueError)) as caught:
            call()
        assert "did you mean" not in str(caught.value)


def test_values_of_secret_options_are_not_compared(path: str) -> None:
    tensorizer_ops.save(path, {"x": torch.ones(3)})
    text = refused(lambda: tensorizer_ops.load(path, options={"key": "namde:x"}))
    assert "namde" not in text
    assert "did you mean" not in text


HALF = HIDDEN + "\ud800"  # half of a surrogate pair, which no text of UTF-8 can have


def test_what_is_not_unicode(path: str) -> None:
    tensors = {"x": torch.ones(3)}
    tensorizer_ops.save(path, tensors)
    half = "has half of a surrogate pair, which is not Unicode"
    calls: dict[str, Callable[[], object]] = {
        "the path": lambda: tensorizer_ops.load("folder/" + HALF),
        "verify": lambda: tensorizer_ops.load(path, verify=HALF),
        "the name '\\ud800' in names": lambda: tensorizer_ops.load(path, names=["\ud800"]),
        "the name '\\ud800' in slices": lambda: tensorizer_ops.load(path, slices={"\ud800": 0}),
        "option 'key'": lambda: tensorizer_ops.load(path, options={"key": HALF}),
        "option '\\ud800'": lambda: tensorizer_ops.save(path, tensors, options={"\ud800": "x"}),
        "key": lambda: tensorizer_ops.encrypt(path, path, key=HALF),
        "secret": lambda: tensorizer_ops.set_secret("n", HALF),
        "name": lambda: keys.remove(HALF),
        "passphrase": lambda: keys.add("n", passphrase=HALF),
    }
    for what, call in calls.items():
        text = refused(call)
        assert text == f"{what} {half}"
    keys.add("n", passphrase=lambda: HALF)
    with pytest.raises(ValueError, match="passphrase") as caught:
        tensorizer_ops.save(path, tensors, options={"key": "named:n"})
    keys.remove("n")
    assert HIDDEN not in repr(caught.value)


def test_bytes_of_paths_need_not_be_unicode(tmp_path: Path) -> None:
    path = str(tmp_path / "m\udcff.tensors")
    tensorizer_ops.save(path, {"x": torch.ones(3)})
    assert os.listdir(os.fsencode(tmp_path)) == [b"m\xff.tensors"]
    assert list(tensorizer_ops.load(path)) == ["x"]


def test_numbers_that_are_too_large(path: str) -> None:
    tensors = {"x": torch.ones(3)}
    tensorizer_ops.save(path, tensors)
    large = 1 << 63
    calls: dict[str, Callable[[], object]] = {
        "threads": lambda: tensorizer_ops.load(path, threads=large),
        "version": lambda: tensorizer_ops.digest(path, version=-large - 1),
        "device": lambda: tensorizer_ops.load(path, device=10**5000),
    }
    for name, call in calls.items():
        assert refused(call) == f"{name} is a number that does not fit 64 bits"
    for number in (large - 1, -large, numpy.int64(-1)):
        with pytest.raises(ValueError, match=rf"threads is {number}, and must be from 0"):
            tensorizer_ops.load(path, threads=number)


def test_what_converts_is_accepted(path: str) -> None:
    tensors = OrderedDict(x=torch.ones(3), y=torch.zeros(3))
    untyped: Any = tensorizer_ops
    untyped.save(Path(path), tensors, threads=numpy.int64(1))
    untyped.save(path.encode(), tensors, threads=True)
    for copy in (1, numpy.bool_(True), False):
        assert list(untyped.load(path, names=tensors.keys(), copy=copy)) == ["x", "y"]
    assert list(untyped.load(path, names=("y",), device=torch.device("cpu"))) == ["y"]
    assert list(untyped.load(path, names=iter(["y"]), device="cpu")) == ["y"]
    assert untyped.digest(path, version=numpy.int64(1)) == untyped.digest(path)
    assert list(safetensors.load(bytearray(safetensors.save(dict(tensors))))) == ["x", "y"]


def test_functions_show_what_they_take() -> None:
    assert tensorizer_ops.load.__name__ == "load"
    assert tensorizer_ops.load.__doc__
    assert list(inspect.signature(tensorizer_ops.save).parameters)[:2] == ["uri", "tensors"]


@pytest.mark.parametrize(
    "uri", ["s3:/bucket/k", "gs:bucket/k", " s3://bucket/k", Path("s3://bucket/k")], ids=repr
)
def test_a_uri_that_lost_its_slashes_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str | Path
) -> None:
    monkeypatch.chdir(tmp_path)
    said = r"a URI (has two slashes: did you mean '|begins with )(s3://bucket/k'|(s3|gs)://,)"
    with pytest.raises(ValueError, match=said):
        tensorizer_ops.save(uri, {"a": torch.ones(1)})
    assert list(tmp_path.iterdir()) == []


def test_pairs_of_names_and_tensors_are_no_dict(tmp_path: Path) -> None:
    pairs = [("a", torch.ones(1)), ("a", torch.zeros(1))]
    with pytest.raises(TypeError, match="tensors is list"):
        tensorizer_ops.save(tmp_path / "m", pairs)


def test_swapped_arguments_of_a_writer(tmp_path: Path) -> None:
    with tensorizer_ops.Writer(tmp_path / "m") as writer:
        with pytest.raises(TypeError, match=r"the order is add\(name, tensor\)"):
            writer.add(torch.ones(2), "a")
        writer["a"] = torch.ones(2)


def test_options_of_another_kind_are_recognised(path: str) -> None:
    tensors = {"a": torch.ones(1)}
    tensorizer_ops.save(path, tensors)
    for refused_call, message in (
        (lambda: tensorizer_ops.load(path, options={"threads": 4}), "give threads="),
        (lambda: tensorizer_ops.save(path, tensors, options={"hashes": "all"}), "give hashes="),
        (lambda: tensorizer_ops.load(path, options={"fsync": True}), "is saved only"),
        (lambda: tensorizer_ops.save(path, tensors, options={"kdf_limit": "1,8192"}), "is loaded"),
        (lambda: tensorizer_ops.save(path, tensors, options={"max_shard": 4}), "max_shard_size"),
        (lambda: tensorizer_ops.Writer(path, options={"io": "direct"}), "is loaded only"),
    ):
        assert message in refused(refused_call)


@pytest.mark.parametrize("takes", ["load", "Reader", "verify"])
def test_words_are_checked_before_the_file_is_opened(takes: str) -> None:
    take: Any = getattr(tensorizer_ops, takes)
    assert refused(lambda: take("missing", verify="crc3")) == (
        "verify is 'crc3', and must be 'none', 'crc32' or 'all': did you mean 'crc32'?"
    )


def test_verify_refuses_to_compare_nothing(path: str) -> None:
    tensorizer_ops.save(path, {"a": torch.ones(1)})
    reader = Reader(path)
    for compare in (
        lambda: tensorizer_ops.verify(path, verify="none"),
        lambda: reader.verify("none"),
    ):
        assert "compares nothing" in refused(compare)
    options = {"digest": tensorizer_ops.digest(path)}
    tensorizer_ops.verify(path, verify="none", options=options)


def test_what_has_no_values_is_neither_saved_nor_filled(path: str) -> None:
    fake = FakeTensorMode().from_tensor(torch.ones(3))
    assert "a FakeTensor" in refused(lambda: tensorizer_ops.save(path, {"x": fake}))
    assert not Path(path).exists()
    tensorizer_ops.save(path, {"weight": torch.ones(2, 3), "bias": torch.ones(2)})
    lazy = torch.nn.LazyLinear(2)
    message = "tensor 'weight' cannot be filled: it is not initialized until its module runs"
    assert refused(lambda: tensorizer_ops.load_into(lazy, path)) == message


def test_how_to_derive_a_key_without_a_key(path: str) -> None:
    save = lambda: tensorizer_ops.save(path, {"x": torch.ones(1)}, options={"kdf": "min"})  # noqa: E731
    assert refused(save) == "option 'kdf' is for encrypted files, and no key is given"
    assert not Path(path).exists()


def test_a_file_object_at_its_end(path: str) -> None:
    buffer = io.BytesIO()
    tensorizer_ops.save(buffer, {"a": torch.ones(1)})
    assert "go to its beginning first" in refused(lambda: tensorizer_ops.load(buffer))
    assert "the file is empty" in refused(lambda: tensorizer_ops.load(io.BytesIO()))


def test_text_files_are_refused(path: str) -> None:
    Path(path).write_text("text")
    with open(path) as file:
        assert "open it with 'rb'" in refused(lambda: tensorizer_ops.load(file))


def test_a_dict_in_place_of_the_path_of_a_compiled_save(path: str) -> None:
    def save(x: torch.Tensor) -> None:
        tensorizer_ops.save({"x": x}, path)

    torch.compiler.reset()
    with pytest.raises(Exception, match=r"uri is dict, and must be str or os.PathLike"):
        torch.compile(save, backend="eager", fullgraph=True)(torch.ones(1))
    torch.compiler.reset()


def test_type_checkers_know_all_options() -> None:
    known = {name for name in _core.option_names() if name != "header."}
    assert tensorizer_ops.KnownOptions.__annotations__.keys() == known
