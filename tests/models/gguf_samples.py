"""A Hugging Face folder's model as a GGUF file, named and laid out as its converters do it.

It is written from the configuration and the names that `transformers` has, not by our own reader's
tables, so that both are compared.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fulgurite.core.op import Array
from fulgurite.io.safetensors import SafetensorsFile
from fulgurite.models.gguf import save_gguf

from .samples import turned

ARCHITECTURES = {
    "mistral": "llama", "mixtral": "llama", "gemma3_text": "gemma3", "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe",
}  # fmt: skip
PARTS = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "model.layers": "blk", "transformer.wte": "token_embd", "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm", "transformer.h": "blk", "ln_1": "attn_norm",
    "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down", "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_kv_b",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "block_sparse_moe.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.gate_up_proj": "ffn_up", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    **{f"mlp.shared_expert{s}.{p}_proj": f"ffn_{p}_shexp" for s in ("", "s")
       for p in ("gate", "up", "down")},
}  # fmt: skip


def metadata_of(c: dict[str, Any], **other: Any) -> dict[str, Any]:
    """The metadata of a configuration."""
    kind = ARCHITECTURES.get(c["model_type"], c["model_type"])
    heads = c.get("num_attention_heads") or c["n_head"]
    width = c.get("hidden_size") or c["n_embd"]
    size = c.get("head_dim") or width // heads
    rope = c.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    found: dict[str, Any] = {
        "block_count": c.get("num_hidden_layers", c.get("n_layer")), "embedding_length": width,
        "context_length": c.get("max_position_embeddings", c.get("n_positions")),
        "attention.head_count": heads,
        "attention.head_count_kv": c.get("num_key_value_heads", heads),
        "attention.key_length": size, "attention.value_length": size,
        "rope.dimension_count": int(size * rope.get("partial_rotary_factor", 1)),
        "rope.freq_base": rope.get("rope_theta", 10000.0),
    }  # fmt: skip
    eps = c.get("rms_norm_eps", c.get("layer_norm_epsilon"))
    name = "epsilon" if kind == "gpt2" else "rms_epsilon"
    found[f"attention.layer_norm_{name}"] = eps
    for ours, theirs in {
        "sliding_window": "attention.sliding_window", "num_experts_per_tok": "expert_used_count",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
        "first_k_dense_replace": "leading_dense_block_count",
        "intermediate_size": "feed_forward_length",
        "moe_intermediate_size": "expert_feed_forward_length",
        "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    }.items():  # fmt: skip
        if c.get(ours):
            found[theirs] = c[ours]
    experts = c.get("num_local_experts", c.get("n_routed_experts", c.get("num_experts")))
    if experts:
        found["expert_count"] = experts
    if rope.get("rope_type") in ("linear", "yarn"):
        found |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": rope["factor"]}
        if "original_max_position_embeddings" in rope:
            name = "rope.scaling.original_context_length"
            found[name] = rope["original_max_position_embeddings"]
    if rope.get("rope_type") == "longrope":
        original = rope["original_max_position_embeddings"]
        grown = np.log(found["context_length"] / original) / np.log(original)
        found |= {"rope.scaling.original_context_length": original,
                  "rope.scaling.attn_factor": float((1 + grown) ** 0.5)}  # fmt: skip
    if kind == "deepseek2":
        found |= _latent(c, rope)
    return {"general.architecture": kind, **{f"{kind}.{k}": v for k, v in found.items()}, **other}


def _latent(c: dict[str, Any], rope: dict[str, Any]) -> dict[str, Any]:
    size = c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    found = {
        "attention.kv_lora_rank": c["kv_lora_rank"], "rope.dimension_count": c["qk_rope_head_dim"],
        "attention.key_length": size, "attention.value_length": c["v_head_dim"],
        "expert_weights_scale": float(c["routed_scaling_factor"]),
        "expert_weights_norm": bool(c["norm_topk_prob"]),
    }  # fmt: skip
    if c["model_type"] == "deepseek_v3":
        found |= {"expert_gating_func": 2, "expert_group_count": c["n_group"],
                  "expert_group_used_count": c["topk_group"]}  # fmt: skip
    if rope.get("rope_type") == "yarn":
        found["rope.scaling.yarn_log_multiplier"] = 0.1 * rope["mscale_all_dim"]
    return found


def _named(name: str, is_sandwich: bool) -> str:
    for theirs, ours in PARTS.items():
        name = name.replace(theirs, ours)
    after = "post_attention_norm" if is_sandwich else "ffn_norm"
    return name.replace("post_attention_layernorm", after)


def gguf_from(folder: Path, path: Path, apart: bool = False, **other: Any) -> Path:
    """A folder's model as a GGUF file; `apart`: DeepSeek's keys and values are two tensors."""
    c = json.loads((folder / "config.json").read_text())
    kind = c["model_type"]
    found: dict[str, Array] = {}
    file = SafetensorsFile(folder / "model.safetensors")
    for name in file:
        values = file[name].numpy()
        if kind.startswith("gemma") and name.endswith("norm.weight"):
            values = values + 1
        if kind == "gpt2" and "c_" in name and values.ndim == 2:
            values = values.T
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
        for part, count in heads.items():
            if part in name and kind in ("llama", "mistral", "mixtral", "smollm3"):
                wide = values if values.ndim == 2 else values[:, None]
                values = turned(wide, c[count]).reshape(values.shape)
        _put(found, name, values, c, apart)
    found |= _factors(c)
    tensors = {name: (0, v.shape, np.ascontiguousarray(v, np.float32)) for name, v in found.items()}
    save_gguf(path, metadata_of(c, **other), tensors)
    return path


def _factors(c: dict[str, Any]) -> dict[str, Array]:
    """The factors of a rotation that files have as tensors."""
    rope = c.get("rope_parameters") or {}
    if rope.get("rope_type") == "longrope":
        return {
            f"rope_factors_{n}.weight": np.array(rope[f"{n}_factor"]) for n in ("short", "long")
        }
    if rope.get("rope_type") != "llama3":
        return {}
    size = c["head_dim"]
    waves = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, size, 2) / size)
    low, high = (rope["original_max_position_embeddings"] / rope[f"{n}_freq_factor"]
                 for n in ("low", "high"))  # fmt: skip
    smooth = (rope["original_max_position_embeddings"] / waves - rope["low_freq_factor"]) / (
        rope["high_freq_factor"] - rope["low_freq_factor"]
    )
    between = 1 / ((1 - smooth) / rope["factor"] + smooth)
    return {"rope_freqs.weight": np.where(waves < high, 1.0, np.where(
        waves > low, rope["factor"], between))}  # fmt: skip


def _put(found: dict[str, Array], name: str, values: Array, c: dict[str, Any], apart: bool) -> None:
    """A tensor under its name, or as those that it becomes."""
    sandwich = c["model_type"].startswith(("gemma2", "gemma3")) or c["model_type"] == "olmo2"
    if name.endswith("experts.gate_up_proj"):
        at = name.split(".mlp.")[0].replace("model.layers", "blk")
        found[f"{at}.ffn_gate_exps.weight"], found[f"{at}.ffn_up_exps.weight"] = np.split(
            values, 2, axis=1
        )
    elif name.endswith("experts.down_proj"):
        at = name.split(".mlp.")[0].replace("model.layers", "blk")
        found[f"{at}.ffn_down_exps.weight"] = values
    elif ".experts." in name:
        at, _, rest = name.partition(".experts.")
        at = at.rpartition(".")[0].replace("model.layers", "blk")
        number, _, part = rest.partition(".")
        part = {"w1": "gate", "w3": "up", "w2": "down"}.get(part[:2], part.partition("_")[0])
        wanted = f"{at}.ffn_{part}_exps.weight"
        count = c.get("num_local_experts", c.get("n_routed_experts", c.get("num_experts")))
        found.setdefault(wanted, np.empty((count, *values.shape), np.float32))[int(number)] = values
    elif apart and "kv_b_proj" in name:
        at = name.split(".self_attn.")[0].replace("model.layers", "blk")
        both = values.reshape(c["num_attention_heads"], -1, values.shape[1])
        keys, rest_ = both[:, : c["qk_nope_head_dim"]], both[:, c["qk_nope_head_dim"] :]
        found[f"{at}.attn_k_b.weight"] = keys.swapaxes(1, 2)
        found[f"{at}.attn_v_b.weight"] = rest_
    else:
        found[_named(name, sandwich)] = values
