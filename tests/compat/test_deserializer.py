"""TensorDeserializer: the same mapping as tensorizer's, for files of either library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorizer
import torch

import tensorizer_ops
from local_servers.redis_server import RedisServer
from support.modules import Model
from support.process import fork_python
from support.samples import assert_same, raw, same, sample, zoo
from tensorizer_ops import TensorDeserializer, TensorSerializer
from tensorizer_ops._compat import values

MODES: dict[str, dict[str, Any]] = {
    "eager": {},
    "lazy": {"lazy_load": True},
    "verified": {"verify_hash": True},
    "one reader": {"num_readers": 1, "lazy_load": True},
    "two readers": {"num_readers": 2, "verify_hash": True},
    "zero-copy": {"zero_copy": True},
}
NESTED: dict[str, Any] = {
    "a": {"list": [torch.ones(2), {"x": torch.zeros(1)}], "y": torch.ones(1)},
    "b": torch.arange(3),
    "c": [torch.ones(1), torch.ones(3)],
}


def nested_file(path: str) -> str:
    with TensorSerializer(path) as serializer:
        serializer.write_state_dict(NESTED)
    return path


def plain(value: Any) -> Any:
    """Converts a tree to plain dicts, lists and ints."""
    if isinstance(value, torch.Tensor):
        return value.detach().tolist()
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, int):
        return value
    return {key: plain(value[key]) for key in value}


@pytest.mark.parametrize("mode", MODES)
def test_the_mapping_is_the_one_of_tensorizer(files: list[str], mode: str) -> None:
    for file in files:
        there = tensorizer.TensorDeserializer(file, device="cpu")
        with TensorDeserializer(file, "cpu", **MODES[mode]) as ours:
            assert len(ours) == len(there)
            assert list(ours) == list(there) == list(ours.keys())
            assert ours.total_tensor_bytes == there.total_tensor_bytes
            for name in reversed(list(there)):
                assert type(ours[name]) is torch.nn.Parameter
                assert same(ours[name], there[name])
                assert ours[name].requires_grad == there[name].requires_grad
                assert ours[name] is ours[name]
            assert "nowhere" not in ours
            with pytest.raises(KeyError, match="nowhere"):
                ours["nowhere"]
            assert ours.get("nowhere", 3) == 3
            assert "w" in ours
            assert ours["w"] is ours[".w"]
            assert same(ours.state_dict()["w"], there[".w"])
            if mode == "lazy":
                assert ours.total_bytes_read > ours.total_tensor_bytes
        assert ours["w"].shape == (6,)
        assert ours.cache_status is None
        assert ours.total_bytes_read == there.total_bytes_read


def test_every_dtype(path: str) -> None:
    tensors = zoo()
    serializer = tensorizer.TensorSerializer(path)
    serializer.write_state_dict(tensors)
    serializer.close()
    there = tensorizer.TensorDeserializer(path, device="cpu")
    ours = TensorDeserializer(path, "cpu", verify_hash=True)
    assert_same(ours, tensors)
    for name in tensors:
        assert ours[name].requires_grad == there[name].requires_grad


def test_it_is_a_state_dict(path: str) -> None:
    model, other = Model(), Model(seed=1)
    with TensorSerializer(path) as serializer:
        serializer.write_module(model, include_non_persistent_buffers=False)
    other.load_state_dict(TensorDeserializer(path, "cpu").state_dict())
    assert_same(other.state_dict(), model.state_dict())
    tensorizer_ops.save(path, model.state_dict())
    other = Model(seed=2)
    other.load_state_dict(TensorDeserializer(path, "cpu"))
    assert_same(other.state_dict(), model.state_dict())


def test_filters(files: list[str]) -> None:
    for file in files:
        for wanted in (
            lambda name: "weight" in name,
            lambda name: [1] if name.startswith(".") else "",
            lambda name: name == "entry",
        ):
            there = tensorizer.TensorDeserializer(file, device="cpu", filter_func=wanted)
            for lazy in (True, False):
                ours = TensorDeserializer(file, "cpu", wanted, lazy_load=lazy)
                assert list(ours) == list(there)
                assert ours.total_tensor_bytes == there.total_tensor_bytes
                assert_same(ours, {name: there[name] for name in there})
                ours.close()
        nothing = TensorDeserializer(file, "cpu", lambda _: False)
        assert len(nothing) == 0
        assert nothing.tree(default=5) == 5
        assert list(nothing.read_tensors()) == []


def test_casts_are_of_real_floating_tensors(path: str) -> None:
    tensors = zoo()
    tensorizer_ops.save(path, tensors)
    cast = ("float16", "bfloat16", "float64", "float32", "bool")
    there = tensorizer.TensorDeserializer(path, "cpu", cast.__contains__, torch.float32)
    ours = TensorDeserializer(path, "cpu", dtype=torch.float32)
    for name in cast:
        assert same(ours[name], there[name])
    for name in ("int8", "complex64", "uint16"):
        assert same(ours[name], tensors[name])
    with pytest.raises(ValueError):
        TensorDeserializer(path, "cpu", dtype=torch.int8)
    for module in (tensorizer, tensorizer_ops):
        for wrong in ("float16", 5):
            with pytest.raises(TypeError):
                module.TensorDeserializer(path, device="cpu", dtype=wrong)
    with TensorDeserializer(path, "cpu", dtype=torch.float32, lazy_load=True) as lazy:
        arrays = {name: a for _, _, name, a, *_ in lazy.read_numpy_arrays(allow_raw_data=True)}
    assert arrays["float64"].dtype == "float64"


def test_trees_and_branches(path: str) -> None:
    there = tensorizer.TensorDeserializer(nested_file(path), device="cpu")
    ours = TensorDeserializer(path, "cpu")

    def odd(name: Any) -> bool:
        return bool(name != ("c", 0) and "y" not in name)

    for prefix in (None, (), ["a"], ("a", "list"), ("a", "list", 1, "x"), ("c",), ("c", 1), ("z",)):
        for wanted in (None, odd):
            a = there.tree(prefix, default=3, filter_func=wanted)
            b = ours.tree(prefix, default=3, filter_func=wanted)
            assert type(a) is type(b)
            assert plain(a) == plain(b)
    for wrong in ("a", 3):
        with pytest.raises(TypeError):
            ours.tree(wrong)
    assert list(ours) == list(there) == ["a", "b", "c"]
    assert plain(ours["a"]) == plain(there["a"])
    assert list(ours["a"]["list"]) == [0, 1]
    with pytest.raises(TypeError):
        ours["a"]["list"] = 3
    gone = TensorDeserializer(path, "cpu", lambda name: "c" not in name)
    assert list(gone) == ["a", "b", "c"]
    assert dict(gone["c"]) == {}
    with pytest.raises(ValueError, match="nested"):
        ours.state_dict()


def test_a_dot_in_front_is_left_out_for_a_root_module_alone(path: str) -> None:
    with TensorSerializer(path) as serializer:
        serializer.write_state_dict({".a": {"b": torch.ones(1)}, ".c": torch.ones(2)})
    for deserializer in (tensorizer.TensorDeserializer, TensorDeserializer):
        loaded = deserializer(path, device="cpu")
        assert [key in loaded for key in (".a", ".c", "a", "c")] == [True, True, False, False]


def test_reading_one_by_one(files: list[str]) -> None:
    for file in files:
        there = list(
            tensorizer.TensorDeserializer(file, device="cpu", lazy_load=True).read_tensors()
        )
        for lazy in (True, False):
            with TensorDeserializer(file, "cpu", lazy_load=lazy) as ours:
                for _ in range(2):  # can be repeated
                    found = list(ours.read_tensors(verify_hash=True))
                    assert [f[:3] for f in found] == [t[:3] for t in there]
                    assert all(same(f[3], t[3]) for f, t in zip(found, there, strict=True))
                parts = []
                while part := list(ours.read_tensors(num_tensors=4)):
                    parts += part
                assert [p[2] for p in parts] == [t[2] for t in there]
                assert list(ours.read_tensors()) == []
                weights = list(ours.read_tensors(lambda name: "weight" in name))
                assert [w[2] for w in weights] == [t[2] for t in there if "weight" in t[2]]
                with pytest.raises(ValueError):
                    next(ours.read_tensors(num_tensors=-2))


def test_arrays(path: str) -> None:
    tensorizer_ops.save(path, zoo())
    there = tensorizer.TensorDeserializer(path, device="cpu", lazy_load=True)
    ours = TensorDeserializer(path, "cpu", lazy_load=True)
    for a, b in zip(
        ours.read_numpy_arrays(allow_raw_data=True),
        there.read_numpy_arrays(allow_raw_data=True),
        strict=True,
    ):
        assert a[:3] == b[:3]
        assert a[4:] == b[4:]
        assert a[3].dtype == b[3].dtype
        assert a[3].tobytes() == b[3].tobytes()
    with pytest.raises(ValueError, match="bfloat16"):
        list(ours.read_numpy_arrays())


def test_numbers_of_readers(files: list[str]) -> None:
    with pytest.raises(TypeError, match="num_readers"):
        TensorDeserializer(files[0], "cpu", num_readers="bar")
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="num_readers"):
            TensorDeserializer(files[0], "cpu", num_readers=wrong)
    assert len(TensorDeserializer(files[0], "cpu", num_readers=10_000)) > 10


def test_after_close(files: list[str]) -> None:
    ours = TensorDeserializer(files[0], "cpu", lazy_load=True)
    had = ours["w"]
    ours.close()
    ours.close()
    assert ours["w"] is had
    with pytest.raises(RuntimeError, match="closed"):
        ours["entry"]
    with pytest.raises(RuntimeError, match="closed"):
        list(ours.read_tensors())
    eager = TensorDeserializer(files[0], "cpu")
    eager.close()
    assert same(eager["entry"], sample(torch.float64))


def test_values_own_their_memory(path: str) -> None:
    tensorizer_ops.save(path, {"x": torch.zeros(1 << 20)})
    ours = TensorDeserializer(path, "cpu")
    with open(path, "r+b") as file:
        file.truncate(0)
    assert ours["x"].sum() == 0


def test_damage_is_an_error(files: list[str]) -> None:
    for file in files:
        data = bytearray(Path(file).read_bytes())
        at = data.rindex(raw(sample(torch.float64)))
        data[at] ^= 1
        Path(file).write_bytes(data)
        with pytest.raises(tensorizer_ops.serialization.HashMismatchError, match="entry"):
            TensorDeserializer(file, "cpu", verify_hash=True)
        lazy = TensorDeserializer(file, "cpu", lazy_load=True)
        with pytest.raises(tensorizer_ops.serialization.HashMismatchError, match="entry"):
            list(lazy.read_tensors(verify_hash=True))
        lazy.close()
        Path(file).write_bytes(data[: at + 3])
        with pytest.raises(ValueError):
            TensorDeserializer(file, "cpu")
    for wrong in (b"", b"|TZR|", b"nothing of the kind" * 100):
        Path(files[0]).write_bytes(wrong)
        with pytest.raises(ValueError):
            TensorDeserializer(files[0], "cpu")
    with pytest.raises(FileNotFoundError):
        TensorDeserializer(files[0] + "x")
    with TensorSerializer(files[0]):
        pass
    with pytest.raises(ValueError, match="no tensors"):
        TensorDeserializer(files[0], "cpu")


def test_a_name_of_any_depth(path: str) -> None:
    structure: Any = torch.ones(1)
    for _ in range(999):
        structure = [structure]
    with TensorSerializer(path) as ours:
        ours.write_state_dict({"x": structure})
    tree = TensorDeserializer(path, "cpu").tree()
    depth = 0
    layer = tree["x"]
    while isinstance(layer, list):
        layer = layer[0]
        depth += 1
    assert depth == 999


def test_to_redis(files: list[str], redis: RedisServer) -> None:
    client = redis.client()
    for i, file in enumerate(files):
        with TensorDeserializer(file, "cpu", lazy_load=True) as ours:
            ours.to_redis(client, f"p{i}")
            assert_same(tensorizer_ops.load(redis.url(f"p{i}"), verify="all"), ours.state_dict())
            if i:
                keys = {key: client.get(key) for key in client.keys("p1:*")}
                classic = tensorizer.TensorDeserializer(file, device="cpu", lazy_load=True)
                classic.to_redis(client, "q")
                assert keys == {
                    k.replace(b"q", b"p1", 1): client.get(k) for k in client.keys("q:*")
                }


PERFORMANCE = """
import sys, torch, tensorizer_ops
from tensorizer_ops import serialization
tensorizer_ops.save(sys.argv[1], {"x": torch.ones(1000)})
tensorizer_ops.TensorDeserializer(sys.argv[1], "cpu")
print(int(serialization._get_perf_stats()["file_readinto_bytes"]))
"""


def test_performance_is_counted_where_it_is_wanted(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RuntimeError):
        tensorizer_ops.serialization._get_perf_stats()
    monkeypatch.setenv("TENSORIZER_ENABLE_PERF_STATS", "1")
    assert fork_python(PERFORMANCE, path).stdout == "4000\n"


def test_cuda_is_the_current_one_at_each_load(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert values.current_cuda_device() == torch.device("cuda:0")
    with torch.device("cuda:2"):
        assert values.current_cuda_device() == torch.device("cuda:2")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert values.current_cuda_device() == torch.device("cuda:1")

    tensorizer_ops.save(path, {"x": torch.ones(3), "y": torch.ones(3)})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    lazy = TensorDeserializer(path, "cuda", lazy_load=True)
    for device in ("meta", "cpu"):
        monkeypatch.setattr(values, "current_cuda_device", lambda d=device: torch.device(d))
        assert lazy["x" if device == "meta" else "y"].device.type == device
