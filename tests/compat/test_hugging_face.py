"""Models of transformers and diffusers have equal outputs, bit for bit, after save and load.

The models are small and random, made from a configuration.
"""

from __future__ import annotations

import contextlib
import json
import runpy
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import tensorizer
import torch

import tensorizer_ops
from local_servers.s3_server import s3_server
from support.process import ROOT, TIMEOUT, environment, fork_python, warm_python
from support.samples import same
from tensorizer_ops.serialization import TensorDeserializer, TensorSerializer
from tensorizer_ops.utils import no_init_or_tensor

transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")
tokenizers = pytest.importorskip("tokenizers")

LEVELS = ("INFO ", "WARNING ")
TOKENS = torch.arange(24).view(2, 12)
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}


def llama() -> Any:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SMALL, num_key_value_heads=2, intermediate_size=64)
    )


def gpt2() -> Any:
    """Returns a model whose head is tied to its embedding."""
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=32)
    )


def t5() -> Any:
    config = transformers.T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4
    )
    config.decoder_start_token_id = 0
    return transformers.T5ForConditionalGeneration(config)


def whisper() -> Any:
    return transformers.WhisperForConditionalGeneration(
        transformers.WhisperConfig(
            vocab_size=64,
            num_mel_bins=8,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            max_source_positions=20,
            max_target_positions=20,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
        )
    )


def unet() -> Any:
    diffusers = pytest.importorskip("diffusers")
    return diffusers.UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
    )


def output(model: Any) -> torch.Tensor:
    numbers = torch.linspace(-1, 1, 2 * 3 * 16 * 16)
    with torch.no_grad():
        if isinstance(model, transformers.WhisperForConditionalGeneration):
            sound = numbers[: 2 * 8 * 40].view(2, 8, 40)
            return model(input_features=sound, decoder_input_ids=TOKENS).logits
        if isinstance(model, transformers.T5ForConditionalGeneration):
            return model(input_ids=TOKENS, decoder_input_ids=TOKENS).logits
        if isinstance(model, transformers.PreTrainedModel):
            return model(input_ids=TOKENS).logits
        return model(numbers.view(2, 3, 16, 16), timestep=7).sample


def on_meta() -> AbstractContextManager[object]:
    return torch.device("meta")


def with_buffers() -> AbstractContextManager[object]:
    return accelerate.init_empty_weights(include_buffers=False)


EMPTY = [no_init_or_tensor, on_meta, with_buffers]
MODELS = [llama, gpt2, t5, whisper, unet]


def new(make: Callable[[], Any]) -> Any:
    torch.manual_seed(1)
    return make().eval()


def ties(model: Any) -> list[str]:
    """Returns, for each parameter name, the first name of the same parameter."""
    first: dict[int, str] = {}
    return [
        first.setdefault(id(parameter), name)
        for name, parameter in model.named_parameters(remove_duplicate=False)
    ]


def assert_same_model(actual: Any, expected: Any) -> None:
    for name, tensor in expected.state_dict().items():
        assert same(actual.state_dict()[name], tensor), name
    assert ties(actual) == ties(expected)
    assert not any(t.is_meta for t in [*actual.parameters(), *actual.buffers()])
    # The weights are the same, bit by bit. The results of BLAS depend on where in memory they lie.
    torch.testing.assert_close(output(actual), output(expected))


def without_memory(
    make: Callable[[], Any], empty: Callable[[], AbstractContextManager[object]]
) -> Any:
    with empty():
        model = make()
    if empty is with_buffers and isinstance(model, transformers.PreTrainedModel):
        model.tie_weights()  # accelerate unties the weights
    return model


@pytest.mark.parametrize("empty", EMPTY)
@pytest.mark.parametrize("make", MODELS)
def test_a_module_that_was_written(
    path: str, make: Callable[[], Any], empty: Callable[[], AbstractContextManager[object]]
) -> None:
    """write_module includes non-persistent buffers, so no buffer has to be computed."""
    model = new(make)
    with TensorSerializer(path) as serializer:
        serializer.write_module(model)
    filled = without_memory(make, empty)
    with TensorDeserializer(path, device="cpu", verify_hash=True) as deserializer:
        deserializer.load_into_module(filled)
    assert_same_model(filled.eval(), model)
    filled = without_memory(make, empty)
    tensorizer_ops.load_into(filled, path)
    assert_same_model(filled.eval(), model)


@pytest.mark.parametrize("make", MODELS)
def test_a_state_dict(path: str, make: Callable[[], Any]) -> None:
    """A state dict has no non-persistent buffers. A model whose buffers have memory keeps them."""
    model = new(make)
    tensorizer_ops.save(path, model.state_dict())
    filled = without_memory(make, with_buffers)
    tensorizer_ops.load_into(filled, path)
    assert_same_model(filled.eval(), model)


IN_MEMORY = """
import sys, torch, transformers
from tensorizer_ops import TensorDeserializer, TensorSerializer
from tensorizer_ops.utils import no_init_or_tensor

SMALL = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8}
LARGE = {"vocab_size": 4000, "hidden_size": 1024, "intermediate_size": 4096}


def model(sizes):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **sizes, num_hidden_layers=4, num_attention_heads=2
    ))


def peak():
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) << 10


def load(path, sizes):
    with no_init_or_tensor():
        filled = model(sizes)
    with TensorDeserializer(path, device="cpu") as deserializer:
        deserializer.load_into_module(filled)
        return deserializer.total_tensor_bytes


what, small, large = sys.argv[1:]
if what == "save":
    for path, sizes in ((small, SMALL), (large, LARGE)):
        with TensorSerializer(path) as serializer:
            serializer.write_module(model(sizes))
else:
    load(small, SMALL)  # so that one-time allocations are not counted
    before = peak()
    size = load(large, LARGE)
    assert size > 200 << 20, size
    print((peak() - before) / size)
"""


def test_weights_are_in_memory_once(tmp_path: Path) -> None:
    files = [str(tmp_path / "small"), str(tmp_path / "large")]
    fork_python(IN_MEMORY, "save", *files)
    assert 0.9 < float(fork_python(IN_MEMORY, "load", *files).stdout) < 1.2


Example = Callable[..., None]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Example:
    """Runs the example in this process, because a new one would import transformers first."""

    def run(*arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", ["hugging_face.py", *arguments])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runpy.run_path(str(ROOT / "examples" / "hugging_face.py"), run_name="__main__")

    return run


@pytest.mark.parametrize("where", ["folder", "s3"])
def test_the_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, example: Example, where: str
) -> None:
    """Saves and loads a model with a tokenizer. A second save keeps existing files."""
    source, back = tmp_path / "source", tmp_path / "back"
    model = new(llama)
    model.generation_config.max_new_tokens = 7
    model.save_pretrained(source)
    words = {word: i for i, word in enumerate(["<unk>", "a", "few", "words"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(source)
    with contextlib.ExitStack() as stack:
        prefix = str(tmp_path / "prefix")
        if where == "s3":
            server = stack.enter_context(s3_server(tmp_path))
            for name, value in server.environment().items():
                monkeypatch.setenv(name, value)
            prefix = "s3://bucket/models/llama"
        example("save", str(source), prefix, "--validate", "-q")
        if where == "folder":
            (tmp_path / "prefix" / "tokenizer.zip").unlink()
            before = (tmp_path / "prefix" / "model.tensors").stat().st_ino
            example("save", str(source), prefix)
            assert (tmp_path / "prefix" / "model.tensors").stat().st_ino == before
        example("load", prefix, str(back))
    assert_same_model(transformers.LlamaForCausalLM.from_pretrained(back).eval(), model)
    loaded = transformers.AutoTokenizer.from_pretrained(back)
    assert loaded("few words")["input_ids"] == [2, 3]
    assert transformers.GenerationConfig.from_pretrained(back).max_new_tokens == 7


def test_the_example_takes_what_the_other_one_wrote(tmp_path: Path, example: Example) -> None:
    """A folder of hf_serialization.py: half precision, unlike its config, and no other files."""
    model = new(gpt2)
    prefix = tmp_path / "prefix"
    prefix.mkdir()
    (prefix / "model-config.json").write_text(json.dumps(model.config.to_dict()))
    assert "float16" not in (prefix / "model-config.json").read_text()
    serializer = tensorizer.TensorSerializer(str(prefix / "model.tensors"))
    serializer.write_module(model.half(), include_non_persistent_buffers=False)
    serializer.close()
    back = tmp_path / "back"
    example("load", str(prefix), str(back))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(back, dtype="auto").eval()
    assert loaded.dtype == torch.float16
    assert_same_model(loaded, model)


def parts_of_pipeline(pipeline: Any) -> dict[str, Any]:
    return {name: part for name, part in pipeline.components.items() if part is not None}


def stable_diffusion(tmp_path: Path) -> Any:
    diffusers = pytest.importorskip("diffusers")
    ends = {"bos_token_id": 0, "eos_token_id": 1}
    encoder = transformers.CLIPTextConfig(**SMALL, intermediate_size=37, **ends)
    (tmp_path / "vocab.json").write_text('{"<|startoftext|>": 0, "<|endoftext|>": 1, "a</w>": 2}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    blocks = {"block_out_channels": (32, 32), "layers_per_block": 1}
    return diffusers.StableDiffusionPipeline(
        vae=diffusers.AutoencoderKL(block_out_channels=(32,)),
        unet=diffusers.UNet2DConditionModel(
            **blocks,
            sample_size=8,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            cross_attention_dim=32,
        ),
        text_encoder=transformers.CLIPTextModel(encoder),
        tokenizer=transformers.CLIPTokenizer(
            str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt")
        ),
        scheduler=diffusers.PNDMScheduler(num_train_timesteps=77),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


@pytest.mark.parametrize("index", [True, False], ids=["ours", "as the other example writes it"])
def test_the_example_takes_pipelines(tmp_path: Path, example: Example, index: bool) -> None:
    import diffusers

    pipeline = stable_diffusion(tmp_path)
    source, prefix, back = (tmp_path / name for name in ("source", "prefix", "back"))
    pipeline.save_pretrained(source)
    arguments = ("save", str(source), str(prefix), "--validate")
    example(*arguments)
    if not index:
        (prefix / "model_index.json").unlink()
    example("load", str(prefix), str(back))
    again = diffusers.DiffusionPipeline.from_pretrained(back)
    assert parts_of_pipeline(again).keys() == parts_of_pipeline(pipeline).keys()
    for name in ("vae", "unet", "text_encoder"):
        for key, tensor in getattr(pipeline, name).state_dict().items():
            assert same(getattr(again, name).state_dict()[key], tensor)
    assert again.scheduler.config.num_train_timesteps == 77
    assert again.tokenizer("a")["input_ids"] == pipeline.tokenizer("a")["input_ids"]


def test_the_example_says_as_much_as_it_is_asked_to(tmp_path: Path) -> None:
    new(llama).save_pretrained(tmp_path / "source")
    command = [str(ROOT / "examples" / "hugging_face.py"), "save", "source", "prefix"]
    said = []
    for flags in (["-q", "-q"], [], ["--validate"]):
        done = warm_python().run([*command, *flags], environment(), TIMEOUT, tmp_path)
        assert done.returncode == 0, done.stderr
        said.append([line for line in done.stderr.splitlines() if line.startswith(LEVELS)])
    assert said[0] == []
    assert any("keeping the existing" in line for line in said[1])
    assert said[2][-1] == "INFO validated: the loaded tensors equal the saved ones"
