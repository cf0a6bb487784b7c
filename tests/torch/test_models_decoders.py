"""Decoders against `transformers`: the same random weights, the same logits and the same text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fulgurite as fg
from fulgurite.models import Batch, Generator, Model, SamplingOptions, load

transformers = pytest.importorskip("transformers")

SMALL: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_EXPERTS = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
_LATENT: dict[str, Any] = {
    **_EXPERTS, "n_routed_experts": 8, "n_shared_experts": 2, "first_k_dense_replace": 1,
    "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
    "num_key_value_heads": 4, "head_dim": 8,
}  # fmt: skip
_YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.7,
    "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1,
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama3": ("Llama", {"rope_parameters": {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64}}),
    "llama linear": ("Llama", {"rope_parameters": {
        "rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}}),
    "llama yarn": ("Llama", {"rope_parameters": _YARN}),
    "llama yarn, no whole pairs": ("Llama", {"rope_parameters": _YARN | {
        "truncate": False, "beta_fast": 4.0, "beta_slow": 0.3}}),
    "llama dynamic": ("Llama", {
        "num_attention_heads": 5, "num_key_value_heads": 1, "hidden_size": 70, "rope_parameters": {
            "rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}}),
    "llama partial": ("Llama", {"rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}),
    "llama tied, biases": ("Llama", {
        "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 5, "no_rope_layers": None}),
    "smollm3, some": ("SmolLM3", {"no_rope_layers": [0, 1], "tie_word_embeddings": False}),
    "mistral": ("Mistral", {"sliding_window": 7, "head_dim": 24}),
    "qwen2": ("Qwen2", {}),
    "qwen2 window": ("Qwen2", {
        "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen2 moe": ("Qwen2Moe", {
        **_EXPERTS, "num_experts": 8, "shared_expert_intermediate_size": 48}),
    "qwen3 moe": ("Qwen3Moe", {**_EXPERTS, "num_experts": 8, "norm_topk_prob": True}),
    "gemma": ("Gemma", {"head_dim": 16}),
    "gemma2": ("Gemma2", {"head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 24}),
    "gemma3": ("Gemma3", {
        "head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 24, "num_hidden_layers": 7}),
    "phi3": ("Phi3", {}),
    "phi3 longrope": ("Phi3", {
        "original_max_position_embeddings": 32, "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 10000.0,
            "short_factor": [1.0 + i / 8 for i in range(8)],
            "long_factor": [2.0 + i for i in range(8)]}}),
    "gpt2": ("GPT2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}),
    "gpt2 scores": ("GPT2", {
        "n_embd": 60, "n_layer": 3, "n_head": 5, "n_positions": 256, "n_inner": 50,
        "scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False}),
    "olmo2": ("Olmo2", {}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "deepseek v2": ("DeepseekV2", {**_LATENT, "q_lora_rank": None, "topk_method": "greedy"}),
    "deepseek v3": ("DeepseekV3", {
        **_LATENT, "q_lora_rank": 24, "n_group": 4, "topk_group": 2, "rope_parameters": _YARN}),
}  # fmt: skip


def made(name: str, folder: Path) -> tuple[Any, Model]:
    """transformers' model with random weights, and ours of the folder that it saves."""
    kind, settings = CASES[name]
    config_kind = "Gemma3TextConfig" if kind == "Gemma3" else f"{kind}Config"
    head = {"GPT2": "GPT2LMHeadModel"}.get(kind, f"{kind}ForCausalLM")
    base = {k: v for k, v in SMALL.items() if kind != "GPT2" or k.endswith(("vocab_size", "id"))}
    config = getattr(transformers, config_kind)(**(base | settings))
    config._attn_implementation = "eager"
    torch.manual_seed(len(name))
    theirs = getattr(transformers, head)(config).eval().float()
    with torch.no_grad():
        for part, weight in theirs.named_parameters():  # norms and biases too, and no tiny numbers
            spread = 0.3 if weight.ndim == 1 else 1.5 / weight.shape[-1] ** 0.5
            start = 1.0 if "norm" in part and weight.ndim == 1 and "emma" not in kind else 0.0
            weight.copy_(torch.randn_like(weight) * spread + start)
        for part, kept in theirs.named_buffers():
            if "bias" in part and kept.ndim == 1:
                kept.copy_(torch.randn_like(kept) * 0.1)
    theirs.save_pretrained(folder)
    return theirs, load(folder)


def close(ours: Any, theirs: Any) -> None:
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    bound = 1e-4 * np.abs(theirs).max()
    assert np.abs(ours - theirs).max() <= bound, f"{np.abs(ours - theirs).max()} > {bound}"


@pytest.mark.parametrize("name", CASES)
def test_logits_and_text_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    theirs, model = made(name, tmp_path)
    ids = torch.randint(3, 97, (2, 40))
    with torch.no_grad():
        wanted = theirs(ids).logits.numpy()
        text = theirs.generate(
            ids[:1, :20], max_new_tokens=64, do_sample=False, eos_token_id=None, pad_token_id=0
        )[0, 20:].tolist()
        first = theirs(ids[:1, :23]).logits.numpy()[0, -1]
    with fg.no_grad():
        close(model.decoder(fg.Tensor(ids.numpy().astype(np.int32))).numpy(), wanted)
    batch = Batch(model, slots=3)
    for row, slot in ((0, 2), (1, 0)):
        got = batch.prefill(slot, ids[row, :23].tolist())
        if row == 0:
            close(got, first)
    for place in range(23, 40):
        found = batch.step({2: int(ids[0, place]), 0: int(ids[1, place])})
        if "longrope" in name:  # all of a text turns as its length decides
            with torch.no_grad():
                wanted[:, place] = theirs(ids[:, : place + 1]).logits.numpy()[:, -1]
        close(np.stack([found[2], found[0]]), wanted[:, place])
    options = SamplingOptions(max_tokens=64, temperature=0, ignore_eos=True)
    got_text = [t.id for t in Generator(model).generate(ids[0, :20].tolist(), options)]
    assert got_text == text


def test_long_prompts_of_longrope_are_read_as_one(tmp_path: Path) -> None:
    """In chunks, of which the first are within the original context, and after a shorter one."""
    theirs, model = made("phi3 longrope", tmp_path)
    ids = torch.randint(3, 97, (1, 200))
    options = SamplingOptions(max_tokens=20, temperature=0, ignore_eos=True)
    plain, guessing = Generator(model), Generator(model, draft=model)
    for count in (150, 20, 31, 32, 33, 25, 150, 14, 15, 16, 180, 28):
        text = theirs.generate(
            ids[:, :count], max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0
        )[0, count:].tolist()
        for generator in (plain, guessing):
            assert [t.id for t in generator.generate(ids[0, :count].tolist(), options)] == text
