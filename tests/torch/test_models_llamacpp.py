"""GGUF files of each architecture, read by us and by llama.cpp: the same logits.

It needs the package `llama_cpp`, which is compiled where it is installed, so it is in no
requirements; the files are written by us, from random weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.models import load
from fulgurite.models.gguf import save_gguf
from tests.models.samples import VOCABULARY, words

llama_cpp = pytest.importorskip("llama_cpp")

WIDTH, HEADS, SHARED, SIZE, HIDDEN, LAYERS, EXPERTS = 64, 4, 2, 16, 96, 2, 4
IDS = [1, 5, 17, 60, 88, 41, 9, 200, 12, 77, 30, 2, 55]
GEMMAS = ("gemma", "gemma2", "gemma3")
SIZED: dict[str, Any] = {"attention.key_length": SIZE, "attention.value_length": SIZE}
EXPERT: dict[str, Any] = {"expert_count": EXPERTS, "expert_used_count": 2}
SMALL: dict[str, Any] = {"expert_feed_forward_length": 32}
OTHER: dict[str, dict[str, Any]] = {
    "llama": {}, "qwen2": {}, "qwen3": SIZED, "gemma": SIZED, "olmo2": {},
    "gemma2": SIZED | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
                       "attention.sliding_window": 8},
    "gemma3": SIZED | {"attention.sliding_window": 8, "rope.freq_base": 100000.0},
    "phi3": {"rope.scaling.original_context_length": 512, "attention.sliding_window": 512},
    "gpt2": {"attention.layer_norm_epsilon": 1e-5, "attention.head_count_kv": HEADS},
    "mixtral": EXPERT | {"feed_forward_length": 32},
    "qwen2moe": EXPERT | SMALL | {"expert_shared_feed_forward_length": 48},
    "qwen3moe": EXPERT | SMALL | SIZED,
}  # fmt: skip


def metadata(kind: str) -> dict[str, Any]:
    name = "llama" if kind == "mixtral" else kind
    own = {
        "block_count": LAYERS, "context_length": 512, "embedding_length": WIDTH,
        "feed_forward_length": HIDDEN, "attention.head_count": HEADS,
        "attention.head_count_kv": SHARED, "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0, "rope.dimension_count": SIZE,
    }  # fmt: skip
    tokens = {
        "model": "llama", "tokens": words(), "bos_token_id": 1, "eos_token_id": 2,
        "scores": [-float(n) for n in range(VOCABULARY)], "unknown_token_id": 0,
        "token_type": [2, 3, 3, *[6] * 256, *[1] * (VOCABULARY - 259)],
    }  # fmt: skip
    found = {"general.architecture": name}
    found |= {f"{name}.{key}": value for key, value in (own | OTHER[kind]).items()}
    return found | {f"tokenizer.ggml.{key}": value for key, value in tokens.items()}


def layer(kind: str) -> dict[str, tuple[int, ...]]:
    """The shapes of a layer's tensors; norms and biases have one dimension."""
    rows, shared = HEADS * SIZE, SHARED * SIZE
    found: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (WIDTH,), "ffn_norm.weight": (WIDTH,),
        "attn_output.weight": (WIDTH, rows), "ffn_down.weight": (WIDTH, HIDDEN),
    }  # fmt: skip
    if kind == "gpt2":
        whole = {"attn_qkv": (3 * WIDTH, WIDTH), "ffn_up": (HIDDEN, WIDTH)}
        found |= {f"{name}.weight": shape for name, shape in whole.items()}
        biases = {"attn_qkv": 3 * WIDTH, "ffn_up": HIDDEN, "attn_output": WIDTH, "ffn_down": WIDTH}
        return found | {
            f"{name}.bias": (n,)
            for name, n in (biases | {"attn_norm": WIDTH, "ffn_norm": WIDTH}).items()
        }
    if kind == "phi3":
        return found | {"attn_qkv.weight": (rows + 2 * shared, WIDTH),
                        "ffn_up.weight": (2 * HIDDEN, WIDTH)}  # fmt: skip
    for name, count in (("attn_q", rows), ("attn_k", shared), ("attn_v", shared)):
        found[f"{name}.weight"] = (count, WIDTH)
        if kind in ("qwen2", "qwen2moe"):
            found[f"{name}.bias"] = (count,)
    if kind in ("qwen3", "gemma3", "qwen3moe", "olmo2"):
        whole_norms = (rows, shared) if kind == "olmo2" else (SIZE, SIZE)
        found["attn_q_norm.weight"], found["attn_k_norm.weight"] = ((n,) for n in whole_norms)
    if kind in ("gemma2", "gemma3", "olmo2"):
        found |= {"post_attention_norm.weight": (WIDTH,), "post_ffw_norm.weight": (WIDTH,)}
    if kind == "olmo2":
        del found["attn_norm.weight"], found["ffn_norm.weight"]
    if "expert_count" not in OTHER[kind]:
        gates = ("ffn_gate.weight", "ffn_up.weight")
        return found | dict.fromkeys(gates, (HIDDEN, WIDTH))
    del found["ffn_down.weight"]
    found["ffn_gate_inp.weight"] = (EXPERTS, WIDTH)
    for part in ("gate", "up", "down"):
        turned = part == "down"
        found[f"ffn_{part}_exps.weight"] = (EXPERTS, *((WIDTH, 32) if turned else (32, WIDTH)))
        if kind == "qwen2moe":
            found[f"ffn_{part}_shexp.weight"] = (WIDTH, 48) if turned else (48, WIDTH)
            found["ffn_gate_inp_shexp.weight"] = (WIDTH,)
    return found


def tensors(kind: str) -> dict[str, Any]:
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCABULARY, WIDTH)}
    shapes["output_norm.weight"] = (WIDTH,)
    if kind not in GEMMAS:
        shapes["output.weight"] = (VOCABULARY, WIDTH)
    if kind == "gpt2":
        shapes |= {"position_embd.weight": (512, WIDTH), "output_norm.bias": (WIDTH,)}
    for number in range(LAYERS):
        shapes |= {f"blk.{number}.{name}": shape for name, shape in layer(kind).items()}
    random, found = np.random.default_rng(0), {}
    for name, shape in shapes.items():
        values = random.standard_normal(shape)
        if len(shape) == 1:
            values = values * 0.1 + ("norm" in name and name.endswith("weight"))
        else:
            values = values / shape[-1] ** 0.5
        found[name] = (0, shape, values.astype(np.float32))
    return found


@pytest.mark.parametrize("kind", list(OTHER))
def test_logits_of_a_file_are_those_of_llama_cpp(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"{kind}.gguf"
    save_gguf(path, metadata(kind), tensors(kind))
    ours = load(path).decoder(fg.Tensor(np.array([IDS], np.int32)))[0].numpy()
    other = llama_cpp.Llama(
        str(path), n_ctx=64, n_threads=1, logits_all=True, verbose=False, type_k=0, type_v=0
    )
    other.eval(IDS)
    theirs = np.array(other.scores[: len(IDS)])
    bound = 1e-3 if kind in (*GEMMAS, "gpt2") else 1e-5  # its gelu is a table of float16
    assert np.abs(ours - theirs).max() <= bound * np.abs(theirs).max()
