"""Folders that try to run code, to reach the network, or to read files elsewhere."""

from __future__ import annotations

from typing import Any

# Code that a folder contains. The recorder notices when it runs.
RAN = "evil.ran"
EVIL = f"import sys\nsys.audit({RAN!r})\nfrom transformers import LlamaConfig\n"
EVIL += "class C(LlamaConfig):\n    pass\n"
MAP = {f"Auto{kind}": "evil.C" for kind in ("Config", "Model", "ModelForCausalLM", "Tokenizer")}
SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 64}
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SMALL}
LLAMA |= {"num_key_value_heads": 2, "intermediate_size": 64}
VISION = {"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 32}
VISION |= {"num_hidden_layers": 1, "num_attention_heads": 2}
BERT = {"model_type": "bert", **SMALL}
WORDS = "[UNK]\n[PAD]\n[CLS]\n[SEP]\n[MASK]\n"
# Replaced by the folder, by its parent, and by the address of the server.
FOLDER, PARENT, SERVER = "{folder}", "{parent}", "{server}"


def light_glue(where: str) -> dict[str, Any]:
    """Return a config that lets the class of another config be loaded with its code."""
    detector = {"model_type": "evil", "_name_or_path": where, "auto_map": MAP}
    config = {"model_type": "lightglue", "architectures": ["LightGlueForKeypointMatching"]}
    return {**config, "trust_remote_code": True, "keypoint_detector_config": detector}


def llava(**text: Any) -> dict[str, Any]:
    config = {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"]}
    return {**config, "text_config": {**LLAMA, **text}, "vision_config": VISION}


def timm(name: str, **more: Any) -> dict[str, Any]:
    config = {"model_type": "timm_wrapper", "architectures": ["TimmWrapperModel"]}
    return {**config, "architecture": name, "num_classes": 2, **more}


def quantized(method: str) -> dict[str, Any]:
    asked = {"quant_method": method, "bits": 4, "tokenizer": "evil/repo", "dataset": "evil/repo"}
    return {**LLAMA, "quantization_config": asked}


# As a model, it would be large.
_XCODEC = {"model_type": "xcodec", "architectures": ["LlamaForCausalLM"]}
_XCODEC |= {"semantic_model_config": {"_name_or_path": "evil/repo", "model_type": "hubert"}}
# The config of a model, and other files.
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "healthy": (LLAMA, {}),
    "code of the folder": ({**light_glue(FOLDER), "auto_map": MAP}, {}),
    "code of the folder, deeper": (
        {
            "model_type": "vision-encoder-decoder",
            "encoder": {**light_glue(FOLDER), "auto_map": MAP},
            "decoder": LLAMA,
            "auto_map": MAP,
        },
        {},
    ),
    "code of another folder": (light_glue(PARENT + "/elsewhere"), {}),
    "code of the Hub": (light_glue("evil/repo"), {}),
    "another config": (_XCODEC, {}),
    "auto_map": ({**LLAMA, "auto_map": MAP}, {}),
    "auto_map of an unknown model": (
        {**LLAMA, "model_type": "evil", "auto_map": MAP, "trust_remote_code": True},
        {},
    ),
    "auto_map, deeper": (llava(model_type="evil", auto_map=MAP, trust_remote_code=True), {}),
    "a kernel": ({**LLAMA, "_attn_implementation_internal": "evil/kernel"}, {}),
    "a kernel, deeper": (llava(_attn_implementation_internal="evil/kernel"), {}),
    "a kernel of experts": ({**LLAMA, "_experts_implementation_internal": "evil/kernel"}, {}),
    "kernels": ({**LLAMA, "use_kernels": True, "allow_all_kernels": True}, {}),
    "timm, from the Hub": (timm("hf-hub:evil/x"), {}),
    "timm, a checkpoint": (timm("resnet18", model_args={"checkpoint_path": FOLDER + "/x.pth"}), {}),
    "timm as a backbone": ({"model_type": "detr", "backbone_config": timm("hf-hub:evil/x")}, {}),
    "adapters": (
        {**LLAMA, "base_model_name_or_path": "evil/repo", "_adapter_model_path": FOLDER},
        {"adapter_config.json": {"base_model_name_or_path": "evil/repo", "peft_type": "LORA"}},
    ),
    "names": ({**LLAMA, "_name_or_path": "evil/repo", "_commit_hash": "0", "revision": "x"}, {}),
    "code that generates": (
        {**LLAMA, "custom_generate": FOLDER},
        {
            "generation_config.json": {"custom_generate": "evil/repo", "trust_remote_code": True},
            "custom_generate/generate.py": EVIL,
        },
    ),
    **{
        f"quantized with {method}": (quantized(method), {})
        for method in ("evil", "gptq", "awq", "mxfp4", "torchao", "fp8", "hqq", "quark", "eetq")
    },
}
_UNNAMED = {"tokenizer_config.json": {}}
_BERT = {"config.json": BERT, "tokenizer.json": None, "vocab.txt": WORDS}
_STOLEN = PARENT + "/elsewhere/vocab.txt"
TOKENIZERS: dict[str, dict[str, Any]] = {
    "a healthy tokenizer": {},
    "a healthy tokenizer with older paths": {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "special_tokens_map_file": _STOLEN,
            "vocab_file": "/no/such/file",
        }
    },
    "a config": {"config.json": {**light_glue(FOLDER), "auto_map": MAP}, **_UNNAMED},
    "a config of the Hub": {"config.json": light_glue("evil/repo"), **_UNNAMED},
    "auto_map of a tokenizer": {
        "tokenizer_config.json": {"auto_map": {"AutoTokenizer": ["evil.C", "evil.C"]}}
    },
    "auto_map to the Hub": {
        "tokenizer_config.json": {
            "auto_map": {"AutoTokenizer": ["evil/repo--evil.C", None]},
            "tokenizer_class": "EvilTokenizer",
        }
    },
    "a class": {"tokenizer_config.json": {"tokenizer_class": "evil.C"}},
    "names of a tokenizer": {
        "tokenizer_config.json": {"name_or_path": "evil/repo", "_commit_hash": "0"}
    },
    "a vocabulary on a server": {
        "config.json": LLAMA,
        "tokenizer.json": None,
        "tokenizer.model": "YQ== 0\n",
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "vocab_file": SERVER + "/evil.tiktoken",
        },
    },
    "a vocabulary elsewhere": {
        **_BERT,
        "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "vocab_file": _STOLEN},
    },
    "a vocabulary elsewhere, among the tokens": {
        **_BERT,
        "tokenizer_config.json": {"tokenizer_class": "BertTokenizer"},
        "special_tokens_map.json": {"vocab_file": _STOLEN},
    },
    "a tokenizer file elsewhere": {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "fast_tokenizer_files": ["../elsewhere/tokenizer.0.0.1.json"],
        }
    },
    "a library": {
        "config.json": BERT,
        "tokenizer_config.json": {
            "tokenizer_class": "BertJapaneseTokenizer",
            "word_tokenizer_type": "sudachi",
            "sudachi_kwargs": {"sudachi_config_path": FOLDER + "/sudachi.json"},
        },
    },
    "a device": {
        **_BERT,
        "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "vocab_file": "/dev/null"},
    },
}
