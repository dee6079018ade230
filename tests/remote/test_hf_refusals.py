"""Folders of models that are refused: what is wrong in them, or would be after a save."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import sys
import tempfile
import types
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pytest
import torch

from support.hf_models import (
    OLD,
    assert_same,
    bert,
    gpt2,
    llama,
    mixtral,
    new,
    transformers,
    word_tokenizer,
)
from support.scripted import scripted
from support.signer import Signer
from tensorizer_ops import errors, hf, load, save, sign
from tensorizer_ops._base.folder import Folder
from tensorizer_ops._hf.isolation import isolated
from tensorizer_ops.hf import fetch, from_pretrained, save_pretrained


def test_tokenizers_that_are_none(tmp_path: Path) -> None:
    """What a config names is loaded as a tokenizer only if it is one."""
    folder, ran = tmp_path / "m", tmp_path / "ran"
    save_pretrained(new(llama), folder, word_tokenizer())
    config = json.loads((folder / "config.json").read_text())
    code = {f"Auto{kind}": "evil.C" for kind in ("Config", "Model", "ModelForCausalLM")}
    evil = f"open({str(ran)!r}, 'w')\nfrom transformers import LlamaConfig as C"
    (folder / "evil.py").write_text(evil)

    def refused(match: str) -> None:
        with pytest.raises(ValueError, match=match) as caught:
            hf.tokenizer(folder)
        assert isinstance(caught.value, errors.InvalidFormat)

    good = {path.name: path.read_text() for path in folder.glob("*.json")}
    (folder / "config.json").write_text(json.dumps({**config, "auto_map": code}))
    for name in (*code, "AutoTokenizer", "LlamaForCausalLM", "LlamaConfig", "pipeline", 3):
        for file in ("tokenizer_config.json", "config.json"):
            fields = json.loads(good[file])
            given = json.dumps({**fields, "auto_map": code, "tokenizer_class": name})
            (folder / file).write_text(given)
            refused(f"^{file} in .*'.*m'.*tokenizer")
            (folder / file).write_text(good[file])
    for file, text, match in (
        ("tokenizer_config.json", "{", "tokenizer_config.json in .* is not JSON"),
        ("config.json", "[" * 100_000, "config.json in .* is not JSON"),
        ("tokenizer.json", "null", "does not take the tokenizer of '.*m': "),
        ("tokenizer.json", "{}", "does not take the tokenizer of '.*m': "),
        ("tokenizer_config.json", '{"added_tokens_decoder": "x"}', "does not take the tokenizer"),
    ):
        (folder / file).write_text(text)
        refused(match)
        (folder / file).write_text(good[file])
    assert hf.tokenizer(folder)("a few")["input_ids"] == [1, 2]
    assert not ran.exists()
    words = tmp_path / "words"
    save_pretrained(new(bert), words)
    (words / "vocab.txt").write_text("[UNK]\n[PAD]\n[CLS]\n[SEP]\n[MASK]\nword")
    assert 5 in hf.tokenizer(words)("word")["input_ids"]


def test_options_of_signatures_are_not_ignored(tmp_path: Path) -> None:
    """Without a policy they would mean nothing, also where nothing is fetched."""
    for options in ({"trust": ""}, {"subject": "0" * 64}, {"signature": "model.sig"}):
        with pytest.raises(ValueError, match="option 'trust'"):
            hf.tokenizer(tmp_path, options=options)


def test_a_config_that_names_another_model(tmp_path: Path) -> None:
    """Transformers would fetch its config, and its weights, from the Hub."""
    folder = tmp_path / "m"
    save_pretrained(new(llama), folder)
    base = {"model_type": "detr", "use_timm_backbone": False, "backbone": "a/b"}
    for fields in (
        base,
        {**base, "backbone": "resnet50"},
        {**base, "use_timm_backbone": True},
        {"model_type": "llama", "more": [{"backbone": "a"}]},
        {
            "model_type": "detr",
            "backbone_config": {"model_type": "timm_backbone", "backbone": "a:b"},
        },
    ):
        (folder / "config.json").write_text(json.dumps(fields))
        with pytest.raises(errors.InvalidFormat, match="as its backbone, which is another model"):
            from_pretrained(folder)


def test_weights_that_a_class_has_in_more_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers finds them beside the others only."""
    save_pretrained(new(llama), tmp_path)
    extra = ("head.safetensors",)
    monkeypatch.setattr(transformers.LlamaConfig, "extra_files", extra, raising=False)
    assert from_pretrained(tmp_path)
    save(tmp_path / "head.safetensors", {"x": torch.ones(1)})
    with pytest.raises(errors.InvalidFormat, match=r"has weights in 'head\.safetensors' as well"):
        from_pretrained(tmp_path)


def test_no_other_folder_is_read(tmp_path: Path) -> None:
    """Whatever class asks transformers for its files."""
    for name in ("model", "other"):
        save_pretrained(new(llama), tmp_path / name)
    kind: Any = transformers.AutoConfig
    with (
        pytest.raises(
            errors.InvalidFormat, match=r"loading '.*model' would read files in '.*other'"
        ),
        isolated(Folder(tmp_path / "model")),
    ):
        assert kind.from_pretrained(tmp_path / "model")
        kind.from_pretrained(tmp_path / "other")
    assert kind.from_pretrained(tmp_path / "other")


def test_a_file_with_the_name_of_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers looks for the path ``None`` in the working directory, too."""
    save_pretrained(new(llama), tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    shutil.copy(tmp_path / "model" / "config.json", tmp_path / "None")
    kind: Any = transformers.PreTrainedConfig
    with (
        pytest.raises(errors.InvalidFormat, match="would read files in"),
        isolated(Folder(tmp_path / "model")),
    ):
        kind.get_config_dict(None)
    (tmp_path / "None").unlink()
    with isolated(Folder(tmp_path / "model")):
        assert kind.get_config_dict(None)[0]["model_type"] == "llama"


def test_a_library_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is not that of a file in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "libc.so.6").write_text("not this")
    with isolated(Folder(tmp_path)):
        assert ctypes.CDLL("libc.so.6").getpid() == os.getpid()


def test_no_earlier_download_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hub's client answers with it where there is no network."""
    save_pretrained(new(llama), tmp_path / "model")
    kept, commit = tmp_path / "hub" / "models--org--model", "0" * 40
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text(commit)
    save_pretrained(new(gpt2), kept / "snapshots" / commit, word_tokenizer())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))

    def asked() -> str:
        given = {"cache_dir": str(tmp_path / "hub"), "local_files_only": True}
        return str(transformers.AutoConfig.from_pretrained("org/model", **given))

    def downloaded() -> str:
        from huggingface_hub import hf_hub_download

        path = hf_hub_download("org/model", "config.json", local_files_only=True)
        return Path(path).read_text()

    def known() -> str:
        return (kept / "snapshots" / commit / "config.json").read_text()

    for read in (asked, downloaded, known):
        assert "gpt2" in read()
        with (
            pytest.raises(errors.InvalidFormat, match=r"would read files in '.*org.*model"),
            isolated(Folder(tmp_path / "model")),
        ):
            read()
    assert hf.tokenizer(kept / "snapshots" / commit)("a few")["input_ids"] == [1, 2]


BPE = {"tokenizer_class": "GPT2Tokenizer"}


def bpe(folder: Path, config: dict[str, Any], tokens: dict[str, Any] | None = None) -> None:
    """Make a folder with a tokenizer, beside one with another vocabulary."""
    for place, words in ((folder, "ab"), (folder.parent / "cwd", "cd")):
        place.mkdir(exist_ok=True)
        first, second = words
        vocab = {first: 0, second: 1, words: 2, "<|endoftext|>": 3}
        for name in ("vocab.json", "words"):
            (place / name).write_text(json.dumps(vocab))
        for name in ("merges.txt", "pairs"):
            (place / name).write_text(f"#version: 0.2\n{first} {second}\n")
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    (folder / "tokenizer_config.json").write_text(json.dumps(BPE | config))
    (folder / "special_tokens_map.json").write_text(json.dumps(tokens or {}))


NAMED = {"vocab": "words", "merges": "pairs"}
NAMES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (NAMED, {}),
    ({}, NAMED),
    ({"init_inputs": ["words", "pairs"]}, {}),
    ({}, {"vocab_file": "words", "merges_file": "pairs"}),
    ({}, {"vocab_file": "../cwd/words", "merges_file": "../cwd/pairs"}),
]


@pytest.mark.parametrize(("config", "tokens"), NAMES)
def test_files_that_a_tokenizer_names(
    tmp_path: Path,
    signer: Signer,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, Any],
    tokens: dict[str, Any],
) -> None:
    """They would be opened in the working directory, also if somebody makes them meanwhile."""
    folder = tmp_path / "m"
    bpe(folder, config, tokens)
    sign(folder, key=signer.private)
    monkeypatch.chdir(tmp_path / "cwd")
    for options in (None, signer.options):
        with pytest.raises(errors.InvalidFormat, match="which is not in that folder: remove"):
            hf.tokenizer(folder, options=options)
    monkeypatch.setattr("tensorizer_ops._hf.files._is_elsewhere", lambda *_: False)
    assert "ab" in hf.tokenizer(folder, options=signer.options).get_vocab()


def test_paths_of_another_machine_mean_nothing(tmp_path: Path, signer: Signer) -> None:
    path = "/root/.cache/huggingface/transformers/0123"
    names = ("name_or_path", "special_tokens_map_file", "tokenizer_file", "vocab_file")
    bpe(tmp_path / "m", dict.fromkeys(names, path) | {"init_inputs": [], "errors": "strict"})
    sign(tmp_path / "m", key=signer.private)
    found = hf.tokenizer(tmp_path / "m", options=signer.options)
    assert "ab" in found.get_vocab() and found.init_kwargs["errors"] == "strict"


def test_files_in_which_a_tokenizer_names_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "m"
    for given in (
        {"mecab_kwargs": {"mecab_dic": None, "mecab_option": "-d words"}},
        {"sudachi_kwargs": {"sudachi_dict_type": "words"}},
    ):
        bpe(folder, given)
        with pytest.raises(errors.InvalidFormat, match=r"has \w+, which can lead to code or to"):
            hf.tokenizer(folder)
    bpe(folder, {"mecab_option": "", "sudachi_dict_type": "core"})
    assert "ab" in hf.tokenizer(folder).get_vocab()
    (folder / "byte_maps.json").write_text('{"decompose_map": {"61": "62"}, "merge_map": "words"}')
    with pytest.raises(errors.InvalidFormat, match=r"byte_maps\.json in .* has merge_map, which"):
        hf.tokenizer(folder)
    (folder / "byte_maps.json").unlink()
    monkeypatch.setattr("tensorizer_ops._hf.files._is_elsewhere", lambda *_: False)
    bpe(folder, {"fast_tokenizer_files": ["../cwd/tokenizer.0.0.1.json"]})
    (tmp_path / "cwd" / "tokenizer.0.0.1.json").write_text("{}")
    with pytest.raises(errors.InvalidFormat, match=r"would read files in '.*cwd'"):
        hf.tokenizer(folder)


def test_a_vocabulary_of_tiktoken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiktoken would take what is under a name made of its path, in a folder of all users."""
    folder, kept = tmp_path / "m", tmp_path / "kept"
    ranks = {bytes([byte]): byte for byte in range(256)}
    for file, more in ((folder / "tokenizer.model", b"ab"), (kept, b"cd")):
        file.parent.mkdir(exist_ok=True)
        file.write_text(
            "".join(f"{b64encode(k).decode()} {v}\n" for k, v in {**ranks, more: 256}.items())
        )

    def load_tiktoken_bpe(path: str, expected_hash: str | None = None) -> dict[bytes, int]:
        found = kept.read_bytes()
        if expected_hash is not None and hashlib.sha256(found).hexdigest() != expected_hash:
            found = Path(path).read_bytes()
        return {b64decode(k): int(v) for k, v in map(bytes.split, found.splitlines())}

    fake = types.ModuleType("tiktoken.load")
    fake.load_tiktoken_bpe = load_tiktoken_bpe  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tiktoken", types.ModuleType("tiktoken"))
    monkeypatch.setitem(sys.modules, "tiktoken.load", fake)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind))
    vocab = hf.tokenizer(folder).get_vocab()
    assert "ab" in vocab and "cd" not in vocab


@pytest.mark.parametrize("name", ["tokenizer_file", "vocab_file", "vocab"])
@pytest.mark.parametrize("kind", [str, Path])
def test_files_in_the_arguments_of_a_tokenizer(tmp_path: Path, name: str, kind: Any) -> None:
    save_pretrained(new(llama), tmp_path, word_tokenizer())
    assert "few" in hf.tokenizer(tmp_path, local_files_only=True).get_vocab()
    with pytest.raises(ValueError, match=f"{name} is given, and only the files in the folder"):
        hf.tokenizer(tmp_path, **{name: kind(tmp_path / "tokenizer.json")})


def test_files_on_which_tokenizers_panic(tmp_path: Path) -> None:
    """That is no Exception, and a panic during another one ends the process."""
    save_pretrained(new(llama), tmp_path, word_tokenizer())
    file = tmp_path / "tokenizer.json"
    good = json.loads(file.read_text())
    charsmap = {"type": "Precompiled", "precompiled_charsmap": "YWJj"}
    file.write_text(json.dumps({**good, "normalizer": charsmap}))
    with pytest.raises(errors.InvalidFormat, match=r"does not take .*PanicException"):
        hf.tokenizer(tmp_path)

    def merging(prefix: str, merge: Any, vocab: dict[str, int]) -> str:
        model = {"type": "BPE", "vocab": vocab, "merges": [merge], "unk_token": None}
        return json.dumps({**good, "model": {**model, "continuing_subword_prefix": prefix}})

    cut = {"a": 0, "é": 1, "aé": 2}
    for text in (
        merging("x", ["a", "é"], cut),
        merging("x", "a é", cut),
        merging("x", ["a", "é"], cut).replace("continuing", "\\u0063ontinuing"),
    ):
        file.write_text(text)
        with pytest.raises(errors.InvalidFormat, match=r"merges without its continuing_subword"):
            hf.tokenizer(tmp_path)
    for merge in (["a", "##b"], "a ##b"):
        file.write_text(merging("##", merge, {"a": 0, "##b": 1, "ab": 2}))
        assert "ab" in hf.tokenizer(tmp_path).get_vocab()
    file.write_text(merging("", "a é", cut))
    assert "aé" in hf.tokenizer(tmp_path).get_vocab()


def test_no_older_files_of_a_tokenizer_stay(tmp_path: Path) -> None:
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": "<stale>"}')
    if OLD:  # it writes this file as well
        save_pretrained(new(llama), tmp_path, word_tokenizer())
        assert hf.tokenizer(tmp_path).bos_token is None
    else:
        with pytest.raises(
            ValueError, match=r"already has 'special_tokens_map\.json', which would"
        ):
            save_pretrained(new(llama), tmp_path, word_tokenizer())
        (tmp_path / "special_tokens_map.json").unlink()
    words = word_tokenizer()
    words.chat_template = "old"
    save_pretrained(new(llama), tmp_path, words)
    words.chat_template = "new"
    save_pretrained(new(llama), tmp_path, words)
    assert hf.tokenizer(tmp_path).chat_template == "new"
    words.chat_template = {"default": "newer", "tool": "other"}
    with pytest.raises(ValueError, match="would change this tokenizer"):
        save_pretrained(new(llama), tmp_path, words)
    (tmp_path / "chat_template.jinja").unlink()
    save_pretrained(new(llama), tmp_path, words)
    assert hf.tokenizer(tmp_path).chat_template == words.chat_template


def test_weights_are_in_a_folder_once(tmp_path: Path) -> None:
    """Whatever options say, a load finds what was saved last."""
    old, model = new(llama), new(gpt2)
    one, index = "model.safetensors", "model.safetensors.index.json"
    small, large = ({"max_shard_size": size, "fsync": True} for size in (20_000, 1 << 30))
    save_pretrained(old, tmp_path, weights=one, options=small)
    assert (tmp_path / index).exists() and not (tmp_path / one).exists()
    with pytest.raises(ValueError, match=f"already has weights in '{index}'"):
        save_pretrained(model, tmp_path, weights=one)
    save_pretrained(model, tmp_path, weights=one, options=small)
    assert_same(from_pretrained(tmp_path), model)
    save_pretrained(old, tmp_path, weights=one, options=large)
    assert not (tmp_path / index).exists()
    assert_same(from_pretrained(tmp_path), old)
    with pytest.raises(ValueError, match=f"already has weights in '{one}'"):
        save_pretrained(model, tmp_path, weights=one, options=small)


def test_wrong_folders(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    save_pretrained(new(llama), folder)
    config = json.loads((folder / "config.json").read_text())

    def refused(kind: type[Exception], match: str, **given: Any) -> None:
        with pytest.raises(kind, match=match) as caught:
            from_pretrained(folder, **given)
        assert f"{tempfile.gettempdir()}/tmp" not in str(caught.value)

    for text, match in {
        "<html>": "config.json in .* is not JSON",
        "[]": "holds list, and must hold an object",
        '{"model_type": "unheard"}': "does not take the config .*unheard",
        "[" * 100_000: "is not JSON",
        json.dumps({**config, "dtype": "load"}): "does not take the config",
        json.dumps({**config, "text_config": {"_attn_implementation": "evil/x"}}): "'evil/x'.*code",
        json.dumps({**config, "model_type": "x", "auto_map": {"AutoConfig": "a.B"}}): "custom code",
        json.dumps({**config, "fusion_config": {"patch_embeddings": True}}): "has a fusion_config",
        json.dumps({**config, "dtype": 7}): "dtype in config.json is 7",
        json.dumps({**config, "hidden_act": "x"}): "no model can be made of config.json in .*m': ",
        json.dumps({**config, "vocab_size": 7}): "other shapes than config.json there gives them",
    }.items():
        (folder / "config.json").write_text(text)
        refused(ValueError, match)
    for named in (["os", "logging"], 7):
        (folder / "config.json").write_text(json.dumps({**config, "architectures": named}))
        refused(ValueError, "never executed", trust_remote_code=True)
    for name in ("variant", "subfolder", "revision", "config", "state_dict"):
        refused(ValueError, f"{name}= cannot be given", **{name: "fp16"})
    settings = transformers.GenerationConfig(max_length=77)
    made = from_pretrained(folder, generation_config=settings, local_files_only=True, token="x")
    assert made.generation_config.max_length == 77
    refused(ValueError, "both given", device="cpu", device_map="auto")
    refused(ValueError, "device_map is 'gpu'", device_map="gpu")
    refused(ValueError, "dtype is 'half4'", dtype="half4")
    for other in (int, transformers.AutoConfig, transformers.AutoTokenizer):
        refused(TypeError, f"model_class is the class .*{other.__name__}", model_class=other)
    vision = transformers.AutoModelForImageClassification
    refused(ValueError, "has no model for a LlamaConfig", model_class=vision)
    for name in ("../m/model.tensors", "..", "", "a\0"):
        refused(ValueError, "is not the name of a file", weights=name or "./")
    refused(FileNotFoundError, "other.tensors", weights="other.tensors")
    with pytest.raises(FileNotFoundError, match="has no tokenizer"):
        hf.tokenizer(folder)
    with pytest.raises(FileNotFoundError, match="gpt2': No such file"):
        from_pretrained(tmp_path / "gpt2")  # which is no name on the Hub
    with pytest.raises(FileNotFoundError, match=r"neither config\.json nor"):
        fetch(tmp_path / "none", tmp_path / "new")
    with pytest.raises(ValueError, match=r"already has weights in 'model\.tensors'"):
        save_pretrained(new(llama), folder, weights="model.safetensors")
    with pytest.raises(TypeError, match="model is Linear"):
        save_pretrained(torch.nn.Linear(2, 2), folder)
    (folder / "model.tensors").unlink()
    refused(FileNotFoundError, "has no weights")
    save_pretrained(new(llama), folder)
    settings_file = folder / "generation_config.json"
    settings_file.write_text('{"watermarking_config": 5}')
    refused(ValueError, "does not take generation_config.json")


@pytest.mark.skipif(OLD, reason="takes other configs")
def test_configs_that_transformers_fails_with(tmp_path: Path) -> None:
    """Whatever it raises, the file is at fault, unless the caller has asked for something."""
    folder = tmp_path / "m"
    save_pretrained(new(llama), folder)
    config = json.loads((folder / "config.json").read_text())
    changes: list[dict[str, Any]] = [
        {"architectures": ["PreTrainedModel"]},
        {"dtype": "float8_e4m3fn"},
        {"dtype": "int8"},
        {"quantization_config": {"quant_method": "gptq"}},
        {"quantization_config": {"quant_method": ["a"]}},
    ]
    for change in changes:
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(errors.InvalidFormat, match="not take the config of"):
            from_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    for asked in ({"quantization_config": {"quant_method": "gptq"}}, {"dtype": torch.int8}):
        with pytest.raises((TypeError, ValueError)) as other:
            from_pretrained(folder, **asked)  # type: ignore[arg-type]
        assert not isinstance(other.value, errors.Error)

    def stop(*_: int) -> None:
        raise LookupError("of the caller")

    with pytest.raises(LookupError, match="of the caller"):
        from_pretrained(folder, progress=stop)


@pytest.mark.skipif(OLD, reason="takes experts as they are")
@pytest.mark.parametrize("shape", [None, (64, 1), (1, 1, 1), (0, 32)])
def test_experts_of_which_no_layer_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...] | None
) -> None:
    save_pretrained(new(mixtral), tmp_path)
    weights = load(tmp_path / "model.tensors", copy=True)
    expert = next(name for name in weights if "experts.1.w1" in name)
    del weights[expert]
    if shape is not None:
        weights[expert] = torch.zeros(shape)
    save(tmp_path / "model.tensors", weights)
    with pytest.raises(errors.InvalidFormat, match="of those in its weights, such as experts"):
        from_pretrained(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("of the device")

    monkeypatch.setattr(transformers.MixtralForCausalLM, "from_pretrained", fail)
    with pytest.raises(torch.OutOfMemoryError, match="of the device"):
        from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": 10**9},
        {"text_config": {"num_layers": 1e9}},
        {"num_labels": 10**9},
        {"depths": [2, 10**9]},
    ],
)
def test_configs_of_models_without_end(tmp_path: Path, change: dict[str, Any]) -> None:
    """Each layer is an object, also without memory for weights."""
    folder = tmp_path / "m"
    save_pretrained(new(llama), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(errors.InvalidFormat, match="the file has 21 tensors"):
        from_pretrained(folder)


def test_a_server_that_sends_too_much() -> None:
    with (
        scripted(lambda asked: asked.say("200 OK", b" " * 100_000_001)) as server,
        pytest.raises(errors.InvalidFormat, match="more than 100000000 bytes") as caught,
    ):
        from_pretrained(server.url("m?X-Amz-Signature=0123456789"))
    assert "0123456789" not in str(caught.value)
