"""torch.save and torch.load with tensors in a separate file, compared with tensorizer."""

from __future__ import annotations

import io
import logging
import os
import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tensorizer.torch_compat as theirs
import torch
from tensorizer import TensorDeserializer as TheirDeserializer

import tensorizer_ops
import tensorizer_ops.torch_compat as ours
from support.samples import DTYPES, raw, same, sample
from support.signer import Signer
from tensorizer_ops import errors
from tensorizer_ops._compat import sidecar
from tensorizer_ops.serialization import DecryptionParams, EncryptionParams
from tensorizer_ops.torch_compat import tensorizer_loading, tensorizer_saving

SAVE, LOAD = torch.save, torch.load
WAYS = pytest.mark.parametrize(
    ("writer", "reader"),
    [(ours, theirs), (theirs, ours), (ours, ours)],
    ids=["to theirs", "from theirs", "ours"],
)


@pytest.fixture
def pt(tmp_path: Path) -> str:
    return str(tmp_path / "model.pt")


@pytest.fixture(autouse=True)
def torch_is_left_alone() -> Iterable[None]:
    yield
    assert torch.save is SAVE
    assert torch.load is LOAD


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(5, 5)
        self.second = torch.nn.Linear(5, 5)
        self.second.weight = self.first.weight
        self.register_buffer("count", torch.arange(4), persistent=False)


def various() -> dict[str, Any]:
    base = sample(torch.float32, (6, 8))
    return {
        "types": {name: sample(dtype) for name, dtype in DTYPES.items() if "x" not in name},
        "model": Model().state_dict(),
        "views": [base, base[2:], base.t(), base[:, 3]],
        "scalar": torch.tensor(7.0),
        "empty": torch.empty(3, 0),
        "meta": torch.empty(2, 3, device="meta"),
        "conj": torch.ones(2, dtype=torch.complex64).conj(),
        "untyped": sample(torch.uint8, (9,)).untyped_storage(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "other": ["text", 3, None, torch.float16],
    }


def assert_alike(found: Any, expected: Any) -> None:
    assert type(found) is type(expected) or torch.is_storage(expected)
    if isinstance(expected, torch.Tensor):
        assert found.device == expected.device
        assert found.stride() == expected.stride()
        assert found.requires_grad == expected.requires_grad
        assert found.is_conj() == expected.is_conj()
        assert expected.is_meta or same(found, expected)
    elif torch.is_storage(expected):
        assert bytes(found._untyped_storage) == bytes(expected)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            assert_alike(found[key], value)
    elif isinstance(expected, list):
        for one, other in zip(found, expected, strict=True):
            assert_alike(one, other)
    else:
        assert found == expected


def save(module: ModuleType, obj: object, f: Any, *, zipped: bool = True, **kwargs: Any) -> None:
    with module.tensorizer_saving(**kwargs):
        torch.save(obj, f, _use_new_zipfile_serialization=zipped)


def load(module: ModuleType, f: Any, **kwargs: Any) -> Any:
    with module.tensorizer_loading(**kwargs):
        return torch.load(f, weights_only=False)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@WAYS
def test_pairs_go_both_ways(pt: str, writer: ModuleType, reader: ModuleType, zipped: bool) -> None:
    expected = various()
    save(writer, expected, pt, zipped=zipped)
    assert sorted(os.listdir(os.path.dirname(pt))) == ["model.pt", "model.pt.tensors"]
    assert os.path.getsize(pt) < 20_000
    found = load(reader, pt)
    assert_alike(found, expected)
    first, rows, turned, column = found["views"]
    first.fill_(3)
    assert (rows == 3).all()
    assert (turned == 3).all()
    assert (column == 3).all()


def test_the_files_are_those_that_tensorizer_writes(tmp_path: Path) -> None:
    obj = various()
    written = []
    for name, module in (("ours", ours), ("theirs", theirs)):
        pt = tmp_path / name / "m.pt"
        pt.parent.mkdir()
        save(module, obj, pt)
        pickled = torch._C.PyTorchFileReader(str(pt)).get_record("data.pkl")
        with TheirDeserializer(f"{pt}.tensors", device="cpu", verify_hash=True) as file:
            stored = [(key, raw(tensor), tensor.dtype) for key, tensor in file.items()]
        written.append((pickled, stored))
    assert written[0] == written[1]


def test_a_whole_module(pt: str) -> None:
    model = Model()
    save(ours, model, pt)
    found = load(ours, pt)
    assert isinstance(found, Model)
    assert found.first.weight is found.second.weight
    assert_alike(dict(found.named_buffers()), dict(model.named_buffers()))
    assert_alike(found.state_dict(), model.state_dict())


def test_without_tensors_there_is_no_second_file(pt: str) -> None:
    meta = torch.empty(3, device="meta")
    save(ours, {"a": 1, "meta": meta, "none": torch.empty(0)}, pt)
    assert os.listdir(os.path.dirname(pt)) == ["model.pt"]
    found = load(ours, pt)
    assert found["a"] == 1
    assert found["meta"].shape == (3,)
    assert found["none"].shape == (0,)


def test_where_the_tensors_go(tmp_path: Path, pt: str) -> None:
    expected = {"x": torch.arange(5)}
    place = tmp_path / "elsewhere"
    asked = []

    def beside(f: object) -> Path:
        asked.append(f)
        return place

    for target in (str(place), place, os.fsencode(place), beside):
        save(ours, expected, pt, file_obj=target)
        assert sorted(os.listdir(tmp_path)) == ["elsewhere", "model.pt"]
        assert_alike(load(ours, pt, file_obj=target), expected)
        place.unlink()
    assert asked == [pt, pt]
    with open(place, "wb+") as file:
        save(ours, expected, pt, file_obj=file)
    with open(place, "rb") as file:
        assert_alike(load(ours, pt, file_obj=file), expected)
    assert_alike(load(ours, pt, file_obj=io.BytesIO(place.read_bytes())), expected)


def test_a_callback_may_leave_tensors_in_the_pickle(pt: str) -> None:
    expected = {"x": torch.arange(5)}
    save(ours, expected, pt, file_obj=lambda f: None)
    assert os.listdir(os.path.dirname(pt)) == ["model.pt"]
    assert_alike(load(ours, pt, file_obj=lambda f: None), expected)
    assert_alike(LOAD(pt), expected)


def test_a_file_in_memory_keeps_its_tensors(caplog: pytest.LogCaptureFixture) -> None:
    expected = {"x": torch.arange(5)}
    file = io.BytesIO()
    with caplog.at_level(logging.WARNING):
        save(ours, expected, file)
    assert "file_obj=" in caplog.text
    file.seek(0)
    assert_alike(load(ours, file), expected)


def test_an_open_file_has_a_name(pt: str, tmp_path: Path) -> None:
    expected = {"x": torch.arange(5)}
    with open(pt, "wb") as file:
        save(ours, expected, file)
    assert os.path.exists(f"{pt}.tensors")
    with open(pt, "rb") as file:
        assert_alike(load(ours, file), expected)

    class Nameless(io.RawIOBase):
        pass

    with os.fdopen(os.open(pt, os.O_RDONLY), "rb") as numbered:
        for strange in (Nameless(), numbered):
            with pytest.raises(TypeError, match="file_obj="):
                save(ours, expected, strange)


def test_what_looks_like_a_uri_is_a_path_beside_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    expected = {"x": torch.arange(5)}
    for name in ("fd:1", Path("~/m.pt"), Path("s3:/b")):
        if isinstance(name, Path):
            name.parent.mkdir()
        save(ours, expected, name)
        assert os.path.exists(f"{name}.tensors")
        assert_alike(load(ours, name), expected)


def test_other_ways_may_be_those_of_torch(pt: str) -> None:
    def keep(file_obj: Any, tensors: Iterable[torch.Tensor], kwargs: dict[str, Any]) -> None:
        torch.save(list(tensors), file_obj)

    def give(file_obj: Any, kwargs: dict[str, Any]) -> Iterable[torch.Tensor]:
        return torch.load(file_obj, weights_only=True)

    expected = {"x": torch.arange(5), "y": torch.ones(3)}
    save(ours, expected, pt, file_obj=pt + ".beside", save_func=keep)
    assert_alike(load(ours, pt, file_obj=pt + ".beside", load_func=give), expected)


def test_other_ways_to_save_and_load(pt: str) -> None:
    kept: list[Any] = []

    def keep(file_obj: Any, tensors: Iterable[torch.Tensor], kwargs: dict[str, Any]) -> None:
        kept.extend([file_obj, list(tensors), kwargs])

    def give(file_obj: Any, kwargs: dict[str, Any]) -> Iterable[torch.Tensor]:
        assert (file_obj, kwargs) == ("there", {"b": 2})
        together = torch.cat(kept[1])  # parts of one tensor are accepted
        return iter(together.split([tensor.numel() for tensor in kept[1]]))

    expected = {"x": torch.arange(5), "y": torch.ones(3)}
    save(ours, expected, pt, file_obj="there", save_func=keep, a=1)
    assert kept[0] == "there"
    assert kept[2] == {"a": 1}
    assert all(tensor.dtype == torch.uint8 and tensor.dim() == 1 for tensor in kept[1])
    assert_alike(load(ours, pt, file_obj="there", load_func=give, b=2), expected)


def test_arguments_reach_the_serializer_and_the_deserializer(pt: str) -> None:
    key = os.urandom(32)
    expected = {"x": torch.arange(5)}
    save(ours, expected, pt, encryption=EncryptionParams(key))
    with pytest.raises(Exception, match=r"(?i)key|crypt"):
        load(ours, pt)
    decryption = DecryptionParams.from_key(key)
    assert_alike(load(ours, pt, encryption=decryption, verify_hash=True), expected)
    with pytest.raises(TypeError, match="nonsense"):
        save(ours, expected, pt, nonsense=1)
    save(ours, expected, pt)
    found = load(ours, pt, device="meta")
    assert found["x"].device.type == "meta"


def test_weights_only_is_refused(pt: str) -> None:
    expected = {"x": torch.arange(5)}
    save(ours, expected, pt)
    for module, why in ((ours, "suppress_weights_only"), (theirs, "weights")):
        with module.tensorizer_loading(), pytest.raises(RuntimeError, match=why):
            torch.load(pt, weights_only=True)
    with tensorizer_loading():
        assert_alike(torch.load(pt), expected)
    with tensorizer_loading(suppress_weights_only=True):
        assert_alike(torch.load(pt, weights_only=True), expected)


def test_another_pickle_module_is_refused(pt: str) -> None:
    other = ModuleType("other")
    with tensorizer_saving(), pytest.raises(ValueError, match="pickle_module"):
        torch.save(1, pt, pickle_module=other)
    save(ours, 1, pt)
    with tensorizer_loading(), pytest.raises(ValueError, match="pickle_module"):
        torch.load(pt, pickle_module=other)
    with tensorizer_saving(), tensorizer_loading():
        torch.save([2], pt, pickle)
        assert torch.load(pt, None, pickle) == [2]


def test_files_of_torch_itself_load_as_ever(pt: str) -> None:
    expected = {"x": torch.arange(5)}
    SAVE(expected, pt)
    assert_alike(load(ours, pt), expected)
    with tensorizer_loading():
        assert torch.load(pt, map_location="meta")["x"].is_meta
        assert_alike(torch.load(pt, mmap=True), expected)


def test_a_save_that_fails_leaves_the_old_tensors(pt: str) -> None:
    save(ours, {"x": torch.arange(5)}, pt)
    before = Path(f"{pt}.tensors").read_bytes()
    with pytest.raises((AttributeError, pickle.PicklingError)):
        save(ours, [torch.ones(3), lambda: None], pt)
    assert Path(f"{pt}.tensors").read_bytes() == before


def unpickle(saved: object, read: Callable[[], Iterable[torch.Tensor]]) -> object:
    """Unpickles an object that is one persistent id, as torch.load does."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: object) -> object:
            return saved if obj == "it" else None

    file = io.BytesIO()
    Pickler(file).dump("it")
    file.seek(0)
    unpickler = sidecar.loading_pickle(read).Unpickler(file)
    unpickler.persistent_load = lambda pid: ("torch's own", pid)
    return unpickler.load()


@pytest.mark.parametrize(
    ("saved", "says"),
    [
        (("TensorizerPickler", 0, "storage", 2, torch.int8), "storage 2, and the file has 2"),
        (("TensorizerPickler", 0, "storage", -1, torch.int8), "storage -1"),
        (("TensorizerPickler", 0, "storage", 2**70, None), "the file has 2"),
        (("TensorizerPickler", 1, "storage", 0, None), "version 1"),
        (("TensorizerPickler", 0, "tensor", 0, None), "unknown kind"),
        (("TensorizerPickler", 0, "storage", "0", None), "unknown kind"),
        (("TensorizerPickler", 0, "storage", 0, "int8"), "unknown kind"),
        (("TensorizerPickler", 0, "storage", 0), "unknown kind"),
        (("TensorizerPickler",), "unknown kind"),
        (("TensorizerPickler", "x" * 9999), r"unknown kind.{,250}$"),
    ],
)
def test_pickles_that_make_no_sense(saved: object, says: str) -> None:
    def read() -> list[torch.Tensor]:
        return [torch.ones(2, dtype=torch.uint8), torch.ones(3, dtype=torch.uint8)]

    assert unpickle(("storage", 1), read) == ("torch's own", ("storage", 1))
    assert unpickle("text", read) == ("torch's own", "text")
    found = unpickle(("TensorizerPickler", 0, "storage", 1, torch.bool), read)
    assert isinstance(found, torch.TypedStorage)
    assert found.dtype == torch.bool
    with pytest.raises(pickle.UnpicklingError, match=says):
        unpickle(saved, read)


def test_tensors_that_are_not_where_they_are_looked_for(pt: str, tmp_path: Path) -> None:
    save(ours, {"x": torch.arange(5)}, pt)
    with pytest.raises(pickle.UnpicklingError, match="file_obj="):
        load(ours, io.BytesIO(Path(pt).read_bytes()))
    torch.ops.tensorizer.save(str(tmp_path / "named"), {"x": torch.ones(5)})
    with pytest.raises(pickle.UnpicklingError, match="by name"):
        load(ours, pt, file_obj=tmp_path / "named")
    save(ours, {"x": torch.arange(3)}, str(tmp_path / "smaller.pt"))
    with pytest.raises(pickle.UnpicklingError, match="needs 40 bytes of storage 0, which has 24"):
        load(ours, pt, file_obj=tmp_path / "smaller.pt.tensors")
    os.remove(f"{pt}.tensors")
    with pytest.raises(FileNotFoundError, match=r"model\.pt\.tensors"):
        load(ours, pt)


def test_a_pickle_cannot_be_signed(pt: str, signer: Signer) -> None:
    with tensorizer_saving():
        torch.save([torch.ones(2)], pt)
    tensorizer_ops.sign(pt + ".tensors", key=signer.private)
    torch.save([torch.zeros(2)], pt)  # a pickle that has its tensors itself
    for more in ({}, {"load_func": lambda file, kwargs: []}):
        with (
            pytest.raises(errors.InvalidArgument, match="a pickle, which no signature covers"),
            tensorizer_loading(device="cpu", options=signer.options, **more),
        ):
            torch.load(pt, weights_only=False)
