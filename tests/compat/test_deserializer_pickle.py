"""A pickled TensorDeserializer contains the location of its file, and reopens it."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from support.process import fork, run_python, wait
from support.samples import assert_same, same, sample
from tensorizer_ops import TensorDeserializer


def test_pickled_and_forked(files: list[str]) -> None:
    lazy = TensorDeserializer(files[0], "cpu", lazy_load=True)
    eager = TensorDeserializer(Path(files[1]), "cpu", lambda_free_filter)
    again = pickle.loads(pickle.dumps(eager))
    assert_same(again, {name: eager[name] for name in eager})

    def child() -> None:
        assert same(lazy["entry"], sample(torch.float64))
        assert len(TensorDeserializer(files[1], "cpu")) == len(lazy)

    assert wait(fork(child)) == 0
    loader = torch.utils.data.DataLoader(Rows(lazy), num_workers=2, batch_size=None)
    assert [row.item() for row in loader] == lazy["entry"].reshape(-1)[:4].tolist()
    code = (
        "import pickle, sys; d = pickle.load(sys.stdin.buffer); print(len(d), d['entry'].shape[0])"
    )
    done = run_python(code, stdin=pickle.dumps(lazy))
    assert done.stdout.split() == [str(len(lazy)).encode(), b"5"]
    lazy.close()


def test_options_that_change_meanwhile(files: list[str]) -> None:
    """A pickle has those that the file was opened with, such as whom to trust."""
    options = {"stall_timeout": "30"}
    lazy = TensorDeserializer(files[0], "cpu", lazy_load=True, options=options)
    options["stall_timeout"] = "wrong"
    assert len(pickle.loads(pickle.dumps(lazy))) == len(lazy)


def test_what_is_not_pickled(files: list[str]) -> None:
    with open(files[0], "rb") as file, TensorDeserializer(file, "cpu") as ours:
        no_path = ours
    with pytest.raises(TypeError, match="path or a URI"):
        pickle.dumps(no_path)
    secret = TensorDeserializer(files[0], "cpu", options={"s3_secret_access_key": "swordfish"})
    with pytest.raises(ValueError) as error:
        pickle.dumps(secret)
    assert "swordfish" not in str(error.value)


def lambda_free_filter(name: str) -> bool:
    return name.endswith("weight")


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, tensors: TensorDeserializer) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> torch.Tensor:
        if number >= 4:
            raise IndexError
        return self.tensors["entry"].detach().reshape(-1)[number]
