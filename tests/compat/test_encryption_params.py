"""Keys and passphrases with tensorizer's classes; each library reads the other's files."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import tensorizer
import torch

import tensorizer_ops
from support.modules import Model, tensors_of
from support.process import run_python
from support.samples import assert_same, random_bytes, sample
from tensorizer_ops import (
    CryptographyError,
    DecryptionParams,
    EncryptionParams,
    TensorDeserializer,
    TensorSerializer,
)
from tensorizer_ops._compat.named_key import named
from tensorizer_ops.torch_compat import tensorizer_saving

KEY = bytes(range(32))
SALT = bytes(range(16))
CHEAP = {"opslimit": 2, "memlimit": 16 << 10}
MODULES = {"ours": tensorizer_ops, "theirs": tensorizer}
TENSORS = {
    "small": sample(torch.float32),
    "large": random_bytes((5 << 20) + 7),
    "bits": sample(torch.bfloat16),
}


def save(module: Any, path: str, params: Any) -> None:
    serializer = module.TensorSerializer(path, encryption=params)
    serializer.write_state_dict(TENSORS)
    serializer.close()


def load(module: Any, path: str, params: Any, **options: Any) -> None:
    with module.TensorDeserializer(path, device="cpu", encryption=params, **options) as loaded:
        assert_same(loaded, TENSORS)


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("reader", MODULES)
@pytest.mark.parametrize("writer", MODULES)
def test_keys_and_passphrases_both_ways(path: str, writer: str, reader: str, lazy: bool) -> None:
    to, back = MODULES[writer], MODULES[reader]
    options = {"verify_hash": True, "lazy_load": lazy}
    save(to, path, to.EncryptionParams(KEY))
    load(back, path, back.DecryptionParams.from_key(KEY), **options)
    params = to.EncryptionParams.from_string("open sesame", **CHEAP)
    save(to, path, params)
    load(back, path, back.DecryptionParams.from_string("open sesame"), **options)
    load(back, path, back.DecryptionParams.from_string(b"open sesame"), **options)
    load(back, path, back.DecryptionParams.from_key(params.key), **options)


def test_the_same_passphrase_and_salt_give_the_same_key() -> None:
    ours = EncryptionParams.from_string("text", **CHEAP, salt=SALT)
    theirs = tensorizer.EncryptionParams.from_string("text", **CHEAP, salt=SALT)
    assert ours.key == theirs.key
    assert ours.salt == theirs.salt == SALT
    assert ours == EncryptionParams.from_string(b"text", **CHEAP, salt=SALT)
    assert ours != EncryptionParams.from_string("text", **CHEAP)
    assert ours != EncryptionParams(ours.key)
    assert EncryptionParams.random() != EncryptionParams.random()
    for name in ("MIN", "INTERACTIVE", "MODERATE", "SENSITIVE"):
        for limit in ("OpsLimit", "MemLimit"):
            mine = getattr(EncryptionParams, limit)[name]
            assert mine == getattr(tensorizer.EncryptionParams, limit)[name]
    with pytest.raises(ValueError, match="salt"):
        _ = EncryptionParams(KEY).salt


WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("EncryptionParams", ("text",), {}),
    ("EncryptionParams", (b"short",), {}),
    ("EncryptionParams.from_string", ("",), {}),
    ("EncryptionParams.from_string", ("x",), {"opslimit": "2"}),
    ("EncryptionParams.from_string", ("x",), {"opslimit": 0}),
    ("EncryptionParams.from_string", ("x",), {"memlimit": 8191}),
    ("EncryptionParams.from_string", ("x",), {"memlimit": 1 << 50}),
    ("EncryptionParams.from_string", ("x",), {"salt": b"short"}),
    ("EncryptionParams.from_string", ("x",), {"salt": "text of 16 chars"}),
    ("DecryptionParams.from_string", ("",), {}),
    ("DecryptionParams.from_string", (3,), {}),
    ("DecryptionParams.from_key", (b"",), {}),
    ("DecryptionParams.from_key", (b"short",), {}),
]


@pytest.mark.parametrize(("name", "arguments", "options"), WRONG)
def test_wrong_arguments(name: str, arguments: Any, options: Any) -> None:
    kinds = []
    for module in (tensorizer, tensorizer_ops):
        function: Any = module
        for step in name.split("."):
            function = getattr(function, step)
        with pytest.raises((TypeError, ValueError)) as error:
            function(*arguments, **options)
        kinds.append(type(error.value))
    assert kinds[0] is kinds[1]


@pytest.mark.parametrize("module", MODULES.values())
def test_params_are_copied(module: Any) -> None:
    encryption, decryption = module.EncryptionParams, module.DecryptionParams
    for params in (
        encryption.random(),
        encryption.from_string("x", opslimit=1, memlimit=8192, salt=bytes(16)),
        decryption.from_key(KEY),
        decryption.from_string("x"),
    ):
        for copied in (copy.copy(params), copy.deepcopy({"key": [params]})["key"][0]):
            assert copied is not params
            assert copied.key == params.key
            assert getattr(copied, "source", None) == getattr(params, "source", None)
            assert module is tensorizer or copied == params  # compares the salt too
            copied.key = bytes(32)
            assert copied.key != params.key


def test_limits_are_not_mixed_up() -> None:
    with pytest.raises(TypeError):
        EncryptionParams.from_string("x", opslimit=EncryptionParams.MemLimit.MIN)
    with pytest.raises(TypeError):
        EncryptionParams.from_string("x", memlimit=EncryptionParams.OpsLimit.MIN)


def test_errors_are_cryptography_errors(path: str) -> None:
    for module in MODULES.values():
        save(module, path, module.EncryptionParams(KEY))
        for lazy in (True, False):
            with pytest.raises(CryptographyError, match="encrypted"):
                TensorDeserializer(path, "cpu", lazy_load=lazy)
        for wrong in (DecryptionParams.from_key(bytes(32)), DecryptionParams.from_string("x")):
            with pytest.raises(CryptographyError):
                TensorDeserializer(path, "cpu", encryption=wrong)
    tensorizer_ops.save(path, TENSORS)
    with pytest.raises(CryptographyError, match="not encrypted"):
        TensorDeserializer(path, "cpu", encryption=DecryptionParams.from_key(KEY), lazy_load=True)
    with pytest.raises(ValueError, match="neither"):
        TensorDeserializer(path, "cpu", encryption=DecryptionParams())
    for cls, wrong in ((TensorDeserializer, KEY), (TensorSerializer, KEY)):
        with pytest.raises(TypeError, match="bytes"):
            cls(path, encryption=wrong)


@pytest.mark.parametrize("lazy", [True, False])
def test_a_key_that_is_named_in_the_options(path: str, lazy: bool) -> None:
    options = {"key": "named:options"}
    tensorizer_ops.keys.add("options", key=KEY)
    with TensorSerializer(path, options=options) as serializer:
        serializer.write_state_dict(TENSORS)
    with TensorDeserializer(path, "cpu", lazy_load=lazy, options=options) as loaded:
        twin = pickle.loads(pickle.dumps(loaded))
        assert_same(loaded, TENSORS)
    with twin:
        assert_same(twin, TENSORS)
    load(tensorizer, path, tensorizer.DecryptionParams.from_key(KEY))
    tensorizer_ops.keys.add("options", key=bytes(32))
    with pytest.raises(CryptographyError, match="wrong key or passphrase"):
        TensorDeserializer(path, "cpu", lazy_load=lazy, options=options)
    tensorizer_ops.keys.remove("options")
    with pytest.raises(ValueError, match="no key named 'options'"):
        TensorDeserializer(path, "cpu", lazy_load=lazy, options=options)


def test_a_key_has_a_name_only_while_it_is_used(path: str) -> None:
    save(tensorizer_ops, path, EncryptionParams(KEY))
    with named(DecryptionParams.from_key(KEY)) as options:
        assert_same(tensorizer_ops.load(path, options=options), TENSORS)
    with pytest.raises(ValueError, match="no key named"):
        tensorizer_ops.load(path, options=options)


def test_what_tensorizer_cannot_encrypt(path: str) -> None:
    base = sample(torch.float32, (300, 400))
    tensors = {"base": base, "view": base[10:], "empty": torch.empty(0), "same": base}
    params = EncryptionParams.random()
    with TensorSerializer(path, encryption=params) as serializer:
        serializer.write_state_dict(tensors)
    key = DecryptionParams.from_key(params.key)
    assert_same(TensorDeserializer(path, "cpu", encryption=key, verify_hash=True), tensors)


def test_a_module(path: str) -> None:
    model = Model()
    with TensorSerializer(path, encryption=EncryptionParams(KEY)) as serializer:
        serializer.write_module(model)
    for module in MODULES.values():
        other = Model(seed=1)
        with module.TensorDeserializer(
            path, device="cpu", encryption=module.DecryptionParams.from_key(KEY)
        ) as loaded:
            loaded.load_into_module(other)
        if module is tensorizer_ops:
            assert_same(tensors_of(other), tensors_of(model))


def saved_beside(obj: object, path: str) -> None:
    with tensorizer_saving():
        torch.save(obj, path)


# A program that passes encryption parameters to another process.
SPAWNS = """
import multiprocessing
import torch
from tensorizer_ops import DecryptionParams, EncryptionParams, TensorDeserializer, TensorSerializer

def save(path, params):
    with TensorSerializer(path, encryption=params) as serializer:
        serializer.write_state_dict({"x": torch.arange(3)})
    return params.salt

def load(path, params):
    return TensorDeserializer(path, "cpu", encryption=params)["x"].tolist()

def main(path):
    key = EncryptionParams.from_string("open sesame", opslimit=1, memlimit=8192)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(save, (path, key)) == key.salt
        from_string = DecryptionParams.from_string("open sesame")
        for params in (from_string, DecryptionParams.from_key(key.key)):
            assert pool.apply(load, (path, params)) == [0, 1, 2]
"""


def test_params_travel_to_spawned_processes(path: str, tmp_path: Path) -> None:
    (tmp_path / "spawns.py").write_text(SPAWNS)
    run_python(
        "import sys; sys.path.insert(0, sys.argv[1]); import spawns; spawns.main(sys.argv[2])",
        str(tmp_path),
        path,
    )


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_params_are_the_same_after_a_pickle(protocol: int) -> None:
    for params in (
        EncryptionParams(KEY),
        EncryptionParams.from_string("x", **CHEAP),
        DecryptionParams.from_key(KEY),
        DecryptionParams.from_string("x"),
    ):
        assert pickle.loads(pickle.dumps([params], protocol)) == [params]


def test_a_key_is_seen_nowhere(path: str) -> None:
    secret = b"swordfish-swordfish-swordfish-32"
    save(tensorizer_ops, path, EncryptionParams(KEY))
    for params in (
        EncryptionParams(secret),
        EncryptionParams.from_string(secret, **CHEAP),
        DecryptionParams.from_key(secret),
        DecryptionParams.from_string(secret),
    ):
        for text in (repr(params), str(params), f"{params}"):
            assert "swordfish" not in text
        for keep in (torch.save, saved_beside):
            with pytest.raises(TypeError, match="it contains a secret"):
                keep({"params": [params]}, path + ".pt")
        if isinstance(params, DecryptionParams):
            with pytest.raises(CryptographyError) as error:
                TensorDeserializer(path, "cpu", encryption=params)
            assert "swordfish" not in str(error.value)
    lazy = TensorDeserializer(
        path, "cpu", encryption=DecryptionParams.from_key(KEY), lazy_load=True
    )
    with pytest.raises(TypeError, match="secret"):
        pickle.dumps(lazy)
    lazy.close()
