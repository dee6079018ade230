"""Small random models of transformers, and comparisons of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from support.samples import same

transformers = pytest.importorskip("transformers")
OLD = transformers.__version__.startswith("4.")
tokenizers = pytest.importorskip("tokenizers")

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}


def llama() -> Any:
    config = transformers.LlamaConfig(**SMALL, num_key_value_heads=2, intermediate_size=64)
    return transformers.LlamaForCausalLM(config)


def gpt2() -> Any:
    """Return a model whose head is tied to its embedding."""
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
    config = transformers.GPT2Config(vocab_size=64, bos_token_id=0, eos_token_id=1, **sizes)
    return transformers.GPT2LMHeadModel(config)


def t5() -> Any:
    """Return a model of which some weights stay in float32 when the others do not."""
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    config = transformers.T5Config(vocab_size=64, decoder_start_token_id=0, **sizes)
    return transformers.T5ForConditionalGeneration(config)


def mixtral() -> Any:
    """Return a model whose experts are several tensors in a file, and one in memory."""
    sizes = {"num_key_value_heads": 2, "intermediate_size": 64, "num_local_experts": 4}
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**SMALL, **sizes))


def bert() -> Any:
    config = transformers.BertConfig(**SMALL, intermediate_size=64, num_labels=3)
    return transformers.BertForSequenceClassification(config)


def wav2vec2() -> Any:
    """Return a model with an adapter for each language, in a file of its own."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 8}
    layers = {"conv_dim": (8,), "conv_kernel": (3,), "conv_stride": (2,), "intermediate_size": 16}
    config = transformers.Wav2Vec2Config(
        **sizes,
        **layers,
        adapter_attn_dim=4,
        do_stable_layer_norm=True,
        feat_extract_norm="layer",
        num_conv_pos_embedding_groups=2,
        num_conv_pos_embeddings=4,
    )
    return transformers.Wav2Vec2ForCTC(config)


def save_adapter(model: Any, folder: Path, language: str, value: float) -> None:
    """Save an adapter for a language, of which all values are the same."""
    folder.mkdir(exist_ok=True)
    state = {k: torch.full_like(v, value) for k, v in model._get_adapters().items()}
    tensorizer_ops.save(folder / f"adapter.{language}.safetensors", state)


def has_adapter(model: Any, value: float) -> bool:
    return all(bool((tensor == value).all()) for tensor in model._get_adapters().values())


def word_tokenizer() -> Any:
    words = {word: i for i, word in enumerate(["<unk>", "a", "few", "words"])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")


def new(make: Callable[[], Any], dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(1)
    model = make().eval()
    for parameter in model.parameters():  # to() would cast buffers as well
        parameter.data = parameter.to(dtype)
    return model


def assert_same(actual: Any, expected: Any) -> None:
    assert type(actual) is type(expected)
    assert actual.state_dict().keys() == expected.state_dict().keys()
    names = [name for name, _ in expected.named_parameters()]
    assert [name for name, _ in actual.named_parameters()] == names, "ties differ"
    for name, tensor in expected.state_dict().items():
        assert same(actual.state_dict()[name], tensor), name
    for (name, buffer), (other, wanted) in zip(
        actual.named_buffers(), expected.named_buffers(), strict=True
    ):
        assert name == other and same(buffer, wanted), name
    assert not actual.training
    configs = [model.config.to_dict() for model in (actual, expected)]
    for config in configs:
        config.pop("_name_or_path", None)
    assert configs[0] == configs[1]
    if expected.can_generate():
        assert actual.generation_config.to_dict() == expected.generation_config.to_dict()
