"""Workers of vLLM whose weights can be damaged."""

from __future__ import annotations

import random
from typing import Any

import torch

from tensorizer_ops.vllm import WorkerExtension


class Flipping(WorkerExtension):
    """Has what `tensorizer_ops` gives to workers, and can flip bits."""

    def attest_own(self, uris: list[str], options: dict[str, str]) -> dict[str, Any]:
        """Do what `attest` does, each rank with another file."""
        return self.attest(uris[self.rank], options)  # type: ignore[attr-defined]

    def keep_apart(self) -> None:
        """Give the model a layer that it does not count as its own."""
        self.get_model().heads = {"embed": torch.nn.Linear(2, 2)}  # type: ignore[attr-defined]

    def flip(self, rank: int, seed: int) -> dict[str, Any] | None:
        """Flip a bit of a parameter, on one rank, and return the name and the element."""
        if self.rank != rank:  # type: ignore[attr-defined]
            return None
        dice = random.Random(seed)
        parameters = dict(self.get_model().named_parameters())  # type: ignore[attr-defined]
        name = dice.choice(sorted(parameters))
        data = parameters[name].data
        place = dice.randrange(data.numel())
        raw = data.view(-1)[place : place + 1].view(torch.uint8)
        raw[dice.randrange(data.itemsize)] ^= 1 << dice.randrange(8)
        return {
            "name": name,
            "index": [int(i) for i in torch.unravel_index(torch.tensor(place), data.shape)],
        }
