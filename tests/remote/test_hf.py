"""Models of transformers and diffusers in a folder, in S3 and on web servers.

They are small and random, and compared with what transformers itself loads, bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from local_servers.s3_server import S3
from local_servers.web import PASSWORD, Web
from support.hf_models import (
    OLD,
    assert_same,
    bert,
    gpt2,
    has_adapter,
    llama,
    mixtral,
    new,
    save_adapter,
    t5,
    transformers,
    wav2vec2,
    word_tokenizer,
)
from support.recorder import DENIED, recorder
from support.samples import same
from tensorizer_ops import hf
from tensorizer_ops._hf.configs import takes_each
from tensorizer_ops.hf import fetch, from_pretrained, save_pretrained


@pytest.mark.parametrize("make", [llama, gpt2, t5, mixtral, bert])
def test_models_are_what_transformers_loads(tmp_path: Path, make: Callable[[], Any]) -> None:
    """Of files of each kind: all at once, one by one, as pages of the file, and cast."""
    model = new(make, torch.bfloat16)
    usual = tmp_path / "hub"
    model.save_pretrained(usual, max_shard_size="50KB")
    save_pretrained(model, tmp_path / "ours")
    save_pretrained(model, tmp_path / "safetensors", weights="model.safetensors")
    for folder in (usual, tmp_path / "ours", tmp_path / "safetensors"):
        for asked in ({}, {"dtype": torch.float16}, {"device_map": "auto"}):
            loaded, report = from_pretrained(folder, output_loading_info=True, **asked)
            assert not any(report.values()), report
            assert_same(loaded, type(model).from_pretrained(usual, **{"dtype": "auto", **asked}))
    expected = type(model).from_pretrained(usual, dtype="auto")
    assert_same(from_pretrained(tmp_path / "ours", verify="all"), expected)
    # The safetensors file and the configs are those of transformers.
    assert_same(type(model).from_pretrained(tmp_path / "safetensors", dtype="auto"), expected)
    assert loaded.config.name_or_path == str(tmp_path / "safetensors")
    # The file has tied weights once.
    count = len(tensorizer_ops.names(tmp_path / "safetensors" / "model.safetensors"))
    assert count == len(tensorizer_ops.names(usual))


def test_nothing_is_initialized_and_weights_are_pages_of_the_file(tmp_path: Path) -> None:
    save_pretrained(new(llama), tmp_path / "m")
    state = torch.get_rng_state()
    loaded = from_pretrained(tmp_path / "m")
    assert torch.equal(torch.get_rng_state(), state)
    assert is_mapped(loaded.lm_head.weight)
    assert not is_mapped(from_pretrained(tmp_path / "m", copy=True).lm_head.weight)


def is_mapped(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is pages of a file with weights."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(address, 16) for address in line.split()[0].split("-"))
        if begin <= tensor.data_ptr() < end:
            return line.endswith("model.tensors")
    return False


@pytest.mark.skipif(OLD, reason="transformers 4 is given all tensors at once")
def test_what_is_loaded_one_by_one(tmp_path: Path) -> None:
    """Weights of which transformers makes others: all at once, they would be in memory twice."""
    save_pretrained(new(llama), tmp_path / "m")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "m")
    cpu = torch.device("cpu")
    with tensorizer_ops.Reader(tmp_path / "m" / "model.tensors") as reader:
        assert not takes_each(torch.float32, config, reader, cpu, {})
        assert takes_each(torch.float16, config, reader, cpu, {})
        assert takes_each(torch.float32, config, reader, None, {})
        for name in ("tp_plan", "distributed_config", "quantization_config"):
            assert takes_each(torch.float32, config, reader, cpu, {name: "auto"})
        config.quantization_config = {"quant_method": "fp8"}
        assert takes_each(torch.float32, config, reader, cpu, {})


def test_classes_configs_and_arguments(tmp_path: Path) -> None:
    """A class, an Auto class, values of the config, and a folder without architectures."""
    model = new(llama)
    model.generation_config.max_new_tokens = 7
    save_pretrained(model, tmp_path / "m")
    loaded = from_pretrained(tmp_path / "m", transformers.LlamaForCausalLM, use_cache=False)
    assert loaded.config.use_cache is False
    assert loaded.generation_config.max_new_tokens == 7
    base = from_pretrained(tmp_path / "m", transformers.AutoModel, torch_dtype="float64")
    assert type(base) is transformers.LlamaModel
    assert same(base.norm.weight, model.model.norm.weight.double())
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    del config["architectures"], config["dtype"]
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    (tmp_path / "m" / "generation_config.json").unlink()
    assert type(from_pretrained(tmp_path / "m")) is transformers.LlamaForCausalLM
    bf16 = new(llama, torch.bfloat16)
    tensorizer_ops.save(tmp_path / "m" / "model.tensors", bf16.state_dict())
    assert from_pretrained(tmp_path / "m").dtype == torch.bfloat16


def test_s3(s3: S3) -> None:
    """What is saved there has all files, and is found without a list of them."""
    model = new(gpt2)
    uri = "s3://bucket/models/gpt 2"
    save_pretrained(model, uri + "/", word_tokenizer(), options=s3.options(), hashes="chunked")
    saved = [name.rpartition("/")[2] for name in s3.objects()]
    assert {"config.json", "generation_config.json", "model.tensors"} < set(saved)
    assert_same(from_pretrained(uri, options=s3.options(), verify="all"), model)
    each = from_pretrained(uri, options=s3.options(), dtype=torch.bfloat16)
    assert same(each.lm_head.weight, model.lm_head.weight.bfloat16())
    tokenizer = hf.tokenizer(uri, options=s3.options())
    assert tokenizer("few words")["input_ids"] == [2, 3]
    assert tokenizer.name_or_path == uri


def test_s3_denies_access_to_what_does_not_exist(s3: S3) -> None:
    """As AWS does if the keys may not list the bucket."""
    uri, model = "s3://bucket/denied", new(llama)
    tokenizer = word_tokenizer()
    tokenizer.chat_template = {"default": "{{ 1 }}", "other": "{{ 2 }}"}
    weights = "model.safetensors"
    save_pretrained(model, uri, tokenizer, weights=weights, options=s3.options())
    there = s3.objects()
    with recorder(s3.port) as between:
        between.answers = lambda request: (
            None if request.path.removeprefix("/bucket/") in there else DENIED
        )
        options = s3.options(s3_endpoint=f"http://127.0.0.1:{between.port}")
        assert_same(from_pretrained(uri, options=options), model)
        loaded = hf.tokenizer(uri, options=options)
        assert loaded.chat_template == tokenizer.chat_template
        with pytest.raises(PermissionError):
            from_pretrained(uri + "/none", options=options)


def test_web_servers(web: Web, tmp_path: Path) -> None:
    """An ordinary repository on a server, behind a login."""
    model = new(llama)
    place = web.root / "org" / "my model"
    model.save_pretrained(place, max_shard_size="50KB")
    word_tokenizer().save_pretrained(place)
    login = web.url("private/org/my%20model/?x=1#y").replace("//", f"//me:{PASSWORD}@")
    loaded = from_pretrained(login)
    assert_same(loaded, model)
    assert PASSWORD not in loaded.config.name_or_path
    tokenizer = hf.tokenizer(login)
    assert tokenizer("a few")["input_ids"] == [1, 2]
    assert PASSWORD not in tokenizer.name_or_path
    fetched = Path(fetch(login, tmp_path / "new" / "small"))
    assert {file.name for file in fetched.iterdir()} == {
        file.name for file in place.iterdir() if "safetensors" not in file.name
    }
    save_pretrained(model, web.url("put/model"), word_tokenizer())
    assert_same(from_pretrained(web.url("put/model"), verify="all"), model)
    shard = next(place.glob("*-00002-of-*")).name
    for missing in (shard, "config.json"):
        (place / missing).unlink()
        with pytest.raises(FileNotFoundError, match=missing) as caught:
            from_pretrained(login)
        assert PASSWORD not in str(caught.value)


def test_files_of_the_class_of_a_tokenizer(web: Web, tmp_path: Path) -> None:
    """A server does not list its files: the class in the tokenizer's config names its own."""
    kind = transformers.PhobertTokenizer
    place = web.root / "phobert"
    place.mkdir()
    (place / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind.__name__}))
    names = set(kind.vocab_files_names.values())
    for name in names:
        (place / name).write_text(name)
    fetch(web.url("phobert"), tmp_path / "m")
    assert {file.name for file in (tmp_path / "m").iterdir()} == {*names, "tokenizer_config.json"}


def test_diffusers(tmp_path: Path) -> None:
    diffusers = pytest.importorskip("diffusers")
    model = diffusers.AutoencoderKL(block_out_channels=(32,)).eval()
    for weights in ("model.tensors", "diffusion_pytorch_model.safetensors"):
        save_pretrained(model, tmp_path / weights, weights=weights)
        loaded = from_pretrained(tmp_path / weights, diffusers.AutoencoderKL)
        assert type(loaded) is type(model) and not loaded.training
        for name, tensor in model.state_dict().items():
            assert same(loaded.state_dict()[name], tensor)
    half = from_pretrained(tmp_path / weights, diffusers.AutoencoderKL, dtype=torch.float16)
    assert same(half.encoder.conv_in.weight, model.encoder.conv_in.weight.half())
    theirs = diffusers.AutoencoderKL.from_pretrained(tmp_path / weights)
    assert same(theirs.encoder.conv_in.weight, model.encoder.conv_in.weight)
    (tmp_path / weights / "config.json").write_text('{"_class_name": "DiffusionPipeline"}')
    with pytest.raises(ValueError, match="makes a DiffusionPipeline, which is no model"):
        from_pretrained(tmp_path / weights, diffusers.AutoModel)
    with pytest.raises(ValueError, match="take no use_x, device_map"):
        from_pretrained(tmp_path / weights, type(model), device_map="auto", use_x=1)


def test_diffusers_keeps_the_types_of_a_file(tmp_path: Path) -> None:
    diffusers = pytest.importorskip("diffusers")

    class Kept(diffusers.AutoencoderKL):
        _keep_in_fp32_modules = ("conv_in",)

    model = Kept(block_out_channels=(32,)).eval()
    for name, parameter in model.named_parameters():
        parameter.data = parameter.to(torch.float32 if "conv_in" in name else torch.bfloat16)
    save_pretrained(model, tmp_path)
    for dtype in ("auto", torch.bfloat16):
        loaded = from_pretrained(tmp_path, Kept, dtype=dtype).state_dict()
        for name, tensor in model.state_dict().items():
            assert same(loaded[name], tensor), name


def test_models_that_are_more_than_their_weights(tmp_path: Path) -> None:
    """They are saved as what they are, or not at all."""
    expected = new(llama)
    save_pretrained(torch.compile(expected), tmp_path / "compiled")
    loaded = from_pretrained(tmp_path / "compiled")
    assert_same(loaded, expected)
    for weights in ("model.tensors", "model.safetensors"):
        layers = new(llama)
        layers.model.layers[0] = torch.compile(layers.model.layers[0])
        save_pretrained(layers, tmp_path / weights, weights=weights)
        assert_same(from_pretrained(tmp_path / weights), expected)
    assert loaded.name_or_path == str(tmp_path / "compiled")

    def refused(match: str, model: Any, **given: Any) -> None:
        with pytest.raises((ValueError, TypeError), match=match):
            save_pretrained(model, tmp_path / "new", **given)
        assert not (tmp_path / "new").exists()

    shared = new(llama)
    shared.model.layers[1].mlp.up_proj.weight = shared.model.layers[0].mlp.up_proj.weight
    refused("share memory, which a safetensors file", shared, weights="model.safetensors")
    shared._hf_peft_config_loaded = True
    refused("the model has adapters", shared)
    with torch.device("meta"):
        refused("is on the meta device: its values are offloaded", llama())
    refused("name of another file", expected, weights="config.json")
    expected.generation_config.temperature = 0.5  # without do_sample
    refused("temperature", expected)


def test_models_that_read_more_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They read those of the folder, wherever it is."""
    model = new(wav2vec2)
    save_pretrained(model, tmp_path / "speech")
    save_adapter(model, tmp_path / "speech", "fra", 1)
    monkeypatch.chdir(tmp_path)
    save_adapter(model, tmp_path / "None", "deu", 3)
    loaded = from_pretrained("speech", target_lang="fra")
    assert has_adapter(loaded, 1) and loaded.name_or_path == "speech"
    assert loaded.wav2vec2.name_or_path == "speech"
    loaded.load_adapter("fra", force_load=True)
    with pytest.raises(FileNotFoundError, match=r"'speech' has no 'adapter\.deu\.bin'"):
        from_pretrained("speech", target_lang="deu")


def test_the_default_device_is_meta(tmp_path: Path) -> None:
    model = new(llama)
    save_pretrained(model, tmp_path)
    with torch.device("meta"):
        loaded = from_pretrained(tmp_path, device="cpu")
    assert_same(loaded, model)
