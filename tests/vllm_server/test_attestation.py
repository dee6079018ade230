"""`attest` in workers of a real vLLM, on CPUs. ``make test-vllm`` runs this."""

from __future__ import annotations

import json
import random
import urllib.error
from pathlib import Path
from typing import Any

import pytest

import tensorizer_ops
from support.signer import Signer
from support.vllm_server import Server, ours, quantize, save_model, serving

FLIPS = 200
ATTESTED = ("--worker-extension-cls", "support.flipping.Flipping")


def called(server: Server, method: str, *given: object) -> list[Any]:
    """Return what each rank answers."""
    found: list[Any] = server.post("/collective_rpc", {"method": method, "args": given})["results"]
    return found


@pytest.mark.parametrize(("kind", "ranks"), [("llama", 1), ("llama", 2), ("mixtral", 1)])
def test_every_flipped_bit_is_named(
    tmp_path: Path, plain: dict[str, str], kind: str, ranks: int
) -> None:
    save_model(tmp_path / "model", seed=1, kind=kind)
    file = tmp_path / "m.tensors"
    tensorizer_ops.save(file, tensorizer_ops.load(tmp_path / "model"))
    given = [*ours(file), *ATTESTED]
    with serving(
        tmp_path / "server",
        tmp_path / "model",
        *given,
        ranks=ranks,
        VLLM_SERVER_DEV_MODE="1",
        **plain,
    ) as server:
        answers = server.complete()
        every = called(server, "attest", str(file))
        assert [found["equal"] for found in every] == [True] * ranks, every
        dice = random.Random(1)
        for number in range(FLIPS):
            rank = dice.randrange(ranks)
            flipped = called(server, "flip", rank, number)[rank]
            every = called(server, "attest", str(file))
            said = {f"rank {rank}": "its answer is not equal"}
            assert [found["equal"] for found in every] == [False] * ranks
            assert all(found["not_compared"] == said for i, found in enumerate(every) if i != rank)
            found = every[rank]
            assert list(found["different"]) == [flipped["name"]] and not found["not_compared"]
            assert found["different"][flipped["name"]].startswith(f"element {flipped['index']} ")
            called(server, "flip", rank, number)  # back
        assert server.complete() == answers  # attest has changed nothing


def test_all_ranks_compare_with_the_same_signed_model(
    tmp_path: Path, plain: dict[str, str], signer: Signer
) -> None:
    save_model(tmp_path / "model", seed=1)
    tensors = tensorizer_ops.load(tmp_path / "model")
    file, other = tmp_path / "m.tensors", tmp_path / "other.tensors"
    tensorizer_ops.save(file, tensors)
    tensorizer_ops.save(other, tensors, metadata={"step": "2"})
    for each in (file, other):
        tensorizer_ops.sign(each, key=signer.private)
    with serving(
        tmp_path / "server",
        tmp_path / "model",
        *ours(file),
        *ATTESTED,
        ranks=2,
        VLLM_SERVER_DEV_MODE="1",
        **plain,
    ) as server:
        for last in (file, other, file):
            given = ([str(file), str(last)], signer.options)
            if last is other:
                with pytest.raises(urllib.error.HTTPError):
                    called(server, "attest_own", *given)
                assert "ranks read different signed models" in server.log.read_text()
            else:
                found = called(server, "attest_own", *given)
                assert [each["equal"] for each in found] == [True, True], found


def attested(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """Serve the model of a folder, and return what attest finds; some of it cannot be compared."""
    file = tmp_path / "m.tensors"
    tensorizer_ops.save(file, tensorizer_ops.load(tmp_path / "model"))
    given = [*ours(file), *ATTESTED, *arguments]
    with serving(
        tmp_path / "server", tmp_path / "model", *given, VLLM_SERVER_DEV_MODE="1"
    ) as server:
        answers = server.complete()
        (found,) = called(server, "attest", str(file))
        assert not found["equal"] and not found["different"]
        assert "model.layers.0.input_layernorm.weight" in found["compared"]
        assert server.complete() == answers  # attest has changed nothing
    return found


def test_packed_weights_are_not_called_equal(tmp_path: Path) -> None:
    save_model(tmp_path / "model", seed=1)
    # Weights of this type are packed on every CPU.
    found = attested(tmp_path, "--dtype", "float32")
    why = "vLLM computes with a packed copy of it"
    assert set(found["not_compared"].values()) == {why}
    assert "model.layers.0.mlp.down_proj.weight" in found["not_compared"]


def test_quantized_weights_are_not_called_equal(tmp_path: Path) -> None:
    save_model(tmp_path / "model", seed=1)
    quantize(tmp_path / "model")
    found = attested(tmp_path)
    why = found["not_compared"]["model.layers.0.mlp.down_proj.weight_scale"]
    assert why == "vLLM computes with another form of it"


def test_a_head_that_the_server_has_tied(tmp_path: Path, plain: dict[str, str]) -> None:
    """The file has another one, which the server does not even load."""
    save_model(tmp_path / "model", seed=1)
    tensors = tensorizer_ops.load(tmp_path / "model")
    tensorizer_ops.save(tmp_path / "m.tensors", tensors)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    options = {"format": "safetensors"}
    tensorizer_ops.save(tmp_path / "model" / "model.safetensors", tensors, options=options)
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"tie_word_embeddings": True}))
    with serving(
        tmp_path / "server",
        tmp_path / "model",
        *ours(tmp_path / "model"),
        *ATTESTED,
        VLLM_SERVER_DEV_MODE="1",
        **plain,
    ) as server:
        (own,) = called(server, "attest", str(tmp_path / "model"))
        (found,) = called(server, "attest", str(tmp_path / "m.tensors"))
    assert own["equal"]
    why = "the file has another than 'model.embed_tokens.weight', with which it is tied"
    assert found["different"] == {"lm_head.weight": why}


def test_another_model(tmp_path: Path, plain: dict[str, str]) -> None:
    save_model(tmp_path / "model", seed=1)
    tensors = tensorizer_ops.load(tmp_path / "model", copy=True)
    tensorizer_ops.save(tmp_path / "m.tensors", tensors)
    tensors["model.layers.0.self_attn.k_proj.weight"][3, 5] += 1
    del tensors["model.norm.weight"]
    other = tmp_path / "other.tensors"
    tensorizer_ops.save(other, tensors)
    given = [*ours(tmp_path / "m.tensors"), *ATTESTED]
    with serving(
        tmp_path / "server", tmp_path / "model", *given, VLLM_SERVER_DEV_MODE="1", **plain
    ) as server:
        (found,) = called(server, "attest", str(other))
        called(server, "keep_apart")
        (apart,) = called(server, "attest", str(tmp_path / "m.tensors"))
    fused = "model.layers.0.self_attn.qkv_proj.weight"
    where = "element [259, 5] is not that of 'model.layers.0.self_attn.k_proj.weight' in the file"
    assert found["different"] == {fused: where}
    assert found["not_compared"] == {"model.norm.weight": "256 of its elements are from no file"}
    why = "vLLM has weights there that are not the model's own"
    assert apart["not_compared"] == {"heads": why} and not apart["different"]
