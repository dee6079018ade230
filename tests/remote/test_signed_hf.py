"""What transformers reads of its own accord, while it loads a signed folder and afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tensorizer_ops
from support.hf_models import (
    has_adapter,
    new,
    save_adapter,
    wav2vec2,
    word_tokenizer,
)
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
