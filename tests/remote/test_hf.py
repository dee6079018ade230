"""Models of transformers and diffusers in a folder, in S3 and on web servers.

They are small and random, and compared with what transformers itself loads, bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from local_servers.s3_server import S3, s3_server
from local_servers.web import PASSWORD, Web, nginx
from support.recorder import DENIED, recorder
from support.samples import same
from support.scripted import scripted
from tensorizer_ops import errors, hf
from tensorizer_ops._hf.configs import takes_each
from tensorizer_ops.hf import fetch, from_pretrained, save_pretrained

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


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    with nginx(tmp_path_factory.mktemp("web")) as server:
        yield server


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


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


def test_the_default_device_is_meta(tmp_path: Path) -> None:
    model = new(llama)
    save_pretrained(model, tmp_path)
    with torch.device("meta"):
        loaded = from_pretrained(tmp_path, device="cpu")
    assert_same(loaded, model)


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
        assert "/tmp/tmp" not in str(caught.value)

    for text, match in {
        "<html>": "config.json in .* is not JSON",
        "[]": "holds list, and must hold an object",
        '{"model_type": "unheard"}': "does not take the config .*unheard",
        "[" * 100_000: "is not JSON",
        json.dumps({**config, "dtype": "load"}): "does not take the config",
        json.dumps({**config, "text_config": {"_attn_implementation": "evil/x"}}): "'evil/x'.*code",
        json.dumps({**config, "model_type": "x", "auto_map": {"AutoConfig": "a.B"}}): "custom code",
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
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
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


def test_a_server_that_sends_too_much() -> None:
    with (
        scripted(lambda asked: asked.say("200 OK", b" " * 100_000_001)) as server,
        pytest.raises(errors.InvalidFormat, match="more than 100000000 bytes") as caught,
    ):
        from_pretrained(server.url("m?X-Amz-Signature=0123456789"))
    assert "0123456789" not in str(caught.value)
