"""The examples run offline, and do what they describe."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensorizer
import torch

import tensorizer_ops
from local_servers.redis_server import RedisServer
from local_servers.s3_server import s3_server
from support.process import ROOT, TIMEOUT, environment, run_example
from tensorizer_ops import EncryptionParams


@pytest.mark.parametrize("name", ["save_and_load.py", "s3.py", "redis_cache.py"])
def test_who_asks_for_help_gets_it(tmp_path: Path, name: str) -> None:
    assert f"python examples/{name}" in run_example(tmp_path, name, "--help")
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_demo(tmp_path: Path) -> None:
    """Its own checks compare every byte; here, that it tries all and shows what it has measured."""
    run_example(tmp_path, "demo/model.py", "built", "--width", "32", timeout=600)
    picture = tmp_path / "picture.png"
    given = ("--width", "32", "--picture", str(picture))
    shown = run_example(tmp_path, "demo/demo.py", "built", *given, timeout=600)
    head, *rows = [line.split() for line in shown.split("\n\n")[1].splitlines()]
    assert head == [
        *("save", "Python", "TorchScript", "compiled", "package", "C++"),
        *("tensorizer", "safetensors", "torch.load"),
    ]
    others = [[cell != "-" for cell in row[-3:]] for row in rows]
    assert others == [
        [True, False, False],  # a .tensors file
        [True, False, False],  # verified
        [False, False, False],  # verified by chunks
        [True, False, False],  # encrypted
        [False, True, False],  # a safetensors file
        [False, True, False],  # mapped
        [False, False, True],  # of torch.save
        [True, False, False],  # HTTP
        [True, False, False],  # S3
        [False, False, False],  # Redis over TLS
    ]
    ours = [[cell != "-" for cell in row[-9:-3]] for row in rows]
    assert ours.pop(6) == [False] * 6
    assert ours.pop(5) == [False, True, *[False] * 4]
    assert all(map(all, ours))
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.glob("tensorizer-demo-*"))


def test_background_save(tmp_path: Path) -> None:
    shown = run_example(tmp_path, "background_save.py", "--mebibytes", "8", "--steps", "8")
    for way in ("no save", "save", "save_async", "save in another process"):
        assert f"\n{way} " in shown


@pytest.mark.slow
def test_fsdp(tmp_path: Path) -> None:
    def losses(folder: str, ranks: int, steps: int) -> str:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        program = [str(ROOT / "examples" / "fsdp.py"), folder, "--steps", str(steps)]
        done = subprocess.run(
            [*command, "--nproc-per-node", str(ranks), *program],
            env=environment() | {"OMP_NUM_THREADS": "1"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        assert done.returncode == 0, done.stderr
        what, _, loss = done.stdout.strip().rpartition(" ")
        assert what == f"from step {'0' if steps == 20 else '20'} to {steps} on {ranks} ranks: loss"
        return loss

    two = losses("checkpoint", 2, 20)
    assert len(list((tmp_path / "checkpoint").glob("rank-*"))) == 2
    four = losses("checkpoint", 4, 40)
    assert losses("alone", 1, 20) == two != four == losses("alone", 1, 40)


def test_save_and_load(tmp_path: Path) -> None:
    assert "all three models give the same" in run_example(tmp_path, "save_and_load.py")
    assert os.listdir(tmp_path) == []
    run_example(tmp_path, "save_and_load.py", "kept.tensors")
    assert os.listdir(tmp_path) == ["kept.tensors"]


def test_encryption(tmp_path: Path) -> None:
    shown = run_example(tmp_path, "encryption.py")
    assert "without the key: " in shown
    assert "with a passphrase" in shown


def test_encrypt_file(tmp_path: Path) -> None:
    tensorizer_ops.save(tmp_path / "plain", {"x": torch.arange(7)})
    (tmp_path / "key").write_bytes(bytes(range(32)))
    key = ("--key", "file:key")
    run_example(tmp_path, "encrypt_file.py", "encrypt", "plain", "secret", *key)
    with pytest.raises(tensorizer_ops.errors.Crypto):
        tensorizer_ops.load(tmp_path / "secret")
    run_example(tmp_path, "encrypt_file.py", "decrypt", "secret", "back", *key)
    assert tensorizer_ops.load(tmp_path / "back")["x"].tolist() == list(range(7))


def test_a_key_is_made_to_encrypt_with(tmp_path: Path) -> None:
    tensorizer_ops.save(tmp_path / "plain", {"x": torch.arange(7)})
    run_example(tmp_path, "encrypt_file.py", "encrypt", "plain", "secret", "--new-key", "key", "-q")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    options = {"key": f"file:{tmp_path / 'key'}"}
    assert tensorizer_ops.load(tmp_path / "secret", options=options)["x"].tolist() == [*range(7)]
    before = (tmp_path / "key").read_bytes()
    with pytest.raises(AssertionError, match="File exists"):
        run_example(tmp_path, "encrypt_file.py", "encrypt", "plain", "other", "--new-key", "key")
    assert (tmp_path / "key").read_bytes() == before and not (tmp_path / "other").exists()


def test_a_key_is_derived_as_the_caller_says(tmp_path: Path) -> None:
    tensorizer_ops.save(tmp_path / "plain", {"x": torch.arange(7)})
    (tmp_path / "words").write_text("open sesame\n")
    salt = bytes(range(16))
    limits = ("--opslimit", "2", "--memlimit", "min", "--salt", salt.hex())
    key = ("--key", "passphrase-file:words")
    shown = run_example(tmp_path, "encrypt_file.py", "encrypt", "plain", "secret", *key, *limits)
    assert salt.hex() in shown
    derived = EncryptionParams.from_string("open sesame", opslimit=2, memlimit=8192, salt=salt)
    theirs = tensorizer.DecryptionParams.from_key(derived.key)
    for params in (theirs, tensorizer.DecryptionParams.from_string("open sesame")):
        with tensorizer.TensorDeserializer(
            tmp_path / "secret", device="cpu", encryption=params
        ) as loaded:
            assert loaded["x"].tolist() == [*range(7)]
    run_example(tmp_path, "encrypt_file.py", "decrypt", "secret", "back", *key)
    assert tensorizer_ops.load(tmp_path / "back")["x"].tolist() == [*range(7)]


def test_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server(tmp_path) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        assert "connections" in run_example(tmp_path, "s3.py", "s3://bucket/m.tensors")
        assert server.objects() == ["m.tensors"]


def test_redis(tmp_path: Path, redis: RedisServer) -> None:
    assert "2 tensors" in run_example(tmp_path, "redis_cache.py", redis.url("made-up"))
    tensorizer_ops.save(tmp_path / "file", {"x": torch.arange(7)})
    shown = run_example(tmp_path, "redis_cache.py", redis.url("from-file"), "file")
    assert "1 tensors, 56 bytes" in shown


def test_moving_from_tensorizer(tmp_path: Path) -> None:
    assert "all four ways" in run_example(tmp_path, "moving_from_tensorizer.py")
