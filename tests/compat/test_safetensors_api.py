"""tensorizer_ops.safetensors, compared with the safetensors library call by call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import safetensors
import safetensors.torch
import torch

import tensorizer_ops
import tensorizer_ops.safetensors as ours
from support.samples import DTYPES, SAFETENSORS_NAMES, assert_same, raw, sample


class Theirs(ModuleType):
    """Both modules of the library in one."""

    def __getattr__(self, name: str) -> object:
        return getattr(safetensors.torch, name, None) or getattr(safetensors, name)


LIBRARIES = {"theirs": Theirs("theirs"), "ours": ours}
FUNCTIONS = ("save_file", "save", "load_file", "load", "save_model", "load_model")


def tensors() -> dict[str, torch.Tensor]:
    return {
        **{name: sample(DTYPES[name], (40, 50), i) for i, name in enumerate(SAFETENSORS_NAMES)},
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(7),
        "ü": torch.ones(2),
    }


class Tied(torch.nn.Module):
    def __init__(self, size: int = 6) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(size, 4)
        self.head = torch.nn.Linear(4, size)
        self.head.weight = self.embedding.weight
        self.register_buffer("own", torch.rand(3))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "m.safetensors")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_are_the_same(name: str) -> None:
    def arguments(function: Callable[..., object]) -> list[tuple[str, object, object]]:
        parameters = inspect.signature(function).parameters.values()
        return [(each.name, each.kind, each.default) for each in parameters]

    assert arguments(getattr(ours, name)) == arguments(getattr(LIBRARIES["theirs"], name))


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}])
def test_files_and_bytes_are_the_same(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    expected = safetensors.torch.save(tensors(), metadata)
    assert ours.save(tensors(), metadata) == expected
    ours.save_file(tensors(), tmp_path / "m", metadata)
    assert (tmp_path / "m").read_bytes() == expected


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_loads_are_the_same(path: str, backend: str) -> None:
    state = tensors()
    if backend == "pread":
        del state["float4_e2m1fn_x2"]  # the other library gives it a wrong shape then
    safetensors.torch.save_file(state, path)
    theirs = safetensors.torch.load_file(path, backend=backend)
    found = ours.load_file(path, backend=backend)
    assert list(found) == list(theirs)
    assert_same(found, theirs)
    assert_same(ours.load_file(Path(path), "cpu"), theirs)
    assert all(tensor.is_meta for tensor in ours.load_file(path, device="meta").values())
    data = Path(path).read_bytes()
    assert_same(dict(sorted(ours.load(data).items())), dict(sorted(theirs.items())))


def test_safe_open_is_the_same(path: str) -> None:
    safetensors.torch.save_file(tensors(), path, {"format": "pt", "a": "b"})
    with safetensors.safe_open(path, "pt") as theirs, ours.safe_open(path, framework="pt") as found:
        assert found.keys() == theirs.keys()
        assert found.offset_keys() == theirs.offset_keys()
        assert found.metadata() == theirs.metadata()
        for name in theirs.keys():  # noqa: SIM118 (it is no dict)
            assert raw(found.get_tensor(name)) == raw(theirs.get_tensor(name))
            assert found.get_tensor(name).shape == theirs.get_tensor(name).shape
        assert_same(found.get_tensors(), theirs.get_tensors())
    for opened in (theirs, found):
        with pytest.raises(Exception, match=r"closed") as error:
            opened.keys()
        assert isinstance(error.value, (safetensors.SafetensorError, ours.SafetensorError))
    safetensors.torch.save_file({}, path)
    with ours.safe_open(path, "pt") as found:
        assert found.metadata() is None and found.keys() == []


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}])
def test_metadata_without_text_is_not_none(
    path: str, library: str, metadata: dict[str, str] | None
) -> None:
    """Theirs and ours read the same, whoever wrote the file."""
    save_file = {"ours": ours.save_file, "theirs": safetensors.torch.save_file}[library]
    save_file(tensors(), path, metadata)
    with safetensors.safe_open(path, "pt") as theirs, ours.safe_open(path, "pt") as found:
        assert found.metadata() == theirs.metadata() == metadata
    assert tensorizer_ops.metadata(path) == (metadata or {})


INDICES: list[object] = [
    *(0, -1, 5, -3, (0, 1), (0, 0, 0), (slice(None), 1), (Ellipsis, 0), Ellipsis, (), (Ellipsis,)),
    *(slice(0, 1), slice(None, None, 2), slice(2, 0, -1), slice(5, 9), slice(-100, 100)),
    *(slice(1, 0), (slice(0, 2), slice(-1, None)), (slice(None), slice(None, None, 3))),
    *([0, 1], (slice(None), [0, 2]), None, (None, 0), True, torch.tensor([0])),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
def test_slices_are_the_same(path: str, index: object) -> None:
    safetensors.torch.save_file({"x": torch.arange(6).reshape(2, 3)}, path)
    results = []
    for library in LIBRARIES.values():
        with library.safe_open(path, "pt") as opened:
            part = opened.get_slice("x")
            assert part.get_shape() == [2, 3] and part.get_dtype() == "I64"
            try:
                found = part[index]
                results.append((found.shape, found.tolist()))
            except (IndexError, ValueError) as error:
                results.append(type(error))
    assert results[0] == results[1]


def test_slices_of_every_type(path: str) -> None:
    safetensors.torch.save_file(tensors(), path)
    with safetensors.safe_open(path, "pt") as theirs, ours.safe_open(path, "pt") as found:
        for name in found.keys():  # noqa: SIM118 (it is no dict)
            part = found.get_slice(name)
            assert part.get_dtype() == theirs.get_slice(name).get_dtype()
            if name != "float4_e2m1fn_x2":  # whose shape is that of the file in the other library
                assert part.get_shape() == theirs.get_slice(name).get_shape()
                assert raw(part[...]) == raw(theirs.get_slice(name)[...])


@pytest.mark.parametrize("names", [["ours", "theirs"], ["theirs", "ours"], ["ours", "ours"]])
def test_models_with_tied_weights(path: str, names: list[str]) -> None:
    saver, loader = (LIBRARIES[name] for name in names)
    model, other = Tied(), Tied()
    saver.save_model(model, path, {"note": "n"})
    with safetensors.safe_open(path, "pt") as opened:
        assert opened.metadata() == {"note": "n", "head.weight": "embedding.weight"}
    missing, unexpected = loader.load_model(other, path)
    assert (missing, unexpected) == (set(), [])
    assert_same(other.state_dict(), model.state_dict())
    assert other.head.weight is other.embedding.weight


def test_a_model_takes_the_name_that_the_file_has(path: str) -> None:
    model, other = Tied(), Tied()
    state = {n: t for n, t in model.state_dict().items() if n != "embedding.weight"}
    safetensors.torch.save_file(state, path)
    assert ours.load_model(other, path) == safetensors.torch.load_model(Tied(), path)
    assert_same(other.state_dict(), model.state_dict())


@pytest.mark.parametrize("strict", [True, False])
def test_a_model_of_other_names(path: str, strict: bool) -> None:
    state = Tied().state_dict()
    del state["own"], state["head.weight"]
    safetensors.torch.save_file({**state, "more": torch.ones(1)}, path)
    results = []
    for library in LIBRARIES.values():
        try:
            results.append(library.load_model(Tied(), path, strict=strict))
        except RuntimeError as error:
            assert "own" in str(error) and "more" in str(error)
            results.append(RuntimeError)
    assert results[0] == results[1]


def shared() -> torch.Tensor:
    return torch.arange(10.0)


# What both libraries refuse, and the built-in exceptions that both raise.
REFUSED: dict[str, tuple[Callable[[], object], type[Exception]]] = {
    "list": (lambda: [1], ValueError),
    "number": (lambda: {"a": 1}, ValueError),
    "sparse": (lambda: {"a": torch.eye(2).to_sparse()}, ValueError),
    "transposed": (lambda: {"a": torch.ones(3, 2).t()}, ValueError),
    "meta": (lambda: {"a": torch.ones(3, 2, device="meta")}, RuntimeError),
    "shared": (lambda: dict.fromkeys("ab", shared()), RuntimeError),
    "overlapping": (lambda: (lambda x: {"a": x[:6], "b": x[4:]})(shared()), RuntimeError),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(path: str, case: str) -> None:
    make, kind = REFUSED[case]
    for library in LIBRARIES.values():
        for save in (lambda: library.save_file(make(), path), lambda: library.save(make())):  # noqa: B023
            with pytest.raises(kind, match="Cannot copy out of meta" if case == "meta" else None):
                save()
    assert not Path(path).exists()


def test_a_model_that_is_not_contiguous(path: str) -> None:
    module = torch.nn.Module()
    module.register_buffer("a", torch.arange(6.0).reshape(2, 3).t())
    for library in LIBRARIES.values():
        with pytest.raises(ValueError, match=r"use save_model\(\.\.\., force_contiguous=True\)"):
            library.save_model(module, path, force_contiguous=False)
        library.save_model(module, path)
        assert_same(ours.load_file(path), {"a": module.a})


def test_parts_of_one_memory_that_do_not_overlap_are_saved(path: str) -> None:
    def state() -> dict[str, torch.Tensor]:
        whole = shared()
        return {"a": whole[:5], "b": whole[5:], "none": whole[5:5]}

    assert ours.save(state()) == safetensors.torch.save(state())


def test_storages_of_different_sizes_are_saved(path: str) -> None:
    def state() -> dict[str, torch.Tensor]:
        whole = shared()
        return {"whole": whole, "part": torch.empty(0).set_(whole.untyped_storage()[:16])}

    assert ours.save(state()) == safetensors.torch.save(state())


def test_parts_of_which_none_is_whole_are_no_model(path: str) -> None:
    module = torch.nn.Module()
    whole = shared()
    module.register_buffer("a", whole[:6])
    module.register_buffer("b", whole[4:])
    for library in LIBRARIES.values():
        with pytest.raises(RuntimeError, match=r"(?i)none"):
            library.save_model(module, path)


def test_errors(tmp_path: Path, path: str) -> None:
    for library in LIBRARIES.values():
        with pytest.raises(FileNotFoundError):
            library.safe_open(str(tmp_path / "none"), "pt")
        with pytest.raises(library.SafetensorError):
            library.load(b"hello")
        with pytest.raises(library.SafetensorError):
            library.load(b"")
        safetensors.torch.save_file({"a": torch.ones(1)}, path)
        with library.safe_open(path, "pt") as opened, pytest.raises(library.SafetensorError):
            opened.get_tensor("b")
        for arguments in ({"framework": "no"}, {"framework": "pt", "device": "no"}):
            with pytest.raises(library.SafetensorError):
                library.safe_open(path, **arguments)
        with pytest.raises(library.SafetensorError):
            library.safe_open(path, "pt", backend="no")


def test_the_rest_of_this_library_is_within_reach(tmp_path: Path) -> None:
    """Files of the other format open, too."""
    tensorizer_ops.save(tmp_path / "m.tensors", {"x": torch.ones(3)}, metadata={"a": "b"})
    with ours.safe_open(tmp_path / "m.tensors", "pt") as opened:
        assert opened.metadata() == {"a": "b"}
        assert torch.equal(opened.get_tensor("x"), torch.ones(3))


class WithText(torch.nn.Module):
    def get_extra_state(self) -> dict[str, str]:
        return {"text": "kept beside the tensors"}


def test_a_state_that_is_no_tensor_is_named(path: str) -> None:
    with pytest.raises(ValueError, match="tensor '_extra_state' cannot be saved: it is dict"):
        ours.save_model(WithText(), path)
    assert not Path(path).exists()
