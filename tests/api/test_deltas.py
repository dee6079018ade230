"""Files that turn one version of a model into another, and what they are applied to."""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import tensorizer_ops
from support.process import feed
from support.samples import SAFETENSORS_NAMES, assert_same, flip, raw, same, zoo
from support.tied import tied
from tensorizer_ops.errors import (
    Crypto,
    Error,
    HashMismatch,
    InvalidArgument,
    InvalidFormat,
)

ops = torch.ops.tensorizer
KEY = {"key": "named:deltas"}
Model = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def key() -> None:
    tensorizer_ops.keys.add("deltas", key=bytes(range(32)))


def stepped(model: Model, share: float = 0.05) -> Model:
    """Return the model after a step: some elements of each tensor have other bits."""
    chance = random.Random(3)
    after = {}
    for name, tensor in model.items():
        data = bytearray(raw(tensor))
        for i in range(0, len(data), tensor.element_size()):
            if tensor.dtype != torch.bool and chance.random() < share:
                data[i] ^= 1
        after[name] = of_bytes(data, tensor)
    return after


def of_bytes(data: bytearray, like: torch.Tensor) -> torch.Tensor:
    """Return a tensor with these bytes."""
    if not data:
        return torch.empty_like(like)
    return torch.frombuffer(data, dtype=torch.uint8).view(like.dtype).reshape(like.shape)


def large() -> Model:
    weights = {f"layers.{i}": torch.randn(700, 1111, dtype=torch.bfloat16) for i in range(3)}
    return {
        **weights,
        "bias": torch.randn(513),
        "steps": torch.arange(9),
        "none": torch.empty(0, 3),
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two versions of a model, and the delta between them."""
    older = large()
    tensorizer_ops.save(tmp_path / "older.tensors", older)
    tensorizer_ops.save(tmp_path / "newer.tensors", stepped(older), metadata={"step": "7"})
    tensorizer_ops.delta(*(tmp_path / f"{name}.tensors" for name in ("older", "newer", "delta")))
    return tmp_path


def digest(path: Path, options: dict[str, str] | None = None) -> str:
    return tensorizer_ops.digest(path, version=2, options=options)


@pytest.mark.parametrize(
    ("before", "after", "between", "made"),
    list(itertools.product(["tensors", "encrypted", "safetensors"], repeat=4)),
)
def test_every_form_of_file(
    tmp_path: Path, before: str, after: str, between: str, made: str
) -> None:
    def place(name: str, form: str) -> tuple[Path, dict[str, str]]:
        ending = "safetensors" if form == "safetensors" else "tensors"
        return tmp_path / f"{name}.{ending}", KEY if form == "encrypted" else {}

    (base, base_options), (new, new_options) = place("base", before), place("new", after)
    (delta, delta_options), (out, out_options) = place("delta", between), place("out", made)
    forms = (before, after, between, made)
    names = SAFETENSORS_NAMES if "safetensors" in forms else list(zoo())
    older = {name: tensor for name, tensor in zoo().items() if name in names}
    tensorizer_ops.save(base, older, options=base_options)
    tensorizer_ops.save(new, stepped(older), options=new_options, metadata={"step": "7"})
    tensorizer_ops.delta(
        *(base, new, delta),
        base_options=base_options,
        new_options=new_options,
        target_options=delta_options,
    )
    assert tensorizer_ops.apply(
        *(delta, base, out),
        delta_options=delta_options,
        base_options=base_options,
        target_options=out_options,
    )
    expected = tensorizer_ops.load(new, options=new_options)
    assert_same(tensorizer_ops.load(out, options=out_options, verify="all"), expected)
    assert digest(out, out_options) == digest(new, new_options)
    assert tensorizer_ops.info(out, options=out_options).metadata == {"step": "7"}


def test_a_delta_is_small(tmp_path: Path) -> None:
    torch.manual_seed(1)
    master = torch.randn(1500, 1500) * 0.02
    tensorizer_ops.save(tmp_path / "a.tensors", {"w": master.bfloat16()})
    after = (master + 1e-6 * torch.randn_like(master).tanh()).bfloat16()
    tensorizer_ops.save(tmp_path / "b.tensors", {"w": after})
    tensorizer_ops.delta(*(tmp_path / f"{name}.tensors" for name in "abd"), hashes="none")
    assert (tmp_path / "d.tensors").stat().st_size < 0.0145 * after.nbytes


def test_tensors_come_and_go(tmp_path: Path) -> None:
    base = large()
    new = stepped(base)
    del new["layers.1"]
    new["bias"] = new["bias"].double()
    new["steps"] = torch.arange(10)
    new = {"first": torch.ones(2, 3), **new, "meta": torch.empty(3, device="meta")}
    files = [tmp_path / f"{name}.tensors" for name in ("base", "new", "delta", "out")]
    tensorizer_ops.save(files[0], base)
    tensorizer_ops.save(files[1], new)
    tensorizer_ops.delta(*files[:3])
    tensorizer_ops.apply(files[2], files[0], files[3])
    assert_same(tensorizer_ops.load(files[3]), tensorizer_ops.load(files[1]))
    assert digest(files[3]) == digest(files[1])


def test_ties_stay(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.tensors" for name in ("base", "new", "delta", "out")]
    share = {"share": "true"}
    tensorizer_ops.save(files[0], tied(), options=share)
    after = tied()
    for tensor in after.values():
        if tensor.is_floating_point() and tensor.numel() > 1:
            tensor.mul_(1.01)
    tensorizer_ops.save(files[1], after, options=share)
    tensorizer_ops.delta(*files[:3])
    tensorizer_ops.apply(files[2], files[0], files[3])
    assert_same(tensorizer_ops.load(files[3]), tensorizer_ops.load(files[1]))
    assert digest(files[3]) == digest(files[1])
    assert files[3].stat().st_size == files[1].stat().st_size


OLD, OTHER = torch.ones(3000), torch.arange(3000.0)


@pytest.mark.parametrize("ending", ["tensors", "safetensors"])
@pytest.mark.parametrize(
    "base",
    [
        *({"a": OLD}, {"b": OLD}, {"a": torch.ones(3), "b": OLD}, {"a": OLD, "b": OTHER}),
        {"a": OLD, "b": OLD},
    ],
    ids=["second missing", "first missing", "first smaller", "untied", "tied"],
)
def test_tensors_that_the_new_model_ties(tmp_path: Path, base: Model, ending: str) -> None:
    new = OLD + 1e-6
    files = [tmp_path / name for name in ("a.tensors", "b.tensors", f"d.{ending}", "o.tensors")]
    tensorizer_ops.save(files[0], base, options={"share": "true"})
    tensorizer_ops.save(files[1], {"a": new, "b": new}, options={"share": "true"})
    tensorizer_ops.delta(*files[:3])
    tensorizer_ops.apply(files[2], files[0], files[3], threads=2)
    assert digest(files[3]) == digest(files[1])
    kinds = {tensor.name.partition("/")[0] for tensor in tensorizer_ops.info(files[2]).tensors}
    assert kinds == {"changes" if base.get("a") is base.get("b") else "whole"}
    if [tensor.shape for tensor in base.values()] == [OLD.shape] * 2:
        memory = {name: tensor.clone() for name, tensor in base.items()}
        assert tensorizer_ops.apply(files[2], memory)
        assert memory["a"].equal(new) and memory["b"].equal(new)


def test_the_base_is_replaced(folder: Path) -> None:
    base = folder / "older.tensors"
    assert tensorizer_ops.apply(folder / "delta.tensors", base)
    assert base.read_bytes() == (folder / "newer.tensors").read_bytes()
    before = base.stat()
    assert not tensorizer_ops.apply(folder / "delta.tensors", base)
    assert base.stat() == before


@pytest.mark.parametrize("hashes", ["none", "all", "chunked"])
def test_what_replaces_the_base_is_stored_like_it(folder: Path, hashes: str) -> None:
    base = folder / "base"
    tensorizer_ops.convert(
        folder / "older.tensors", base, hashes=hashes, target_options={"format": "safetensors"}
    )
    assert tensorizer_ops.apply(folder / "delta.tensors", base)
    kind = tensorizer_ops.info(base)
    assert kind.format == "safetensors"
    assert not tensorizer_ops.apply(folder / "delta.tensors", base)
    assert digest(base) == digest(folder / "newer.tensors")


def test_a_base_of_several_files_is_not_replaced(folder: Path) -> None:
    older = tensorizer_ops.load(folder / "older.tensors")
    index = folder / "shards" / "model.safetensors.index.json"
    index.parent.mkdir()
    single = index.with_name("model.safetensors")
    tensorizer_ops.save(single, older, options={"max_shard_size": "2MiB"})
    before = index.read_bytes()
    for base in (index, index.parent):
        with pytest.raises(InvalidArgument, match=r"several files.*give a target"):
            tensorizer_ops.apply(folder / "delta.tensors", base)
    assert index.read_bytes() == before
    tensorizer_ops.apply(folder / "delta.tensors", index, folder / "out.tensors")
    assert digest(folder / "out.tensors") == digest(folder / "newer.tensors")


def test_an_encrypted_base_is_replaced_only_with_a_key(folder: Path) -> None:
    base = folder / "secret.tensors"
    tensorizer_ops.encrypt(folder / "older.tensors", base, key=KEY["key"])
    with pytest.raises(InvalidArgument, match="would not be: give a key"):
        tensorizer_ops.apply(folder / "delta.tensors", base, base_options=KEY)
    for changes in (True, False):
        changed = tensorizer_ops.apply(
            folder / "delta.tensors", base, base_options=KEY, target_options=KEY
        )
        assert changed == changes
    assert digest(base, KEY) == digest(folder / "newer.tensors")
    with pytest.raises(Crypto):
        tensorizer_ops.load(base)


def other_bases(base: Model) -> dict[str, Model]:
    flipped = {name: tensor.clone() for name, tensor in base.items()}
    flipped["layers.2"].view(torch.uint8)[-1, -1] ^= 1
    unchanged = {name: tensor.clone() for name, tensor in base.items()}
    unchanged["steps"] = unchanged["steps"] + 1
    without = {name: tensor for name, tensor in base.items() if name != "layers.1"}
    return {
        "another value": flipped,
        "another value of a tensor that stays": unchanged,
        "no such tensor": without,
        "one tensor more": {**base, "more": torch.ones(1)},
        "another type": {**base, "bias": base["bias"].half()},
        "another shape": {**base, "layers.0": base["layers.0"].t().contiguous()},
        "nothing": {},
    }


@pytest.mark.parametrize("hashes", ["chunked", "none"])
@pytest.mark.parametrize("wrong", list(other_bases(large())))
def test_another_base_is_refused(folder: Path, wrong: str, hashes: str) -> None:
    other = other_bases(tensorizer_ops.load(folder / "older.tensors", copy=True))[wrong]
    base, target = folder / "other.tensors", folder / "target.tensors"
    tensorizer_ops.save(base, other, hashes=hashes)
    before = base.read_bytes()
    expected = digest(folder / "older.tensors")
    for place in (target, None):
        with pytest.raises(InvalidArgument, match=expected) as caught:
            tensorizer_ops.apply(folder / "delta.tensors", base, place)
        assert str(base) in str(caught.value)
    assert base.read_bytes() == before and not target.exists()
    memory = {name: tensor.clone() for name, tensor in other.items()}
    with pytest.raises(InvalidArgument):
        tensorizer_ops.apply(folder / "delta.tensors", memory)
    assert_same(memory, other)


@pytest.mark.parametrize("form", ["none.tensors", "none.safetensors", "chunked.tensors"])
def test_a_damaged_delta_changes_nothing(folder: Path, form: str) -> None:
    hashes, ending = form.split(".")
    delta, target = folder / f"damaged.{ending}", folder / "target.tensors"
    older = folder / "older.tensors"
    tensorizer_ops.delta(older, folder / "newer.tensors", delta, hashes=hashes)
    data = delta.read_bytes()
    model = tensorizer_ops.load(older, copy=True)
    chance = random.Random(form)
    newer = digest(folder / "newer.tensors")
    between = 0
    for _ in range(150):
        delta.write_bytes(data)
        flip(delta, chance.randrange(len(data)))
        target.unlink(missing_ok=True)
        try:
            tensorizer_ops.apply(delta, older, target)
        except (Error, ValueError, KeyError):
            assert not target.exists()
        else:  # metadata, padding and unused hashes
            assert digest(target) == newer
        memory = {name: tensor.clone() for name, tensor in model.items()}
        try:
            tensorizer_ops.apply(delta, memory)
        except (Error, ValueError, KeyError) as error:
            is_between = "between two models" in str(error)
            assert is_between or all(map(same, memory.values(), model.values()))
            between += is_between
        else:
            assert_same(memory, tensorizer_ops.load(folder / "newer.tensors"))
    assert between > 0
    for size in (*range(0, len(data) - 8, len(data) // 20), len(data) - 9):
        delta.write_bytes(data[:size])
        with pytest.raises((Error, ValueError)):
            tensorizer_ops.apply(delta, older, folder / "target.tensors")


def test_codes_are_made_again_if_they_do_not_fit(folder: Path) -> None:
    files = [folder / f"{name}.tensors" for name in ("older", "newer")]
    for ceiling in ("1MiB", "3MiB", "100MiB"):
        delta = folder / f"{ceiling}.tensors"
        tensorizer_ops.delta(*files, delta, target_options={"memory_ceiling": ceiling})
        assert delta.read_bytes() == (folder / "delta.tensors").read_bytes()
        out = folder / "out.tensors"
        tensorizer_ops.apply(delta, files[0], out, target_options={"memory_ceiling": ceiling})
        assert out.read_bytes() == files[1].read_bytes()


def test_tensors_in_memory(folder: Path) -> None:
    older, newer = (tensorizer_ops.load(folder / f"{name}.tensors") for name in ("older", "newer"))
    memory = {name: tensor.clone() for name, tensor in older.items()}
    memory["layers.1"] = older["layers.1"].t().contiguous().t()
    places = {name: tensor.data_ptr() for name, tensor in memory.items()}
    assert tensorizer_ops.apply(folder / "delta.tensors", memory)
    assert_same(memory, newer)
    assert places == {name: tensor.data_ptr() for name, tensor in memory.items()}
    assert not tensorizer_ops.apply(folder / "delta.tensors", memory)


def test_a_module(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, after = (
        torch.nn.Sequential(torch.nn.Linear(200, 300), torch.nn.BatchNorm1d(300)) for _ in "ab"
    )
    after.load_state_dict(
        {k: v * 1.0001 if v.is_floating_point() else v + 1 for k, v in module.state_dict().items()}
    )
    tensorizer_ops.save(tmp_path / "a.tensors", module.state_dict())
    tensorizer_ops.save(tmp_path / "b.tensors", after.state_dict())
    tensorizer_ops.delta(*(tmp_path / f"{name}.tensors" for name in "abd"))
    weight = module[0].weight
    version = weight._version
    assert tensorizer_ops.apply(tmp_path / "d.tensors", module)
    assert_same(module.state_dict(), after.state_dict())
    assert module[0].weight is weight and weight._version > version


def test_tensors_of_which_the_delta_has_one_in_whole(tmp_path: Path) -> None:
    base = {"a": torch.arange(5.0), "b": torch.randn(3000)}
    new = {"a": torch.randn(5), "b": base["b"] + 1e-6}
    tensorizer_ops.save(tmp_path / "a.tensors", base)
    tensorizer_ops.save(tmp_path / "b.tensors", new)
    tensorizer_ops.delta(*(tmp_path / f"{name}.tensors" for name in "abd"))
    names = [tensor.name for tensor in tensorizer_ops.info(tmp_path / "d.tensors").tensors]
    assert names == ["whole/a", "changes/b"]
    assert tensorizer_ops.apply(tmp_path / "d.tensors", base)
    assert_same(base, new)


def test_names_in_memory_are_given_once(folder: Path) -> None:
    memory = tensorizer_ops.load(folder / "older.tensors", copy=True)
    names, tensors = [*memory, "bias"], [*memory.values(), memory["bias"].clone()]
    with pytest.raises(InvalidArgument, match="two of the tensors in memory have the name 'bias'"):
        ops.apply_into(str(folder / "delta.tensors"), names, tensors)


def make(folder: Path, base: Model, new: Model) -> Path:
    """Save two models, and return the delta between them."""
    tensorizer_ops.save(folder / "a.tensors", base)
    tensorizer_ops.save(folder / "b.tensors", new)
    tensorizer_ops.delta(*(folder / f"{name}.tensors" for name in "abd"))
    return folder / "d.tensors"


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_tied_tensors_in_memory(tmp_path: Path, threads: int) -> None:
    old = torch.ones(1 << 20)
    for new, names in (
        (old + 1e-6, ["changes/a", "changes/b"]),
        (torch.randn(1 << 20), ["whole/a", "whole/b"]),
    ):
        delta = make(tmp_path, {"a": old, "b": old}, {"a": new, "b": new})
        assert [tensor.name for tensor in tensorizer_ops.info(delta).tensors] == names
        memory = {"a": old.clone()}
        memory["b"] = memory["a"]
        assert tensorizer_ops.apply(delta, memory, threads=threads)
        assert memory["a"].equal(new)


@pytest.mark.parametrize("by", [1e-6, 1e3])
def test_tied_tensors_that_the_new_model_unties(tmp_path: Path, by: float) -> None:
    old = torch.rand(1000) + 1
    delta = make(tmp_path, {"a": old, "b": old}, {"a": old + 1e-6, "b": torch.rand(1000) * by})
    memory = {"a": old.clone()}
    memory["b"] = memory["a"]
    with pytest.raises(InvalidArgument, match="'b' shares its memory with 'a', and differs"):
        tensorizer_ops.apply(delta, memory)
    assert memory["a"].equal(old)


def test_tensors_that_overlap_in_memory(tmp_path: Path) -> None:
    old, new = torch.ones(1500, 4), torch.ones(1500, 4) + torch.rand(1500, 4) * 1e-6

    def views(tensor: torch.Tensor) -> Model:
        columns = {"left": tensor[:, :2], "right": tensor[:, 2:]}
        return {"first": tensor[:1000], "last": tensor[500:], **columns}

    delta = make(tmp_path, views(old), views(new))
    memory = old.clone()
    assert tensorizer_ops.apply(delta, views(memory))
    assert memory.equal(new)

    differs = {**views(new), "last": old[500:]}
    delta = make(tmp_path, views(old), differs)
    with pytest.raises(InvalidArgument, match=r"overlaps one with different data.*between two"):
        tensorizer_ops.apply(delta, views(old.clone()))


def test_what_cannot_be_changed_in_memory(folder: Path) -> None:
    memory = tensorizer_ops.load(folder / "older.tensors", copy=True)
    delta = folder / "delta.tensors"
    without = {name: tensor for name, tensor in memory.items() if name != "bias"}
    for wrong, message in (
        (without, "'bias', which is not among"),
        ({**memory, "more": torch.ones(1)}, "7 tensors in memory, and the new model has 6"),
        ({**memory, "bias": torch.empty(513, device="meta")}, "meta device"),
        ({**memory, "bias": "x"}, r"base\['bias'\] is str, and must be a tensor"),
        ({**memory, 3: memory["bias"]}, "base has a name that is int, and must be str"),
        ({**memory, "bias": memory["bias"].to_sparse()}, "tensor 'bias' has no bytes to use"),
        ({**memory, "bias": torch.ones(1).expand(513)}, "'bias' has elements that share memory"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            tensorizer_ops.apply(delta, wrong)
    with pytest.raises(InvalidArgument, match="are for files"):
        tensorizer_ops.apply(delta, memory, folder / "target.tensors")


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module."])
def test_names_of_wrappers(tmp_path: Path, prefix: str) -> None:
    base = {"weight": torch.ones(300), "bias": torch.ones(3)}
    delta = make(tmp_path, base, {name: tensor + 1e-6 for name, tensor in base.items()})
    wrapped = {f"{prefix}{name}": tensor for name, tensor in base.items()}
    message = f"'{prefix}weight' here: .* fill the module inside of the wrapper"
    with pytest.raises(InvalidArgument, match=message):
        tensorizer_ops.apply(delta, wrapped)


def test_what_is_no_delta_or_no_model(folder: Path) -> None:
    older, newer, delta = (folder / f"{name}.tensors" for name in ("older", "newer", "delta"))
    out = folder / "out.tensors"
    with pytest.raises(InvalidArgument, match="it is no delta"):
        tensorizer_ops.apply(newer, older, out)
    for base, new in ((delta, newer), (older, delta)):
        with pytest.raises(InvalidArgument, match="it is a delta, and no model"):
            tensorizer_ops.delta(base, new, out)
    later = folder / "later.tensors"
    tensorizer_ops.save(later, {"x": torch.ones(1)}, metadata={"tensorizer_ops.delta": "2"})
    with pytest.raises(InvalidFormat, match="delta of version '2'"):
        tensorizer_ops.apply(later, older, out)
    tensorizer_ops.save(later, {"x": torch.ones(1)}, metadata={"tensorizer_ops.delta": "1"})
    with pytest.raises(InvalidFormat, match="no digest under"):
        tensorizer_ops.apply(later, older, out)


def test_what_a_delta_may_not_have(folder: Path) -> None:
    older, delta = folder / "older.tensors", folder / "delta.tensors"
    memory = tensorizer_ops.load(older, copy=True)
    has = tensorizer_ops.load(delta)
    metadata = tensorizer_ops.info(delta).metadata
    for more, message in (
        ({"more": torch.ones(1)}, "'more' .* has a name that no tensor of a delta has"),
        ({"whole/bias": memory["bias"]}, "the new model's 'bias' too"),
    ):
        wrong = folder / "wrong.tensors"
        tensorizer_ops.save(wrong, {**has, **more}, metadata=metadata)
        for base in (older, memory):
            with pytest.raises(InvalidFormat, match=message):
                tensorizer_ops.apply(wrong, base)
    # Those without data are in the delta in whole.
    wrong = folder / "wrong.tensors"
    has["changes/none"] = torch.empty(0, dtype=torch.uint8)
    del has["whole/none"]
    tensorizer_ops.save(wrong, has, metadata=metadata)
    for base in (older, memory):
        with pytest.raises(InvalidFormat, match=r"'changes/none'.*tensor without data"):
            tensorizer_ops.apply(wrong, base)
    assert tensorizer_ops.apply(delta, memory)


def test_a_file_that_is_read_is_not_written_in_place(folder: Path) -> None:
    older, newer, delta = (folder / f"{name}.tensors" for name in ("older", "newer", "delta"))
    for target in (older, delta):
        before = target.read_bytes()
        with target.open("r+b") as file, pytest.raises(InvalidArgument, match="in place"):
            tensorizer_ops.apply(delta, older, f"fd:{file.fileno()}")
        assert target.read_bytes() == before
    for target in (older, newer):
        before = target.read_bytes()
        with target.open("r+b") as file, pytest.raises(InvalidArgument, match="in place"):
            tensorizer_ops.delta(older, newer, f"fd:{file.fileno()}")
        assert target.read_bytes() == before


def test_pipes_are_refused(folder: Path) -> None:
    older, newer, delta = (folder / f"{name}.tensors" for name in ("older", "newer", "delta"))
    for file, run in (
        (older, lambda pipe: tensorizer_ops.delta(pipe, newer, folder / "out.tensors")),
        (delta, lambda pipe: tensorizer_ops.apply(pipe, older, folder / "out.tensors")),
    ):
        pipe = str(folder / f"pipe{file.name}")
        with feed(pipe, file.read_bytes()), pytest.raises(InvalidArgument, match="read only once"):
            run(pipe)
    os.mkfifo(folder / "silent")  # nobody writes, so a read would never end
    for run in (
        lambda pipe: tensorizer_ops.apply(delta, pipe),
        lambda pipe: tensorizer_ops.apply(delta, pipe, folder / "out.tensors"),
        lambda pipe: tensorizer_ops.apply(pipe, older),
        lambda pipe: tensorizer_ops.apply(pipe, {}),
        lambda pipe: tensorizer_ops.delta(pipe, newer, folder / "out.tensors"),
        lambda pipe: tensorizer_ops.delta(older, pipe, folder / "out.tensors"),
    ):
        with pytest.raises(InvalidArgument, match="read only once"):
            run(folder / "silent")


def test_damaged_models_make_no_delta(folder: Path) -> None:
    newer = folder / "newer.tensors"
    flip(newer, newer.stat().st_size // 2)
    for base, new in ((folder / "older.tensors", newer), (newer, folder / "older.tensors")):
        with pytest.raises(HashMismatch):
            tensorizer_ops.delta(base, new, folder / "out.tensors")
    assert not (folder / "out.tensors").exists()


def test_a_pinned_digest(folder: Path) -> None:
    files = [folder / f"{name}.tensors" for name in ("older", "newer", "out")]
    right, wrong = {"digest": digest(files[0])}, {"digest": digest(files[1])}
    tensorizer_ops.delta(*files, base_options=right)
    with pytest.raises(HashMismatch, match="its digest is"):
        tensorizer_ops.delta(*files, base_options=wrong)


def test_scripts(folder: Path) -> None:
    @torch.jit.script
    def follow(older: str, newer: str, delta: str, out: str) -> bool:
        torch.ops.tensorizer.delta(older, newer, delta)
        return torch.ops.tensorizer.apply(delta, older, out)

    names = [str(folder / f"{name}.tensors") for name in ("older", "newer", "d", "out")]
    assert follow(*names)
    memory = tensorizer_ops.load(names[0], copy=True)
    assert ops.apply_into(names[2], list(memory), list(memory.values()))
    assert_same(memory, tensorizer_ops.load(names[3]))


def test_progress(folder: Path) -> None:
    told: list[tuple[int, int]] = []
    files = [folder / f"{name}.tensors" for name in ("older", "newer", "out")]
    tensorizer_ops.delta(*files, progress=lambda *now: told.append(now))
    assert told[-1][0] == told[-1][1] > 0


def test_traces_are_refused(folder: Path) -> None:
    names = [str(folder / f"{name}.tensors") for name in ("older", "newer", "d")]

    def make(x: torch.Tensor) -> torch.Tensor:
        ops.delta(*names)
        return x + 1

    with pytest.raises(InvalidArgument, match="cannot be traced"):
        torch.jit.trace(make, torch.ones(1))
    with pytest.raises(InvalidArgument, match="cannot trace"):
        make_fx(make)(torch.ones(1))


@pytest.mark.parametrize(
    "encrypted, to",
    [("base", "target"), ("delta", "target"), ("delta", "in place"), ("delta", "memory")],
)
def test_a_key_that_was_not_given(folder: Path, encrypted: str, to: str) -> None:
    base, delta = folder / "older.tensors", folder / "d.delta.tensors"
    options = {"target_options": KEY} if encrypted == "delta" else {}
    tensorizer_ops.delta(base, folder / "newer.tensors", delta, **options)
    held = tensorizer_ops.load(base, copy=True)
    if encrypted == "base":
        tensorizer_ops.encrypt(base, folder / "encrypted.tensors", key=KEY["key"])
        base = folder / "encrypted.tensors"
    before = base.read_bytes()
    target = folder / "made.tensors" if to == "target" else None
    with pytest.raises(Crypto, match="no key was given"):
        tensorizer_ops.apply(delta, held if to == "memory" else base, target)
    assert base.read_bytes() == before
    assert_same(held, tensorizer_ops.load(folder / "older.tensors"))
