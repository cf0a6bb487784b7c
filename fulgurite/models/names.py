"""What tensors are called in files: one table for each kind of file, one entry where one differs.

In: the name of an architecture. Out: our names of a layer's weights with those of the file. `{e}`
is the number of an expert. A name that the file has not is a part that the model does not have.
"""

from __future__ import annotations

NORMS = frozenset(
    (
        "norm",
        "norm1",
        "norm1_post",
        "norm2",
        "norm2_post",
        "q_norm",
        "k_norm",
        "q_a_norm",
        "kv_a_norm",
    )
)
VECTORS = frozenset(("router_bias",))

Names = dict[str, str]
_HF: Names = {
    "norm1": "input_layernorm", "norm2": "post_attention_layernorm",
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj",
    "o": "self_attn.o_proj", "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
}  # fmt: skip
_SANDWICH: Names = {
    "norm1_post": "post_attention_layernorm", "norm2": "pre_feedforward_layernorm",
    "norm2_post": "post_feedforward_layernorm",
}  # fmt: skip
_EXPERTS: Names = {
    "router": "mlp.gate", "experts.gate_up": "mlp.experts.gate_up_proj",
    "experts.down": "mlp.experts.down_proj", "experts.gate": "mlp.experts.{e}.gate_proj",
    "experts.up": "mlp.experts.{e}.up_proj", "experts.down ": "mlp.experts.{e}.down_proj",
}  # fmt: skip
_DEEPSEEK: Names = {
    **_EXPERTS, "router_bias": "mlp.gate.e_score_correction_bias",
    **{f"shared.{part}": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")},
    "q_a": "self_attn.q_a_proj", "q_a_norm": "self_attn.q_a_layernorm",
    "q_b": "self_attn.q_b_proj", "kv_a": "self_attn.kv_a_proj_with_mqa",
    "kv_a_norm": "self_attn.kv_a_layernorm", "kv_b": "self_attn.kv_b_proj",
}  # fmt: skip
_QWEN_EXPERTS: Names = {
    **_EXPERTS, "shared_gate": "mlp.shared_expert_gate",
    **{f"shared.{part}": f"mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")},
}  # fmt: skip
HF: dict[str, Names] = {
    "gemma2": _HF | _SANDWICH,
    "gemma3": _HF | _SANDWICH,
    "olmo2": {name: hf for name, hf in _HF.items() if name not in ("norm1", "norm2")}
    | {"norm1_post": "post_attention_layernorm", "norm2_post": "post_feedforward_layernorm"},
    "phi3": _HF | {"qkv": "self_attn.qkv_proj", "gate_up": "mlp.gate_up_proj"},
    "mixtral": _HF
    | _EXPERTS
    | {
        "router": "block_sparse_moe.gate", "experts.gate": "block_sparse_moe.experts.{e}.w1",
        "experts.up": "block_sparse_moe.experts.{e}.w3",
        "experts.down ": "block_sparse_moe.experts.{e}.w2",
    },
    "qwen2_moe": _HF | _QWEN_EXPERTS,
    "qwen3_moe": _HF | _QWEN_EXPERTS,
    "deepseek_v2": _HF | _DEEPSEEK,
    "deepseek_v3": _HF | _DEEPSEEK,
    "gpt2": {
        "norm1": "ln_1", "norm2": "ln_2", "qkv": "attn.c_attn", "o": "attn.c_proj",
        "up": "mlp.c_fc", "down": "mlp.c_proj",
    },
}  # fmt: skip
HF_TOP: Names = {"embed": "embed_tokens", "norm": "norm", "head": "lm_head"}
HF_GPT2_TOP: Names = {"embed": "wte", "places": "wpe", "norm": "ln_f", "head": "lm_head"}
HF_LAYER, HF_GPT2_LAYER = "layers.{}.", "h.{}."

GGUF_TOP: Names = {
    "embed": "token_embd", "places": "position_embd", "norm": "output_norm", "head": "output",
}  # fmt: skip
GGUF_LAYER = "blk.{}."
GGUF: Names = {
    "norm1": "attn_norm", "norm2": "ffn_norm", "norm1_post": "post_attention_norm",
    "norm2_post": "post_ffw_norm", "q": "attn_q", "k": "attn_k", "v": "attn_v", "qkv": "attn_qkv",
    "o": "attn_output", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm",
    "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
    "router": "ffn_gate_inp", "router_bias": "exp_probs_b.bias",
    "shared_gate": "ffn_gate_inp_shexp",
    **{f"experts.{part}": f"ffn_{part}_exps" for part in ("gate", "up", "down")},
    **{f"shared.{part}": f"ffn_{part}_shexp" for part in ("gate", "up", "down")},
    "q_a": "attn_q_a", "q_a_norm": "attn_q_a_norm", "q_b": "attn_q_b", "kv_a": "attn_kv_a_mqa",
    "kv_a_norm": "attn_kv_a_norm", "kv_b": "attn_kv_b", "k_b": "attn_k_b", "v_b": "attn_v_b",
}  # fmt: skip
GGUF_OTHER: dict[str, Names] = {"phi3": {"gate_up": "ffn_up", "up": "-"}}


def hf_names(architecture: str) -> Names:
    """Our names of a layer's weights with those of Hugging Face's files."""
    return HF.get(architecture, _HF)


def gguf_names(architecture: str) -> Names:
    """Our names of a layer's weights with those of GGUF files."""
    return GGUF | GGUF_OTHER.get(architecture, {})
