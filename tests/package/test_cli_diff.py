"""The subcommand that compares files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from support.command import TENSORS, run
from support.samples import zoo
from support.scripted import replaced_after_opening, scripted
from tensorizer_ops._cli import diff


def test_diff(model: Path, tmp_path: Path) -> None:
    assert run("diff", model, model).stdout == "all 2 tensors agree\n"
    other = tmp_path / "other.safetensors"
    changed = TENSORS["a"].clone()
    changed[1, 2] += 0.25
    tensorizer_ops.save(other, {"c": torch.ones(1), "b": torch.ones(5), "a": changed})
    assert run("diff", model, other, status=1).stdout.splitlines() == [
        "a: largest difference 0.25",
        "b: shape [4] and [5]",
        "c: only in B",
        "3 of 3 tensors differ",
    ]
    assert run("diff", "-q", model, other, status=1).stdout == ""
    found = json.loads(run("diff", "--json", model, other, status=1).stdout)
    assert found["differences"][0] == {"name": "a", "largest_difference": 0.25}


def test_diff_of_element_types(tmp_path: Path) -> None:
    one, two = tmp_path / "one.tensors", tmp_path / "two.tensors"
    tensorizer_ops.save(one, zoo())
    assert run("diff", one, one).stdout == f"all {len(zoo())} tensors agree\n"
    tensorizer_ops.save(
        two, {name: tensor.roll(1) if name == "int32" else tensor for name, tensor in zoo().items()}
    )
    assert run("diff", one, two, status=1).stdout.startswith("int32: largest difference ")
    nan = float("nan")
    tensorizer_ops.save(one, {"n": torch.tensor([nan, 1.0, float("inf")]), "t": torch.ones(2)})
    tensorizer_ops.save(
        two, {"n": torch.tensor([nan, nan, float("inf")]), "t": torch.ones(2).bfloat16()}
    )
    assert run("diff", one, two, status=1).stdout.splitlines()[:2] == [
        "n: largest difference nan",
        "t: dtype float32 and bfloat16; largest difference 0",
    ]


def test_diff_opens_a_file_once(tmp_path: Path) -> None:
    """Otherwise the list of tensors could be of another file than their values."""
    files = []
    for value in (1.0, 2.0):
        tensorizer_ops.save(tmp_path / "one.tensors", {"a": torch.full((4,), value)})
        files.append((tmp_path / "one.tensors").read_bytes())
    with scripted(replaced_after_opening(*files)) as server:
        found = run("diff", tmp_path / "one.tensors", server.url(), status=1)
    assert found.stdout.startswith("a: largest difference 1\n")


def test_diff_of_large_tensors_takes_pieces(tmp_path: Path) -> None:
    tensor = torch.zeros(1, 70 << 18)  # its only row is larger than a piece
    one, two = tmp_path / "one.tensors", tmp_path / "two.tensors"
    tensorizer_ops.save(one, {"a": tensor}, hashes="none")
    tensor[0, -1] = 3
    tensorizer_ops.save(two, {"a": tensor}, hashes="none")
    assert run("diff", one, two, status=1).stdout.startswith("a: largest difference 3\n")


@pytest.mark.parametrize("shape", [(), (5,), (40,), (3, 40), (40, 3), (2, 1, 3, 7), (1, 100, 1)])
def test_pieces_cover_a_tensor_once(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diff, "_PIECE", 64)
    tensor = torch.arange(math.prod(shape), dtype=torch.int32).reshape(shape)
    pieces = [tensor[piece] for piece in diff._pieces(shape, tensor.nbytes)]
    assert all(piece.nbytes <= 64 for piece in pieces)
    assert torch.equal(torch.cat([piece.reshape(-1) for piece in pieces]), tensor.reshape(-1))


def test_diff_is_exact_for_integers_and_names_bits(tmp_path: Path) -> None:
    one, two = tmp_path / "1.tensors", tmp_path / "2.tensors"
    big = torch.tensor([2**53, -(2**63)])
    unsigned = torch.tensor([0, 2**64 - 1], dtype=torch.uint64)
    tensorizer_ops.save(one, {"i": big, "u": unsigned, "z": torch.zeros(2)})
    tensorizer_ops.save(
        two,
        {"i": big + 1, "u": torch.tensor([2**64 - 1, 0], dtype=torch.uint64), "z": -torch.zeros(2)},
    )
    assert run("diff", one, two, status=1).stdout.splitlines() == [
        "i: largest difference 1",
        f"u: largest difference {2**64 - 1}",
        "z: different bits of equal values",
        "3 of 3 tensors differ",
    ]


def test_json_of_diff_has_no_numbers_that_json_lacks(tmp_path: Path) -> None:
    one, two = tmp_path / "1.tensors", tmp_path / "2.tensors"
    tensorizer_ops.save(one, {"n": torch.tensor([math.nan]), "f": torch.tensor([math.inf])})
    tensorizer_ops.save(two, {"n": torch.tensor([1.0]), "f": torch.tensor([1.0])})

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    found = json.loads(run("diff", one, two, "--json", status=1).stdout, parse_constant=refuse)
    assert [d["largest_difference"] for d in found["differences"]] == ["nan", "inf"]


def test_diff_of_a_file_with_its_encrypted_copy(model: Path, tmp_path: Path) -> None:
    key, secret = tmp_path / "key", tmp_path / "s.tensors"
    run("keygen", key)
    run("encrypt", model, secret, "--key-file", key)
    for pair in ((model, secret), (secret, model), (secret, secret)):
        assert "agree" in run("diff", *pair, "--key-file", key).stdout
