"""What transformers reads of its own accord, while it loads a signed folder and afterwards."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from local_servers.web import Web
from support.hf_models import (
    OLD,
    SMALL,
    gpt2,
    has_adapter,
    new,
    save_adapter,
    transformers,
    wav2vec2,
    word_tokenizer,
)
from support.process import ONLY_ROOT
from support.signer import Signer
from tensorizer_ops import errors, hf


@pytest.fixture
def speech(tmp_path: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a model, and an adapter for French; and make others elsewhere."""
    model = new(wav2vec2)
    hf.save_pretrained(model, tmp_path / "speech", word_tokenizer())
    save_adapter(model, tmp_path / "speech", "fra", 1)
    tensorizer_ops.sign(tmp_path / "speech", key=signer.private)
    monkeypatch.chdir(tmp_path)
    save_adapter(model, tmp_path / "None", "fra", 3)
    save_adapter(model, tmp_path / "None", "deu", 3)
    return tmp_path / "speech"


def test_files_that_a_model_reads_while_it_is_loaded(speech: Path, signer: Signer) -> None:
    def load(language: str) -> Any:
        return hf.from_pretrained(speech, options=signer.options, target_lang=language)

    assert has_adapter(load("fra"), 1)
    with pytest.raises(FileNotFoundError, match=r"speech' has no 'adapter\.deu\.bin'"):
        load("deu")
    with pytest.raises(ValueError, match="is not the name of a file"):
        load("/../../None/adapter.fra")
    model = new(wav2vec2)
    save_adapter(model, speech, "deu", 3)
    with pytest.raises(errors.Crypto, match=r"adapter\.deu\.safetensors': it is not signed"):
        load("deu")
    save_adapter(model, speech, "fra", 3)
    with pytest.raises(errors.HashMismatch, match=r"adapter\.fra\.safetensors"):
        load("fra")


@pytest.mark.parametrize("change", ["changed", "removed"])
def test_another_file_is_not_taken_for_one_that_was_signed(
    speech: Path, signer: Signer, change: str
) -> None:
    """Transformers would go on with the adapter of the other format."""
    name = "adapter.fra.safetensors"
    state = {k: torch.full_like(v, 2) for k, v in new(wav2vec2)._get_adapters().items()}
    torch.save(state, speech / "adapter.fra.bin")
    tensorizer_ops.sign(speech, key=signer.private)
    if change == "changed":
        save_adapter(new(wav2vec2), speech, "fra", 3)
    else:
        (speech / name).unlink()
    with pytest.raises((errors.HashMismatch, errors.NotFound), match=name):
        hf.from_pretrained(speech, options=signer.options, target_lang="fra")


@pytest.mark.skipif(OLD, reason="has no models that decide")
def test_settings_of_a_model_that_decides(tmp_path: Path, signer: Signer) -> None:
    text = transformers.LlamaConfig(**SMALL, num_key_value_heads=2, intermediate_size=64)
    config = transformers.JevConfig(hidden_size=32, text_config=text)
    hf.save_pretrained(transformers.JevForDecision(config).eval(), tmp_path)
    (tmp_path / "decision.json").write_text('{"temperature": {"choice": 7.0}}')
    (tmp_path / "decision_template.jinja").write_text("asked")
    tensorizer_ops.sign(tmp_path, key=signer.private)
    found = hf.from_pretrained(tmp_path, options=signer.options).decision_config
    assert (found.temperature, found.chat_template) == ({"choice": 7.0}, "asked")
    (tmp_path / "decision.json").write_text("{}")
    with pytest.raises(errors.HashMismatch, match=r"decision\.json"):
        hf.from_pretrained(tmp_path, options=signer.options)


def test_what_is_read_afterwards(speech: Path, signer: Signer) -> None:
    """The folder is not named to transformers, which would compare nothing."""
    model = hf.from_pretrained(speech, options=signer.options)
    named = [part for part in model.modules() if isinstance(part, transformers.PreTrainedModel)]
    assert len(named) == 2
    for part in (*named, *(part.config for part in named)):
        assert part.name_or_path == ""
    save_adapter(model, speech, "fra", 3)
    with pytest.raises((OSError, ValueError), match="Repo id must use"):
        model.load_adapter("fra", local_files_only=True)
    assert not has_adapter(model, 3)
    tokenizer = hf.tokenizer(speech, options=signer.options)
    assert tokenizer.name_or_path == ""
    assert list(texts(tokenizer, str(speech))) == []


def texts(value: Any, begin: str) -> Iterator[str]:
    """Yield the texts in a tokenizer that begin so."""
    if isinstance(value, str):
        if value.startswith(begin):
            yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from texts(part, begin)
    elif hasattr(value, "__dict__"):
        yield from texts(vars(value), begin)


@pytest.mark.parametrize("is_signed", [True, False])
def test_a_tokenizer_names_no_file_that_others_could_make(
    tmp_path: Path, signer: Signer, web: Web, monkeypatch: pytest.MonkeyPatch, is_signed: bool
) -> None:
    """It reads its files again later, but those were in a folder that is gone."""
    folder = web.root / f"phobert-{is_signed}"
    folder.mkdir()
    (folder / "vocab.txt").write_text("hello</w> 1\nhello 1\n")
    (folder / "bpe.codes").write_text("h e 1\n")
    (folder / "config.json").write_text(json.dumps({"model_type": "roberta"}))
    kind = {"tokenizer_class": "PhobertTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind))
    tensorizer_ops.sign(folder, key=signer.private)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    uri = folder if is_signed else web.url(folder.name)
    found = hf.tokenizer(uri, options=signer.options if is_signed else None)
    assert list(texts(found, str(tmp_path))) == []
    assert found.vocab_file == "/dev/null/vocab.txt"
    assert found.name_or_path == ("" if is_signed else uri)
    assert copy.deepcopy(found).get_vocab() == found.get_vocab()
    with pytest.raises((OSError, AttributeError)):
        found.save_pretrained(tmp_path / "saved")


def mode(path: Path) -> None:
    path.chmod(0o777)


def owner(path: Path) -> None:
    os.chown(path, 65534, 65534)


@pytest.mark.parametrize("change", [mode, pytest.param(owner, marks=ONLY_ROOT)])
def test_weights_are_not_offloaded_to_where_others_write(
    tmp_path: Path, signer: Signer, change: Callable[[Path], None]
) -> None:
    pytest.importorskip("accelerate")
    expected = new(gpt2)
    hf.save_pretrained(expected, tmp_path / "model")
    tensorizer_ops.sign(tmp_path / "model", key=signer.private)
    parts = (
        "transformer.wte",
        "transformer.wpe",
        "transformer.drop",
        "transformer.ln_f",
        "lm_head",
    )
    device_map = {**dict.fromkeys(parts, "cpu"), "transformer.h": "disk"}

    def load(folder: Path) -> Any:
        return hf.from_pretrained(
            tmp_path / "model", options=signer.options, device_map=device_map, offload_folder=folder
        )

    if not OLD:  # which takes no weights in memory for a disk
        loaded = load(tmp_path / "own")
        assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700
        tokens = torch.arange(8).view(1, 8)
        assert torch.equal(loaded(tokens).logits, expected(tokens).logits)
    others = tmp_path / "others"
    others.mkdir(mode=0o700)
    change(others)
    with pytest.raises(PermissionError, match="others' is not a folder of this user"):
        load(others)
    with pytest.raises(PermissionError, match=r"others' .* may replace"):
        load(others / "inner")
