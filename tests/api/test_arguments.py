"""Wrong arguments: every one is an error of one sentence that names it."""

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
from tensorizer_ops import Reader, checkpoint, distributed, hf, keys, safetensors

# No message may show a value: it could be a secret, or gigabytes of tensors.
HIDDEN = "hidden"

VALUES: dict[str, Any] = {
    "None": None,
    "int": 7777,
    "float": 2.5,
    "str": HIDDEN,
    "bytes": HIDDEN.encode(),
    "list": [HIDDEN.encode()],
    "dict": {"x": HIDDEN.encode()},
    "object": object(),
    "Tensor": torch.ones(3),
    "Linear": torch.nn.Linear(2, 2),
}
PATHS = "str bytes"
OPTIONS = "None dict"
# For each argument the values above that have a right type.
FITTING = {
    "uri": PATHS,
    "source": PATHS,
    "target": PATHS,
    "filename": PATHS,
    "script": "None " + PATHS,
    "tensors": "",
    "state": "dict",
    "order": "str",
    "group": "None",
    "names": "None dict",  # of which the keys are taken
    "slices": "None dict",
    "device": "None int str",
    "dtype": "None",
    "verify": "str",
    "hashes": "str",
    "copy": "",
    "cast": "",
    "strict": "",
    "listed": "",
    "force_contiguous": "",
    "threads": "int",
    "expected_tensors": "int",
    "expected_bytes": "int",
    "version": "int",
    "options": OPTIONS,
    "source_options": OPTIONS,
    "target_options": OPTIONS,
    "metadata": "None",
    "progress": "None Linear",  # a module is a function
    "kdf": "str",
    "key": "str",
    "old_key": "str",
    "new_key": "str",
    "module": "Linear",
    "plan": "None",
    "reader": "",
    "data": "bytes",
    "framework": "str",
    "model_class": "None",
    "weights": "None str",
    "device_map": "None int str",
    "tokenizer": "None",
    "backend": "str",
    "name": "str",
    "secret": "None str",
}
# Where an argument of that name is another one.
FITTING_HERE = {
    ("keys.add", "key"): "None bytes Linear",
    ("keys.add", "passphrase"): "None str bytes Linear",
    ("hf.from_pretrained", "dtype"): "str",
    ("hf.save_pretrained", "model"): "",
    ("hf.save_pretrained", "weights"): "str",
    ("safetensors.load_file", "device"): "int str",
    ("safetensors.load_model", "device"): "int str",
    ("safetensors.safe_open", "device"): "int str",
    ("safetensors.save_model", "model"): "Linear",
    ("safetensors.load_model", "model"): "Linear",
    ("load_slices", "slices"): "dict",
    ("verify_tensors", "tensors"): "Linear",
    ("load_constants", "model"): "",
    ("externalize", "module"): "",
    **{
        (f"Reader.{method}", "threads"): "None int"
        for method in ("load", "load_into", "verify", "digest", "rewrite", "update")
    },
    ("Reader.load", "copy"): "None",
    ("Reader.load", "verify"): "None str",
    ("Reader.load_into", "verify"): "None str",
}


def functions(path: str) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Return the public functions, each with arguments that are right."""
    tensors = {"x": torch.ones(3)}
    tensorizer_ops.save(path, tensors)
    reader = torch.classes.tensorizer.Reader(path, None)
    module = torch.nn.Linear(2, 2)
    opened = safetensors.safe_open(path, "pt")
    mapping = tensorizer_ops.Reader(path)
    two = {"source": path, "target": path + ".new"}
    new = path + ".new"
    transformers = pytest.importorskip("transformers")
    sizes = {"n_embd": 4, "n_layer": 1, "n_head": 1, "vocab_size": 4}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    folder = path + ".folder"
    hf.save_pretrained(model, folder)
    t = tensorizer_ops
    return {
        "load": (t.load, {"uri": path}),
        "iterate": (t.iterate, {"uri": path}),
        "load_slices": (t.load_slices, {"reader": reader, "slices": {"x": 0}}),
        "load_into": (t.load_into, {"module": module, "uri": path}),
        "verify_tensors": (t.verify_tensors, {"uri": path, "tensors": tensors}),
        "load_constants": (t.load_constants, {"model": module, "uri": path}),
        "save": (t.save, {"uri": new, "tensors": tensors}),
        "save_async": (t.save_async, {"uri": new, "tensors": tensors}),
        "externalize": (t.externalize, {"module": torch.jit.script(module), "uri": new}),
        "convert": (t.convert, two),
        "encrypt": (t.encrypt, {**two, "key": "env:NONE"}),
        "decrypt": (t.decrypt, {**two, "key": "env:NONE"}),
        "rekey": (t.rekey, {**two, "old_key": "env:NONE", "new_key": "env:NONE"}),
        "update": (t.update, two),
        "digest": (t.digest, {"uri": path}),
        "metadata": (t.metadata, {"uri": path}),
        "names": (t.names, {"uri": path}),
        "info": (t.info, {"uri": path}),
        "verify": (t.verify, {"uri": path}),
        "Reader": (t.Reader, {"source": path}),
        "Reader.load": (mapping.load, {}),
        "Reader.load_into": (mapping.load_into, {"module": module}),
        "Reader.prefetch": (mapping.prefetch, {}),
        "Reader.verify": (mapping.verify, {}),
        "Reader.digest": (mapping.digest, {}),
        "Reader.rewrite": (mapping.rewrite, {"target": new}),
        "Reader.update": (mapping.update, {"target": new}),
        "Writer": (t.Writer, {"target": new}),
        "set_secret": (t.set_secret, {"name": "n", "secret": None}),
        "checkpoint.save_checkpoint": (checkpoint.save_checkpoint, {"uri": new, "state": tensors}),
        "checkpoint.save_checkpoint_async": (
            checkpoint.save_checkpoint_async,
            {"uri": new, "state": tensors},
        ),
        "checkpoint.load_checkpoint": (checkpoint.load_checkpoint, {"uri": path}),
        "distributed.load": (distributed.load, {"uri": path}),
        "distributed.save": (distributed.save, {"uri": new, "tensors": tensors}),
        "hf.from_pretrained": (hf.from_pretrained, {"uri": folder}),
        "hf.save_pretrained": (hf.save_pretrained, {"model": model, "uri": new}),
        "hf.tokenizer": (hf.tokenizer, {"uri": folder}),
        "hf.fetch": (hf.fetch, {"uri": folder, "target": new}),
        "keys.add": (keys.add, {"name": "n"}),
        "keys.remove": (keys.remove, {"name": "n"}),
        "safetensors.save": (safetensors.save, {"tensors": tensors}),
        "safetensors.load": (safetensors.load, {"data": b""}),
        "safetensors.save_file": (safetensors.save_file, {"tensors": tensors, "filename": new}),
        "safetensors.load_file": (safetensors.load_file, {"filename": path}),
        "safetensors.save_model": (safetensors.save_model, {"model": module, "filename": new}),
        "safetensors.load_model": (safetensors.load_model, {"model": module, "filename": path}),
        "safetensors.safe_open": (safetensors.safe_open, {"filename": path, "framework": "pt"}),
        "safetensors.get_tensor": (opened.get_tensor, {"name": "x"}),
        "safetensors.get_slice": (opened.get_slice, {"name": "x"}),
    }


def test_wrong_types_are_named(tmp_path: Path) -> None:
    path = str(tmp_path / "m.tensors")
    faults = []
    for called, (function, right) in functions(path).items():
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:  # which transformers checks
                continue
            fitting = FITTING_HERE.get((called, name), FITTING.get(name))
            assert fitting is not None, f"say what {name} of {called} may be"
            for kind in VALUES.keys() - set(fitting.split()):
                try:
                    result = function(**{**right, name: VALUES[kind]})
                    if isinstance(result, tensorizer_ops.Save):
                        result.result()
                except (TypeError, ValueError) as error:
                    text = str(error)
                    named = name in text or (kind == "dict" and "tensor 'x'" in text)
                    if named and "\n" not in text and len(text) < 200 and HIDDEN not in text:
                        continue
                    faults.append(f"{called}({name}={kind}): {text}")
                except Exception as error:
                    faults.append(f"{called}({name}={kind}) is another error: {error!r}")
                else:
                    faults.append(f"{called}({name}={kind}) is no error")
    assert not faults, "\n".join(faults)
    assert sorted(os.listdir(tmp_path)) == ["m.tensors", "m.tensors.folder"]


def test_public_functions_are_all_tried(tmp_path: Path) -> None:
    tried = functions(str(tmp_path / "m.tensors"))
    front = {
        name
        for name in tensorizer_ops.__all__
        if inspect.isfunction(getattr(tensorizer_ops, name))
        and name not in ("cmake_prefix_path", "install_as_tensorizer")
    }
    assert front <= tried.keys(), "add the new functions above"


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
        "the path or URI": lambda: tensorizer_ops.load("https://user:" + HALF + "@host/x"),
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
    with pytest.raises(ValueError, match=r"a URI begins with (s3|gs)://"):
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
