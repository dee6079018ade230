"""Chains of checkpoints on servers: S3, Azure, Redis, and web servers that take PUT and DELETE."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import tensorizer_ops
from local_servers.azure_server import Azure
from local_servers.redis_server import RedisServer
from local_servers.s3_server import S3
from local_servers.web import Web
from support.ranks import run_ranks
from support.relay import away_after, reached_through, relay
from support.signer import Signer
from tensorizer_ops import checkpoint, errors
from tensorizer_ops.checkpoint import Chain

TRIALS = int(os.environ.get("CHAIN_TRIALS", "10"))


class Store(NamedTuple):
    """A place for chains."""

    uri: str
    options: dict[str, str]
    names: Callable[[], set[str]]  # of the files of steps, "1" for step 1

    def chain(self, **how: Any) -> Chain:
        return Chain(self.uri, **({"options": self.options, "grace": 0} | how))


def of_steps(names: Iterable[str], run: str) -> set[str]:
    there = [name for name in names if name.startswith(f"{run}/step-") and "-read" not in name]
    return {name.partition("/step-")[2].partition("-")[0] for name in there}


@pytest.fixture(params=["s3", "azure", "redis", "web"])
def store(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    web: Web,
    s3: S3,
    redis: RedisServer,
    azure: Azure,
) -> Store:
    run = tmp_path.name
    if request.param == "s3":
        return Store(s3.uri(run), s3.options(), lambda: of_steps(s3.objects(), run))
    if request.param == "azure":
        return Store(azure.uri(run), azure.options(), lambda: of_steps(azure.blobs, run))
    if request.param == "redis":
        return Store(redis.url(run), {}, lambda: of_steps(redis.sizes(), run))
    root = web.root / "put"

    def files() -> set[str]:
        return of_steps((str(path.relative_to(root)) for path in root.rglob("*")), run)

    return Store(web.url(f"put/{run}"), {}, files)


def state_of(step: int) -> dict[str, Any]:
    return {"w": torch.full((3000,), float(step)), "step": step}


def test_a_chain_on_a_server(store: Store) -> None:
    chain = store.chain(keep=2)
    assert chain.steps() == []
    with pytest.raises(FileNotFoundError, match="has no chain of checkpoints"):
        chain.load()
    for step in (1, 2, 3, 4):
        chain.save(step, state_of(step))
    assert [each.step for each in chain.steps()] == [3, 4]
    assert store.names() == {"2", "3", "4"}
    state = state_of(0)
    assert chain.load(state).step == 4
    assert (state["w"] == 4).all()
    assert [each.step for each in chain.prune(1)] == [3]
    assert store.names() == {"4"}


def test_a_lost_step_on_a_server(store: Store) -> None:
    chain = store.chain()
    for step in (1, 2):
        chain.save(step, state_of(step))
    chain._store.folder.remove(chain._store.listing().saved[1].file)
    found = chain.load(state_of(0))
    assert found.step == 1
    assert [each.step for each in found.passed_over] == [2]


def test_refused_keys(s3: S3, redis: RedisServer) -> None:
    chain = Chain("s3://bucket/refused", options=s3.options())
    chain.save(1, state_of(1))
    wrong = s3.options() | {"s3_secret_access_key": "wrong"}
    refused = Chain("s3://bucket/refused", keep=1, options=wrong)
    for call in (refused.load, refused.steps, lambda: refused.save(2, {}), refused.prune):
        with pytest.raises(errors.PermissionDenied):
            call()
    assert [each.step for each in chain.steps()] == [1]
    with pytest.raises(errors.PermissionDenied, match="rejects the login"):
        Chain(redis.url("refused"), options={"redis_password": "wrong"}).load()


@pytest.mark.parametrize("kind", ["s3", "redis"])
def test_a_server_that_goes_away_is_an_error(kind: str, s3: S3, redis: RedisServer) -> None:
    """And not a reason to load an older step. A tenth of CHAIN_TRIALS is tried."""
    port = s3.port if kind == "s3" else redis.port
    dice = random.Random(kind)
    with relay(port) as server:
        place = ("s3://bucket/away", s3.options()) if kind == "s3" else ("away", {})
        uri, options = reached_through(server.port, *place)
        chain = Chain(uri, options=options)
        for step in (1, 2):
            chain.save(step, state_of(step))
        before = server.passed
        assert chain.load(state_of(0)).step == 2
        whole = server.passed - before
        for _ in range(max(TRIALS // 10, 5)):
            with (
                away_after(server, dice.randrange(whole * 9 // 10)),
                pytest.raises(ConnectionError),
            ):
                chain.load(state_of(0))
        assert chain.load(state_of(0)).step == 2


RANKS = """
from support.away import trials
report(trials(int(given[0]), given[1], json.loads(given[2]), int(given[3])))
"""


@pytest.mark.parametrize("kind", ["s3", "redis"])
def test_a_server_that_goes_away_is_an_error_on_all_ranks(
    kind: str, tmp_path: Path, s3: S3, redis: RedisServer
) -> None:
    """In loads and saves. A tenth of CHAIN_TRIALS is tried of each."""
    port = s3.port if kind == "s3" else redis.port
    uri, options = ("s3://bucket/ranks", s3.options()) if kind == "s3" else ("ranks", {})
    count = max(TRIALS // 10, 3)
    ranks = run_ranks(tmp_path / "ranks", RANKS, port, uri, json.dumps(options), count)
    assert ranks.reports == [ranks.reports[0]] * 4
    assert "error" in ranks.reports[0]


def test_signed_steps_on_a_server(store: Store, tmp_path: Path) -> None:
    signer = Signer(tmp_path)
    if store.uri.startswith("redis:"):
        with pytest.raises(errors.InvalidArgument, match="is in Redis, which keeps tensors only"):
            Chain(store.uri, sign=signer.private)
        return
    chain = Chain(store.uri, sign=signer.private, grace=0, options=store.options | signer.options)
    for step in (1, 2):
        chain.save(step, state_of(step))
    state = state_of(0)
    assert chain.load(state).step == 2
    assert (state["w"] == 2).all()
    store.chain().save(3, state_of(3))  # without a signature
    assert chain.load(state).step == 2
    chain.prune(1)
    chain.save(4, state_of(4))
    assert store.names() == {"2", "3", "4"}


SIGNED_RANKS = """
from pathlib import Path
from support.chain_faults import state_of, step_of
from tensorizer_ops.checkpoint import Chain
uri, options, key, trust = given
options = json.loads(options)
chain = Chain(uri, sign=Path(key), options=options)
chain.save(1, state_of(1, size))
trusting = options | {"trust": f"file:{trust}"}
state = state_of(0, size)
found = Chain(uri, options=trusting).load(state)
report([found.step, step_of(state), Chain(uri, options=trusting).load(group=False).passed_over])
"""


@pytest.mark.parametrize("store", ["s3", "web"], indirect=True)
def test_signed_steps_of_ranks_on_a_server(store: Store, tmp_path: Path) -> None:
    """Each file of a step has a signature, and none is of its folder."""
    signer = Signer(tmp_path)
    given = (store.uri, json.dumps(store.options), signer.private, signer.public)
    ranks = run_ranks(tmp_path / "ranks", SIGNED_RANKS, *given)
    assert ranks.reports == [[1, 1, []]] * 4


def test_a_signed_file_without_a_suffix(web: Web, tmp_path: Path) -> None:
    signer = Signer(tmp_path)
    checkpoint.save(web.root / "state", {"w": torch.ones(3)})
    tensorizer_ops.sign(web.root / "state", key=signer.private)
    assert checkpoint.load(web.url("state"), options=signer.options)["w"].sum() == 3
