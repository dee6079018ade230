"""Arguments of wrong types: each is an error of one sentence that names the argument."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from tensorizer_ops import checkpoint, distributed, hf, keys, safetensors, trust

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
    "base": PATHS,
    "new": PATHS,
    "delta": PATHS,
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
    "folder": PATHS,
    "overwrite": "",
    "force_contiguous": "",
    "threads": "int",
    "expected_tensors": "int",
    "expected_bytes": "int",
    "version": "int",
    "options": OPTIONS,
    "source_options": OPTIONS,
    "target_options": OPTIONS,
    "base_options": OPTIONS,
    "new_options": OPTIONS,
    "delta_options": OPTIONS,
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
    "rename": "None Linear",
    "entry": "None str",
    "prefix": "str",
    "interval": "int float",
    "patience": "None int float",
    "stop": "None",
    "step": "int",
    "whole_every": "int",
    "grace": "int",
    "scratch": "None str",
    "fenced": "",
    "model": PATHS,
    "passphrase": "None str",
    "certificates": "",
    "signature": "None " + PATHS,
    "method": "str",
    "shard_size": "None int",
    "ignore": "dict",  # of which the keys are taken
    "keys": "",
    "roots": "",
    "identities": "dict",
    "at": "None",
    "subject": "None str",
    "policy": "str",
    "ignore_unsigned_files": "",
}
# Where an argument of that name is another one.
FITTING_HERE = {
    ("apply", "base"): PATHS + " dict Linear",
    ("apply", "target"): "None " + PATHS,
    ("apply", "hashes"): "None str",
    ("follow", "target"): PATHS + " dict Linear",
    ("Publisher.publish", "state"): PATHS + " dict Linear",
    ("keys.add", "key"): "None bytes Linear",
    ("sign", "key"): "str",
    ("Publisher", "sign"): "None " + PATHS,
    ("checkpoint.Chain", "sign"): "None " + PATHS,
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
    ("attest", "model"): "Linear",
    ("attest", "load_weights"): "None Linear",
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
        "attest": (t.attest, {"model": module, "uri": path}),
        "load_constants": (t.load_constants, {"model": module, "uri": path}),
        "save": (t.save, {"uri": new, "tensors": tensors}),
        "save_async": (t.save_async, {"uri": new, "tensors": tensors}),
        "externalize": (t.externalize, {"module": torch.jit.script(module), "uri": new}),
        "convert": (t.convert, two),
        "encrypt": (t.encrypt, {**two, "key": "env:NONE"}),
        "decrypt": (t.decrypt, {**two, "key": "env:NONE"}),
        "rekey": (t.rekey, {**two, "old_key": "env:NONE", "new_key": "env:NONE"}),
        "update": (t.update, two),
        "delta": (t.delta, {"base": path, "new": path, "target": new}),
        "apply": (t.apply, {"delta": path, "base": path, "target": new}),
        "follow": (t.follow, {"uri": new, "target": new}),
        "Publisher": (t.Publisher, {"uri": folder + "/run"}),
        "Publisher.publish": (
            t.Publisher(folder + "/run").publish,
            {"state": tensors, "step": 1},
        ),
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
        "upload": (t.upload, {"folder": folder, "uri": new}),
        "download": (t.download, {"uri": folder, "folder": new}),
        "set_secret": (t.set_secret, {"name": "n", "secret": None}),
        "checkpoint.save": (checkpoint.save, {"uri": new, "state": tensors}),
        "checkpoint.save_async": (
            checkpoint.save_async,
            {"uri": new, "state": tensors},
        ),
        "checkpoint.load": (checkpoint.load, {"uri": path}),
        "checkpoint.consolidate": (checkpoint.consolidate, {"uri": path, "target": new}),
        "distributed.load": (distributed.load, {"uri": path}),
        "distributed.save": (distributed.save, {"uri": new, "tensors": tensors}),
        "hf.from_pretrained": (hf.from_pretrained, {"uri": folder}),
        "hf.save_pretrained": (hf.save_pretrained, {"model": model, "uri": new}),
        "hf.tokenizer": (hf.tokenizer, {"uri": folder}),
        "hf.fetch": (hf.fetch, {"uri": folder, "target": new}),
        "sign": (t.sign, {"model": path, "key": "env:NONE"}),
        "trust.add": (trust.add, {"name": "n"}),
        "trust.remove": (trust.remove, {"name": "n"}),
        "trust.verify": (trust.verify, {"model": path, "policy": "named:none"}),
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
        and name not in ("cmake_prefix_path", "library_path", "install_as_tensorizer")
    }
    assert front <= tried.keys(), "add the new functions above"
