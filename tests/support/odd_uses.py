"""What is done with odd tensors, each time in a process that may die.

``python -m support.odd_uses [FUNCTION …]`` prints what became of every tensor in every function.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import signal
import sys
import tempfile
import traceback
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor

import tensorizer_ops
from support.folders import save_folder, save_folder_async
from support.odd_tensors import NEED_TORCHAO, TENSORS, join_a_group
from support.samples import raw, same
from tensorizer_ops import checkpoint, distributed, protobuf, safetensors
from tensorizer_ops.serialization import TensorDeserializer, TensorSerializer

ops = torch.ops.tensorizer
errors = tensorizer_ops.errors
NAME = "odd one"

# What is done with a tensor in an empty folder: the tensor has these elements, if any.
Use = Callable[[Path, Any, "torch.Tensor | None"], None]


class WrongBytes(AssertionError):
    """A function took a tensor, and did not do with its elements what it says."""


def _must_be(found: torch.Tensor, elements: torch.Tensor | None) -> None:
    if elements is None:
        raise WrongBytes(f"took it without an error, as {found!r}")
    if not same(found.as_subclass(torch.Tensor).detach(), elements):
        raise WrongBytes(f"has {found!r} in place of {elements!r}")


def _saves(save: Callable[[str, Any], None], suffix: str = ".tensors") -> Any:
    """Returns a function that checks what a save has written."""

    def run(folder: Path, tensor: Any, elements: torch.Tensor | None) -> None:
        path = str(folder / f"saved{suffix}")
        save(path, tensor)
        loaded = tensorizer_ops.load(path)
        if tensor.is_meta and elements is None:
            elements = torch.zeros(tensor.shape)
        _must_be(next(iter(loaded.values())), elements)

    return run


def _save_to_a_file_object(path: str, tensor: Any) -> None:
    with open(path, "wb") as file:
        tensorizer_ops.save(file, {NAME: tensor})


def _save_with_a_writer(path: str, tensor: Any) -> None:
    with tensorizer_ops.Writer(path) as writer:
        writer[NAME] = tensor


def _save_a_checkpoint_async(path: str, tensor: Any) -> None:
    state = {NAME: tensor, "other": torch.ones(2)}
    checkpoint.save_async(path, state, group=False).result()


def _save_distributed(path: str, tensor: Any) -> None:
    join_a_group()
    distributed.save(path, {NAME: tensor})


def _serialize(write: Callable[[TensorSerializer, Any], None]) -> Any:
    def run(path: str, tensor: Any) -> None:
        with TensorSerializer(path) as serializer:
            write(serializer, tensor)

    return _saves(run)


def _safetensors_save(path: str, tensor: Any) -> None:
    Path(path).write_bytes(safetensors.save({NAME: tensor}))


class _Holder(torch.nn.Module):
    def __init__(self, tensor: Any) -> None:
        super().__init__()
        self._buffers[NAME] = tensor


def _verify(folder: Path, tensor: Any, elements: torch.Tensor | None) -> None:
    same_file, other_file = str(folder / "same.tensors"), str(folder / "other.tensors")
    like = elements if elements is not None else torch.ones(2, 3)
    tensorizer_ops.save(same_file, {NAME: like})
    tensorizer_ops.save(other_file, {NAME: 1 - like})
    for how in ("crc32", "all"):
        tensorizer_ops.verify_tensors(same_file, {NAME: tensor}, verify=how)
        try:
            tensorizer_ops.verify_tensors(other_file, {NAME: tensor}, verify=how)
        except errors.HashMismatch:
            continue
        raise WrongBytes("counts as the same as other values")
    _must_be(like, elements)


def _fills(fill: Callable[[str, dict[str, Any]], None]) -> Any:
    """Returns a function that checks what a load has put into a tensor."""

    def run(folder: Path, tensor: Any, elements: torch.Tensor | None) -> None:
        path = str(folder / "new.tensors")
        shape = (2, 3) if elements is None else elements.shape
        new = torch.arange(6.0).add(100).reshape(shape)
        tensorizer_ops.save(path, {NAME: new})
        state = {NAME: tensor}
        fill(path, state)
        for found in _parts(state[NAME]):
            if not found.is_meta:  # copy_() leaves such tensors as they are, too
                _must_be(found, new)

    return run


def _parts(tensor: Any) -> Iterator[torch.Tensor]:
    """Yields the plain tensors that a tensor consists of."""
    if isinstance(tensor, DTensor):
        yield from _parts(tensor._local_tensor)
    elif torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Functionalize):  # type: ignore[attr-defined]
        torch._sync(tensor)
        yield from _parts(torch._from_functional_tensor(tensor))
    elif hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _parts(getattr(tensor, name))
    else:
        yield tensor


def _load_with_the_op(path: str, state: dict[str, Any]) -> None:
    ops.load_into(path, list(state), list(state.values()))


def _load_with_the_reader(path: str, state: dict[str, Any]) -> None:
    torch.classes.tensorizer.Reader(path, None).load_into(
        list(state), list(state.values()), "none", 0, False
    )


def _load_into_a_module(path: str, state: dict[str, Any]) -> None:
    module = _Holder(state[NAME])
    tensorizer_ops.load_into(module, path)
    state[NAME] = module._buffers[NAME]


def _open(folder: Path, tensor: Any, elements: torch.Tensor | None) -> None:
    reader = ops.open(tensor)
    assert reader.names() == ["inside"]
    found = reader.load(None, None, None, "all", True, 0)["inside"]
    _must_be(found, None if elements is None else torch.ones(3))


def _file_bytes() -> torch.Tensor:
    return torch.frombuffer(bytearray(_file()), dtype=torch.uint8)


def _file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        tensorizer_ops.save(f"{folder}/x.tensors", {"inside": torch.ones(3)})
        return Path(f"{folder}/x.tensors").read_bytes()


def _digests(op: Callable[[Any], Any], digest: Callable[[bytes], list[int]]) -> Any:
    def run(folder: Path, tensor: Any, elements: torch.Tensor | None) -> None:
        found = op(tensor)
        if tensor.is_meta:
            return
        for each in [found] if isinstance(found, int) else _parts(found):
            numbers = [each] if isinstance(each, int) else each.flatten().tolist()
            if elements is None or numbers != digest(raw(elements)):
                raise WrongBytes(f"has the digest {numbers}")

    return run


def _in_chunks(data: bytes) -> list[int]:
    chunks = (data[at : at + 16] for at in range(0, len(data), 16))
    return [byte for chunk in chunks for byte in hashlib.sha256(chunk).digest()]


def _dcp_save(
    folder: Path, tensor: Any, elements: torch.Tensor | None, in_background: bool = False
) -> None:
    place = str(folder / "checkpoint")
    state = {NAME: tensor}
    if isinstance(tensor, DTensor):  # it has a group
        if in_background:
            checkpoint.save_async(place, state).result()
        else:
            checkpoint.save(place, state)
    elif in_background:
        save_folder_async(place, state).result()
    else:
        save_folder(place, state)
    loaded = checkpoint.load(place, {NAME: torch.zeros(tensor.shape)})
    _must_be(loaded[NAME], elements)


def _load_from_a_folder(path: str, state: dict[str, Any]) -> None:
    save_folder(path + ".checkpoint", tensorizer_ops.load(path))
    checkpoint.load(path + ".checkpoint", state)


def _load_from_a_file(path: str, state: dict[str, Any]) -> None:
    checkpoint.save(path, tensorizer_ops.load(path, copy=True), group=False)
    checkpoint.load(path, state)


def _load_into_module(path: str, state: dict[str, Any]) -> None:
    module = _Holder(state[NAME])
    with TensorDeserializer(path) as deserializer:
        deserializer.load_into_module(module)
    state[NAME] = module._buffers[NAME]


def _verify_module(folder: Path, tensor: Any, elements: torch.Tensor | None) -> None:
    like = torch.ones(2, 3) if elements is None else elements
    for values in (like, 1 - like):
        path = str(folder / "saved.tensors")
        with TensorSerializer(path) as serializer:
            serializer.write_module(_Holder(values))
        with TensorDeserializer(path) as deserializer:
            is_same, _ = deserializer.verify_module(_Holder(tensor))
        if is_same != (elements is not None and values is like):
            raise WrongBytes(f"counts as the same: {is_same}")


def _load_model(path: str, state: dict[str, Any]) -> None:
    module = _Holder(state[NAME])
    tensorizer_ops.convert(path, path + ".safetensors")
    safetensors.load_model(module, path + ".safetensors")
    state[NAME] = module._buffers[NAME]


def _to_a_message(folder: Path, tensor: Any, elements: torch.Tensor | None) -> None:
    _must_be(protobuf.deserialize_tensor(protobuf.serialize_tensor(tensor)), elements)


def _in_inference_mode(run: Use) -> Use:
    """Returns a function that autograd does not see."""

    def run_unseen(folder: Path, tensor: Any, elements: torch.Tensor | None) -> None:
        with torch.inference_mode():
            run(folder, tensor, elements)

    return run_unseen


FUNCTIONS: dict[str, Use] = {
    "save": _saves(lambda path, x: tensorizer_ops.save(path, {NAME: x})),
    "save to a file object": _saves(_save_to_a_file_object),
    "save_async": _saves(lambda path, x: tensorizer_ops.save_async(path, {NAME: x}).result()),
    "the op save": _saves(lambda path, x: ops.save(path, {NAME: x})),
    "Writer": _saves(_save_with_a_writer),
    "checkpoint.save": _saves(lambda path, x: checkpoint.save(path, {NAME: x}, group=False)),
    "checkpoint.save_async": _saves(_save_a_checkpoint_async),
    "distributed.save": _saves(_save_distributed),
    "distributed.save alone": _saves(lambda path, x: distributed.save(path, {NAME: x})),
    "checkpoint.save to a folder": _dcp_save,
    "checkpoint.save_async to a folder": functools.partial(_dcp_save, in_background=True),
    "checkpoint.load": _fills(_load_from_a_file),
    "checkpoint.load of a folder": _fills(_load_from_a_folder),
    "verify_tensors": _verify,
    "load_into": _fills(lambda path, state: tensorizer_ops.load_into(state, path)),
    "load_into of a module": _fills(_load_into_a_module),
    "the op load_into": _fills(_load_with_the_op),
    "load_into of a scripted reader": _fills(_load_with_the_reader),
    "open": _open,
    "crc32": _digests(ops.crc32, lambda data: [zlib.crc32(data)]),
    "sha256": _digests(ops.sha256, lambda data: list(hashlib.sha256(data).digest())),
    "sha256_chunks": _digests(lambda x: ops.sha256_chunks(x, 16), _in_chunks),
    "safetensors.save_file": _saves(
        lambda path, x: safetensors.save_file({NAME: x}, path), ".safetensors"
    ),
    "safetensors.save": _saves(_safetensors_save, ".safetensors"),
    "safetensors.save_model": _saves(
        lambda path, x: safetensors.save_model(_Holder(x), path), ".safetensors"
    ),
    "write_tensor": _serialize(lambda to, x: to.write_tensor(0, NAME, 2, x)),  # type: ignore[arg-type]
    "write_state_dict": _serialize(lambda to, x: to.write_state_dict({NAME: x})),
    "write_module": _serialize(lambda to, x: to.write_module(_Holder(x))),
    "load_into_module": _fills(_load_into_module),
    "verify_module": _verify_module,
    "safetensors.load_model": _fills(_load_model),
    "protobuf": _to_a_message,
}
IN_INFERENCE_MODE = " in inference mode"
for name in ("save", "the op save", "open", "crc32", "sha256", "sha256_chunks"):
    FUNCTIONS[name + IN_INFERENCE_MODE] = _in_inference_mode(FUNCTIONS[name])
# Functions whose argument has no name of the caller's, and what their errors call it.
UNNAMED = {"open": "", "crc32": "data", "sha256": "data", "sha256_chunks": "data", "protobuf": ""}


def _outcome(error: BaseException, function: str) -> str:
    """Says what is wrong with an error; returns nothing if it is one that names the tensor."""
    if isinstance(error, CheckpointException):
        error = error.failures[0][0]
    trace = traceback.extract_tb(error.__traceback__)
    is_ours = isinstance(error, errors.Error) or "/tensorizer_ops/" in trace[-1].filename
    name = UNNAMED.get(function.removesuffix(IN_INFERENCE_MODE), NAME)
    text = f"{type(error).__name__}: {error}"[:600]
    if isinstance(error, WrongBytes):
        return text
    return "" if is_ours and name in str(error) else NOT_OURS + text


NOT_OURS = "an error that is not ours, or does not name the tensor: "


class Case(NamedTuple):
    function: str
    tensor: str


def _try(case: Case) -> str:
    """Returns what went wrong; nothing if the tensor was taken rightly, or refused by name."""
    with tempfile.TemporaryDirectory() as folder:
        run = FUNCTIONS[case.function]
        elements = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]])
        opens = case.function.startswith("open")
        if opens:
            elements = _file_bytes()
        try:
            made: list[bool] = []

            def taken(tensor: Any, right: torch.Tensor | None) -> None:
                made.append(True)
                run(Path(folder), tensor, right)

            TENSORS[case.tensor](elements, taken)
        except BaseException as error:  # such as torch's CheckpointException
            if not made:
                return f"cannot be made: {error!r}" if not opens else ""
            return _outcome(error, case.function)
        return ""


def _child(cases: list[Case], pipe: int) -> None:
    torch.set_num_threads(1)
    for case in cases:
        os.write(pipe, b"?")
        text = _try(case).encode()
        os.write(pipe, len(text).to_bytes(4, "little") + text)
    os._exit(0)


def outcomes(cases: list[Case]) -> Iterator[tuple[Case, str]]:
    """Tries cases in children of this process, one after another, each from where one died."""
    while cases:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _child(cases, writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            while pipe.read(1):
                size = pipe.read(4)
                if not size:
                    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                    how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
                    yield cases.pop(0), f"dies of {how}"
                    break
                yield cases.pop(0), pipe.read(int.from_bytes(size, "little")).decode()
            else:
                os.waitpid(child, 0)
                assert not cases, f"a child ended before {cases[0]}"


def main(functions: list[str], without: set[str]) -> None:
    cases = [
        Case(function, tensor)
        for function in functions or FUNCTIONS
        for tensor in TENSORS
        if tensor not in without
    ]
    found: dict[str, dict[str, str]] = {}
    for case, text in outcomes(cases):
        found.setdefault(case.function, {})[case.tensor] = text
    print(json.dumps(found))


if __name__ == "__main__":
    try:
        import torchao.float8
        import torchao.quantization  # noqa: F401
    except ImportError:
        main(sys.argv[1:], NEED_TORCHAO)
    else:
        main(sys.argv[1:], set())
