"""Small models of random weights in the formats of files, made without any other library.

Weights follow from their names, so a list of names and shapes is a whole model: `golden.json` has
such lists with the configurations that `transformers` wrote, and `golden.npz` its logits
(`python -m tests.models.make_golden` makes both anew, where transformers is installed).
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from fulgurite.core.op import Array
from fulgurite.io.safetensors import save_safetensors
from fulgurite.models.gguf import save_gguf
from fulgurite.models.quantize import NUMBERS, packed

HERE = Path(__file__).parent
VOCABULARY = 300
SMALL: dict[str, Any] = {
    "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip


def weight(name: str, shape: tuple[int, ...]) -> Array:
    """The random weight of a name."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    spread = 0.2 if len(shape) <= 1 else 1.5 / shape[-1] ** 0.5
    start = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
    return (random.standard_normal(shape) * spread + start).astype(np.float32)


def golden() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "golden.json").read_text())
    return found


def golden_folder(case: dict[str, Any], folder: Path) -> Path:
    """A folder with the model of a case."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(case["config"]))
    shapes = case["shapes"].items()
    tensors = {name: weight(name, tuple(shape)) for name, shape in shapes}
    save_safetensors(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def shapes(config: dict[str, Any] = SMALL) -> dict[str, tuple[int, ...]]:
    """The tensors of a Llama."""
    width, hidden, words = (config[k] for k in ("hidden_size", "intermediate_size", "vocab_size"))
    shared = width * config["num_key_value_heads"] // config["num_attention_heads"]
    found: dict[str, tuple[int, ...]]
    found = {"model.embed_tokens.weight": (words, width), "model.norm.weight": (width,),
             "lm_head.weight": (words, width)}  # fmt: skip
    for n in range(config["num_hidden_layers"]):
        at = f"model.layers.{n}."
        for name, shape in {
            "self_attn.q_proj": (width, width), "self_attn.o_proj": (width, width),
            "self_attn.k_proj": (shared, width), "self_attn.v_proj": (shared, width),
            "mlp.gate_proj": (hidden, width), "mlp.up_proj": (hidden, width),
            "mlp.down_proj": (width, hidden), "input_layernorm": (width,),
            "post_attention_layernorm": (width,),
        }.items():  # fmt: skip
            found[f"{at}{name}.weight"] = shape
    return found


def folder_of(folder: Path, shards: int = 1, **other: Any) -> Path:
    """A Hugging Face folder with a small Llama."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(SMALL | other))
    tensors = {name: weight(name, shape) for name, shape in shapes(SMALL | other).items()}
    if shards == 1:
        save_safetensors(tensors, folder / "model.safetensors", {"format": "pt"})
        return folder
    places: dict[str, str] = {}
    for part in range(shards):
        file = f"model-{part + 1:05}-of-{shards:05}.safetensors"
        some = {name: tensors[name] for name in list(tensors)[part::shards]}
        save_safetensors(some, folder / file)
        places |= dict.fromkeys(some, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def turned(w: Array, heads: int) -> Array:
    """Rows of queries and keys as GGUF files of Llama have them: pairs beside each other."""
    rows, width = w.shape
    halves = w.reshape(heads, 2, rows // heads // 2, width)
    return halves.swapaxes(1, 2).reshape(rows, width)


GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "model.layers": "blk",
}  # fmt: skip


def words() -> list[str]:
    """Tokens of a SentencePiece tokeniser: bytes, letters and a few joined ones."""
    found = ["<unk>", "<s>", "</s>", *[f"<0x{n:02X}>" for n in range(256)]]
    found += ["▁", *"etaoinshrdlu", "th", "he", "in", "er", "▁t", "▁th", "▁the", "an", "re", "on"]
    found += [f"<|extra{n}|>" for n in range(VOCABULARY - len(found))]
    return found


def gguf_of(path: Path, kind: str = "F32", **other: Any) -> Path:
    """The same Llama as a GGUF file, with a tokeniser."""
    tensors: dict[str, Any] = {}
    for name, shape in shapes().items():
        values = weight(name, shape)
        if "q_proj" in name or "k_proj" in name:
            values = turned(values, 4 if "q_proj" in name else 2)
        own = name
        for ours, theirs in GGUF_NAMES.items():
            own = own.replace(ours, theirs)
        if kind == "F32" or len(shape) < 2:
            tensors[own] = (0, shape, values)
        else:
            tensors[own] = (NUMBERS[kind], shape, packed(values, kind))
    kinds = [2, 3, 3, *[6] * 256, *[1] * (VOCABULARY - 259)]
    metadata: dict[str, Any] = {
        "general.architecture": "llama", "llama.block_count": 2, "llama.context_length": 2048,
        "llama.embedding_length": 64, "llama.feed_forward_length": 128,
        "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.dimension_count": 16,
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": words(),
        "tokenizer.ggml.scores": [-float(n) for n in range(VOCABULARY)],
        "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0,
    }  # fmt: skip
    save_gguf(path, metadata | other, tensors)
    return path
