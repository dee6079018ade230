"""`verify_tensors`: what a program holds, beside the hashes of a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

import tensorizer_ops
from support.odd_tensors import Named, Scaled
from support.samples import zoo
from support.signer import Signer
from tensorizer_ops import Hashes, attest, errors, verify_tensors

SAVES = [
    *(("m.tensors", hashes) for hashes in get_args(Hashes) if hashes != "none"),
    *(("m.safetensors", hashes) for hashes in ("sha256", "chunked")),
]


def changed(tensor: torch.Tensor, place: int) -> torch.Tensor:
    """Return a tensor with one other bit."""
    data = tensor.view(-1).view(torch.uint8).clone()
    data[place] ^= 1
    return data.view(tensor.dtype).view(tensor.shape)


@pytest.mark.parametrize(("name", "hashes"), SAVES)
def test_every_bit_counts(tmp_path: Path, name: str, hashes: str) -> None:
    tensors = zoo()
    if name.endswith(".safetensors"):  # which has fewer types
        tensors = {kind: tensors[kind] for kind in ("bool", "bfloat16", "float8_e4m3fn", "int64")}
    tensors["large"] = torch.arange(700_000)
    tensorizer_ops.save(tmp_path / name, tensors, hashes=hashes)
    for verify in ("all", "crc32"):
        verify_tensors(tmp_path / name, tensors, verify=verify)
        for wrong in tensors:
            if tensors[wrong].numel() == 0:
                continue
            bad = {**tensors, wrong: changed(tensors[wrong], -1)}
            with pytest.raises(errors.HashMismatch, match=f"'{wrong}'.*hat was saved$") as caught:
                verify_tensors(tmp_path / name, bad, verify=verify)
            assert str(caught.value).count("\n") == 1


def test_bits_of_bool_that_is_not_contiguous(tmp_path: Path) -> None:
    """Of which torch copies only 0 and 1."""
    mask = torch.randint(2, (20, 30)).bool()
    tensorizer_ops.save(tmp_path / "m.tensors", {"mask": mask})
    own = mask.t().contiguous().t()
    verify_tensors(tmp_path / "m.tensors", {"mask": own})
    own.view(torch.uint8)[3, 4] ^= 2
    with pytest.raises(errors.HashMismatch, match="'mask'"):
        verify_tensors(tmp_path / "m.tensors", {"mask": own})
    assert list(attest({"mask": own}, tmp_path / "m.tensors").different) == ["mask"]


def test_all_places_are_named(tmp_path: Path) -> None:
    path = tmp_path / "m.tensors"
    tensors = {f"t{i}": torch.arange(400_000) for i in range(3)}
    tensorizer_ops.save(path, tensors, hashes="chunked")
    tensors["t1"] = changed(changed(tensors["t1"], 0), 3_199_999)
    tensors["t2"] = changed(tensors["t2"], 1 << 20)
    with pytest.raises(errors.HashMismatch) as caught:
        verify_tensors(path, tensors)
    assert str(caught.value) == (
        f"'{path}' has other values:\n"
        "tensor 't1' (index entry 1): its bytes from 0 to 1048576 do not have the SHA-256 that was "
        "saved\n"
        "tensor 't1' (index entry 1): its bytes from 3145728 to 3200000 do not have the SHA-256 "
        "that was saved\n"
        "tensor 't2' (index entry 2): its bytes from 1048576 to 2097152 do not have the SHA-256 "
        "that was saved"
    )


def test_modules_and_views(tmp_path: Path) -> None:
    path = tmp_path / "m.tensors"
    model = torch.nn.Linear(30, 20)
    tensorizer_ops.save(path, model.state_dict())
    verify_tensors(path, model)
    verify_tensors(path, {"weight": model.weight.detach().t().clone().t()})
    tied = torch.nn.ModuleDict({"a": model, "b": model})
    tensorizer_ops.save(path, {"a.weight": model.weight, "a.bias": model.bias})
    verify_tensors(path, tied)
    with torch.no_grad():
        model.bias[3] += 1
    with pytest.raises(errors.HashMismatch, match=r"'a\.bias'"):
        verify_tensors(path, tied)


def test_encrypted_files(tmp_path: Path) -> None:
    path = tmp_path / "m.tensors"
    tensorizer_ops.keys.add("memory", key=bytes(range(32)))
    options = {"key": "named:memory"}
    tensors = {"w": torch.arange(1000)}
    tensorizer_ops.save(path, tensors, hashes="sha256", options=options)
    verify_tensors(path, tensors, options=options)
    with pytest.raises(errors.HashMismatch):
        verify_tensors(path, {"w": torch.arange(1, 1001)}, options=options)
    tensorizer_ops.save(path, tensors, hashes="none", options=options)
    with pytest.raises(errors.InvalidArgument, match="nothing to verify"):
        verify_tensors(path, tensors, options=options)


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    path = tmp_path / "m.tensors"
    tensorizer_ops.save(path, {"w": torch.ones(2, 3)}, hashes="none")
    for tensor, match in (
        (torch.ones(3, 2), r"is float32\[2, 3\], and the tensor in memory float32\[3, 2\]"),
        (torch.ones(2, 3).half(), r"is float32\[2, 3\], and the tensor in memory float16\[2, 3\]"),
        (torch.ones(2, 3), "nothing to verify"),
        (torch.ones(2, 3, device="meta"), "in memory cannot be verified: it is on the meta device"),
    ):
        with pytest.raises(ValueError, match=match):
            verify_tensors(path, {"w": tensor})
    with pytest.raises(KeyError, match="no tensor 'v'"):
        verify_tensors(path, {"v": torch.ones(2)})
    with pytest.raises(ValueError, match="cannot be verified: its name has half of a surrogate"):
        verify_tensors(path, {"\ud800": torch.ones(2)})
    with pytest.raises(TypeError, match="tensors is list"):
        verify_tensors(path, [torch.ones(2)])
    with pytest.raises(ValueError, match="verify is 'none'"):
        verify_tensors(path, {}, verify="none")


def test_tensors_without_data_are_zeros(tmp_path: Path) -> None:
    path = tmp_path / "m.tensors"
    with tensorizer_ops.TensorSerializer(path) as serializer:
        serializer.write_state_dict({"w": torch.empty(2, 3, device="meta"), "v": torch.ones(1)})
    loaded = tensorizer_ops.TensorDeserializer(path, device="cpu")
    for value in (0.0, -0.0, 7.0):
        tensor = torch.full((2, 3), value)
        module = torch.nn.Module()
        module.register_buffer("w", tensor)
        is_zero = tensor.view(torch.int32).count_nonzero() == 0
        assert loaded.verify_module(module)[1] == [("w", is_zero), ("v", False)]
        if is_zero:
            verify_tensors(path, {"w": tensor})
            continue
        with pytest.raises(errors.HashMismatch, match="does not have the bytes that were saved"):
            verify_tensors(path, {"w": tensor})


def test_there_must_be_something_to_verify(tmp_path: Path) -> None:
    path = tmp_path / "m.tensors"
    tensorizer_ops.save(path, {"w": torch.ones(3)})
    for nothing in ({}, torch.nn.Identity()):
        with pytest.raises(errors.InvalidArgument, match="there is nothing to verify"):
            verify_tensors(path, nothing)
    tensorizer_ops.save(path, {})
    verify_tensors(path, {})


@pytest.fixture
def signed(tmp_path: Path, signer: Signer) -> Path:
    path = tmp_path / "m.tensors"
    tensorizer_ops.save(path, {"w": torch.ones(3)})
    tensorizer_ops.sign(path, key=signer.private)
    return path


def test_what_a_module_has_beside_a_signed_file(tmp_path: Path, signer: Signer) -> None:
    """An unsigned file may have been loaded before, which adds names that a module lacks."""
    module = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2, bias=False)})
    state = module.state_dict()
    for name, tensors in {"signed": state, "other": state | {"a.bias": torch.ones(2)}}.items():
        tensorizer_ops.save(tmp_path / name, tensors, options={"format": "tensors"})
    tensorizer_ops.sign(tmp_path / "signed", key=signer.private)
    with tensorizer_ops.TensorDeserializer(tmp_path / "other", device="cpu") as other:
        other.load_into_module(module)
        assert other.verify_module(module)[0]
    module["b"] = module["a"]
    signed = tensorizer_ops.TensorDeserializer(
        tmp_path / "signed", device="cpu", options=signer.options
    )
    lacking = [("a.bias", False), ("b.bias", False)]
    assert signed.verify_module(module) == (False, [("a.weight", True), *lacking])
    unsigned = tensorizer_ops.TensorDeserializer(tmp_path / "signed", device="cpu")
    assert unsigned.verify_module(module) == (True, [("a.weight", True)])
    tensorizer_ops.sign(tmp_path / "other", key=signer.private)
    part = tensorizer_ops.TensorDeserializer(
        tmp_path / "other",
        device="cpu",
        filter_func=lambda name: "bias" not in name,
        options=signer.options,
    )
    assert part.verify_module(module) == (True, [("a.weight", True)])


def test_what_is_more_than_its_tensor(signed: Path, signer: Signer) -> None:
    scaled = Scaled(torch.ones(3))
    module = torch.nn.Module()
    module.w = torch.nn.Parameter(scaled, requires_grad=False)
    for tensors in ({"w": scaled}, module):
        verify_tensors(signed, tensors)
        with pytest.raises(errors.InvalidArgument, match="'w' cannot be verified: it is Scaled"):
            verify_tensors(signed, tensors, options=signer.options)
    loaded = tensorizer_ops.TensorDeserializer(signed, device="cpu", options=signer.options)
    with pytest.raises(errors.InvalidArgument, match="'w' cannot be verified: it is Scaled"):
        loaded.verify_module(module)


class Cached(torch.nn.Module):
    def __init__(self, cache: torch.Tensor) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)
        self.inner.register_buffer("cache", cache, persistent=False)
        self.register_buffer("other", torch.ones(2), persistent=False)


@pytest.mark.parametrize("trusted", [False, True])
def test_buffers_that_a_state_dict_leaves_out(
    tmp_path: Path, signer: Signer, trusted: bool
) -> None:
    """They are compared if the file has them, as a load fills them then."""
    path = tmp_path / "m.tensors"
    module = Cached(torch.arange(4.0))
    state, cache = module.state_dict(), {"inner.cache": torch.arange(4.0)}
    tensorizer_ops.save(path, state | cache)
    tensorizer_ops.sign(path, key=signer.private)
    options = signer.options if trusted else {}
    loaded = tensorizer_ops.TensorDeserializer(path, device="cpu", options=options)
    verify_tensors(path, module, options=options)
    found = tensorizer_ops.attest(module, path, options=options)
    assert found.equal and "inner.cache" in found.compared and not found.missing
    assert loaded.verify_module(module)[0]
    module.inner.cache[1] = 7
    with pytest.raises(errors.HashMismatch, match=r"'inner\.cache'"):
        verify_tensors(path, module, options=options)
    found = tensorizer_ops.attest(module, path, options=options)
    assert found.different == {"inner.cache": "element [1] is not that of the file"}
    assert ("inner.cache", False) in loaded.verify_module(module)[1]
    tensorizer_ops.load_into(module, path, options=options)
    verify_tensors(path, module, options=options)
    tensorizer_ops.save(path, state)
    verify_tensors(path, module)
    assert tensorizer_ops.attest(module, path).equal


def test_a_buffer_with_a_scale_that_a_state_dict_leaves_out(tmp_path: Path, signer: Signer) -> None:
    path = tmp_path / "m.tensors"
    module = Cached(Scaled(torch.ones(4)))
    tensorizer_ops.save(path, module.state_dict() | {"inner.cache": torch.ones(4)})
    tensorizer_ops.sign(path, key=signer.private)
    why = "'inner.cache' cannot be verified: it is Scaled"
    with pytest.raises(errors.InvalidArgument, match=why):
        verify_tensors(path, module, options=signer.options)
    loaded = tensorizer_ops.TensorDeserializer(path, device="cpu", options=signer.options)
    with pytest.raises(errors.InvalidArgument, match=why):
        loaded.verify_module(module)
    found = tensorizer_ops.attest(module, path, options=signer.options)
    assert "which may change what its elements mean" in found.not_compared["inner.cache"]


@pytest.mark.parametrize("trusted", [False, True])
def test_tensors_that_are_plain_attributes(signed: Path, signer: Signer, trusted: bool) -> None:
    options = signer.options if trusted else {}
    loaded = tensorizer_ops.TensorDeserializer(signed, device="cpu", options=options)
    module = torch.nn.Module()
    module.w = torch.ones(3)
    module.other = torch.zeros(3)
    verify_tensors(signed, module, options=options)
    assert loaded.verify_module(module) == (True, [("w", True)])
    module.w[1] = 7
    with pytest.raises(errors.HashMismatch, match="'w'"):
        verify_tensors(signed, module, options=options)
    assert loaded.verify_module(module) == (False, [("w", False)])


def in_hook(module: torch.nn.Module) -> None:
    module.register_state_dict_post_hook(lambda m, state, *_: state.update(w=torch.ones(3)))


def made_anew(module: torch.nn.Module) -> None:
    del module.w
    module.other = torch.nn.Parameter(torch.zeros(3))
    in_hook(module)


def before_a_buffer(module: torch.nn.Module) -> None:
    del module.w
    module.register_buffer("w", torch.ones(3))
    vars(module)["w"] = torch.zeros(3)


def as_an_attribute(module: torch.nn.Module) -> None:
    del module.w
    module.w = torch.zeros(3)
    in_hook(module)


def with_a_scale(module: torch.nn.Module) -> None:
    del module.w
    plain = torch.ones(3)
    module.register_buffer("w", plain.as_subclass(Named))
    module.w.scale = 2.0
    module.register_state_dict_post_hook(lambda m, state, *_: state.update(w=plain))


@pytest.mark.parametrize(
    "hide", [in_hook, made_anew, before_a_buffer, as_an_attribute, with_a_scale]
)
def test_a_state_dict_of_other_tensors(
    signed: Path, signer: Signer, hide: Callable[[torch.nn.Module], None]
) -> None:
    module = torch.nn.Module()
    module.w = torch.nn.Parameter(torch.zeros(3))
    hide(module)
    why = "has another tensor 'w' than the module|'w' cannot be verified: .* (no module|is Named)"
    with pytest.raises(errors.InvalidArgument, match=why):
        verify_tensors(signed, module, options=signer.options)
    loaded = tensorizer_ops.TensorDeserializer(signed, device="cpu", options=signer.options)
    with pytest.raises(errors.InvalidArgument, match=why):
        loaded.verify_module(module)


@pytest.mark.parametrize("cast", [None, torch.float32])
@pytest.mark.parametrize("hashes", ["all", "none"])
def test_the_same_bytes_of_another_type(
    tmp_path: Path, signer: Signer, hashes: Any, cast: torch.dtype | None
) -> None:
    path = tmp_path / "m.tensors"
    tensors = {"w": torch.randn(3, 3, dtype=torch.float16), "empty": torch.empty(0)}
    tensorizer_ops.save(path, tensors, hashes=hashes)
    tensorizer_ops.sign(path, key=signer.private)
    loaded = tensorizer_ops.TensorDeserializer(
        path, device="cpu", dtype=cast, options=signer.options
    )
    module = torch.nn.Module()
    for name, tensor in tensors.items():
        module.register_buffer(name, tensor)
    assert loaded.verify_module(module)[0]
    module.w = tensors["w"].view(torch.bfloat16)
    module.empty = torch.empty(0, dtype=torch.int32)
    assert loaded.verify_module(module) == (False, [("w", False), ("empty", False)])
