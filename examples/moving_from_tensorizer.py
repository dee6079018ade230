"""Code written for tensorizer, with only the imports changed.

Run it with `python examples/moving_from_tensorizer.py`. Each step is followed by its equivalent
without the classes of tensorizer, which can be scripted, compiled and called from C++.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

import tensorizer_ops

# from tensorizer import DecryptionParams, EncryptionParams, TensorDeserializer, TensorSerializer
# from tensorizer.stream_io import open_stream
# from tensorizer.utils import no_init_or_tensor
from tensorizer_ops import (
    DecryptionParams,
    EncryptionParams,
    TensorDeserializer,
    TensorSerializer,
)
from tensorizer_ops.stream_io import open_stream
from tensorizer_ops.utils import no_init_or_tensor


def make_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64))


def plain(path: Path, model: torch.nn.Module) -> torch.nn.Module:
    serializer = TensorSerializer(open_stream(path, "wb+"))
    serializer.write_module(model)
    serializer.close()

    loaded: torch.nn.Module = no_init_or_tensor(make_model)
    with TensorDeserializer(open_stream(path, "rb"), device="cpu") as deserializer:
        deserializer.load_into_module(loaded)
    return loaded


def plain_without_classes(path: Path, model: torch.nn.Module) -> torch.nn.Module:
    tensorizer_ops.save(path, model.state_dict())

    with torch.device("meta"):
        loaded = make_model()
    tensorizer_ops.load_into(loaded, path)
    return loaded


def encrypted(path: Path, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    encryption = EncryptionParams.random()
    with TensorSerializer(path, encryption=encryption) as serializer:
        serializer.write_state_dict(model.state_dict())

    decryption = DecryptionParams.from_key(encryption.key)
    with TensorDeserializer(path, device="cpu", encryption=decryption) as deserializer:
        return dict(deserializer.items())


def encrypted_without_classes(path: Path, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    tensorizer_ops.keys.add("model", key=bytes(range(32)))
    tensorizer_ops.save(path, model.state_dict(), options={"key": "named:model"})
    return tensorizer_ops.load(path, options={"key": "named:model"})


def main() -> None:
    model = make_model()
    inputs = torch.randn(2, 64)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.tensors"
        for way in (plain, plain_without_classes):
            assert torch.equal(way(path, model)(inputs), model(inputs))
        for again in (encrypted, encrypted_without_classes):
            loaded = again(path, model)
            assert all(torch.equal(loaded[name], t) for name, t in model.state_dict().items())
    print("all four ways give the same result")


if __name__ == "__main__":
    main()
