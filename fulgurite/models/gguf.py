"""GGUF as models use it: the configuration in its metadata, and a writer.

In: a `GgufFile`, whose reader is `io.gguf`. Out: a `ModelConfig`. The writer takes metadata and
tensors, plain or packed, and is what `fulgurite quantize` and tests make files with.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import IO, Any

import numpy as np

from ..core.op import Array
from ..io.files import Path, Refusal, write_whole
from ..io.gguf import PLAIN, GgufFile
from .config import (
    ACTIVATIONS,
    ASKED,
    LARGEST,
    MOST_LAYERS,
    Experts,
    Latent,
    ModelConfig,
    Rope,
    architecture_of,
    nope_layers,
    windows_of,
)
from .fields import Fields

NAMES = {"deepseek2": "deepseek_v2", "qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe"}
ALIGNMENT = 32
# those with 27 billion parameters scale scores by the width of a head of all of the model's width
LARGE_GEMMAS = frozenset((("gemma2", 46), ("gemma3", 62)))
CONTROL = 3  # the type of a token that no text has
ENDS = frozenset((  # of a turn or a text, in the chat templates of the models that are known here
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>",
    "<|end_of_text|>", "<｜end▁of▁sentence｜>",
))  # fmt: skip


class _Of(Fields):
    """The fields of one architecture: `block_count` is `llama.block_count`."""

    def __init__(self, metadata: Mapping[str, Any], kind: str) -> None:
        start = f"{kind}."
        own = {k.removeprefix(start): v for k, v in metadata.items() if k.startswith(start)}
        super().__init__(own, start)


def from_gguf(file: GgufFile) -> ModelConfig:
    """The configuration that a file's metadata describes."""
    general = Fields(file.metadata)
    kind = general.text("general.architecture")
    name, known = architecture_of(NAMES.get(kind, kind))
    f = _Of(file.metadata, kind)
    width = f.whole("embedding_length", most=LARGEST)
    layers = f.whole("block_count", most=MOST_LAYERS)
    heads = f.whole("attention.head_count", most=LARGEST)
    size = f.whole("attention.key_length", width // heads or None, most=LARGEST)
    latent = _latent(f) if "attention.kv_lora_rank" in f else None
    size = latent.plain + latent.turning if latent else size
    tokens = general.items("tokenizer.ggml.tokens")
    if "token_embd.weight" not in file or len(file.shape("token_embd.weight")) != 2:
        raise Refusal("it has no matrix 'token_embd.weight'")
    vocabulary = file.shape("token_embd.weight")[0]
    rope = _rope(f, file, latent.turning if latent else size) if known.rope else None
    kv_heads = f.whole("attention.head_count_kv", heads, most=LARGEST)
    if heads % kv_heads:
        raise Refusal(f"{heads} heads cannot share {kv_heads} heads of keys and values")
    scale, local = _scale(f, name, width, heads, size), None
    if name == "gemma3" and rope is not None:
        local = Rope(f.number("rope.freq_base_swa", 10000.0), rope.size)
    window = f.whole("attention.sliding_window", 0, least=0, most=LARGEST)
    rule = "all" if kind == "llama" else "none" if known.windows in ASKED else known.windows
    eps = f.number(
        "attention.layer_norm_rms_epsilon", f.number("attention.layer_norm_epsilon", 1e-5)
    )
    if rope is not None:
        rope = replace(rope, pairs=known.pairs)
    return ModelConfig(
        architecture=name,
        vocabulary=vocabulary,
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_size=size,
        context=f.whole("context_length", most=LARGEST),
        norm="layer" if known.norm == "layer" else "rms",  # files have the 1 in their weights
        eps=eps,
        activation=ACTIVATIONS[known.activation],
        rope=rope,
        local_rope=local,
        windows=windows_of(rule, window, layers, None),
        nope=nope_layers(known, layers, None),
        scale=scale,
        score_cap=f.number("attn_logit_softcapping", 0.0),
        logit_cap=f.number("final_logit_softcapping", 0.0),
        embedding_scale=width**0.5 if known.scaled_embedding else 1.0,
        tied="output.weight" not in file,
        experts=_experts(f, name),
        latent=latent,
        bos=general.token("tokenizer.ggml.bos_token_id"),
        eos=_ends(general, tokens),
    )


def _scale(f: Fields, name: str, width: int, heads: int, size: int) -> float:
    """What scores are multiplied by: files do not have it, it follows from other fields."""
    if (name, f.whole("block_count")) in LARGE_GEMMAS:
        return float((width / heads) ** -0.5)
    scale, strength = size**-0.5, f.number("rope.scaling.yarn_log_multiplier", 0.0)
    if strength and "attention.kv_lora_rank" in f and f.text("rope.scaling.type", "") == "yarn":
        scale *= (1 + strength * float(np.log(max(f.number("rope.scaling.factor"), 1.0)))) ** 2
    return float(scale)


def _ends(general: Fields, tokens: list[Any] | None) -> tuple[int, ...]:
    """Tokens that end a text, or a turn of a conversation: many files name only the former."""
    found = [general.token(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    ids = tuple(dict.fromkeys(n for n in found if n is not None))
    if tokens is None:
        return ids
    if any(n >= len(tokens) for n in ids):
        raise Refusal(f"its end of text is the token {ids}, of {len(tokens)} tokens")
    kinds = general.items("tokenizer.ggml.token_type") or []
    named = [n for n, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
             if kind == CONTROL and isinstance(token, str) and token in ENDS]  # fmt: skip
    return tuple(dict.fromkeys([*ids, *named]))


def _latent(f: Fields) -> Latent:
    turning = f.whole("rope.dimension_count", most=LARGEST)
    size = f.whole("attention.key_length_mla", f.whole("attention.key_length", most=LARGEST))
    value = f.whole("attention.value_length_mla", f.whole("attention.value_length", most=LARGEST))
    if size <= turning:
        raise Refusal(f"keys of {size} numbers of which {turning} turn")
    return Latent(f.whole("attention.kv_lora_rank", most=LARGEST), size - turning, turning, value)


def _experts(f: Fields, name: str) -> Experts | None:
    count = f.whole("expert_count", 0, least=0, most=LARGEST)
    if not count:
        return None
    groups = f.whole("expert_group_count", 1)
    sigmoid = f.whole("expert_gating_func", 1, least=0) == 2
    normalised = f.flag("expert_weights_norm", not (name == "deepseek_v2" or name == "qwen2_moe"))
    return Experts(
        count,
        f.whole("expert_used_count", most=count),
        f.whole("leading_dense_block_count", 0, least=0, most=MOST_LAYERS),
        "sigmoid" if sigmoid else "softmax",
        normalised,
        f.number("expert_weights_scale", 1.0) or 1.0,
        groups if count % groups == 0 else 1,
        f.whole("expert_group_used_count", 1, most=groups),
    )


def _rope(f: Fields, file: GgufFile, size: int) -> Rope:
    theta = f.number("rope.freq_base", 10000.0)
    turning = f.whole("rope.dimension_count", size, most=size)
    if turning % 2 or theta <= 0:
        raise Refusal(f"its rotation turns {turning} of {size} numbers, with theta {theta}")
    rope = Rope(theta, turning)
    kind = f.text("rope.scaling.type", "none")
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise Refusal(
            f"its rope scaling {kind[:50]!r} is not known", "none, linear, yarn, longrope"
        )
    context = f.whole("context_length", most=LARGEST)
    original = f.whole("rope.scaling.original_context_length", context, most=1 << 30)
    if kind in ("linear", "yarn") and (factor := f.number("rope.scaling.factor")) > 0:
        rope = replace(rope, kind=kind, factor=factor, original=original)
        if kind == "yarn":
            strength = f.number("rope.scaling.yarn_log_multiplier", 0.0)
            grown = 1.0 if strength else 0.1 * np.log(max(factor, 1.0)) + 1.0
            grown *= f.number("rope.scaling.attn_factor", 1.0)
            low = f.number("rope.scaling.yarn_beta_slow", 1.0)
            high = f.number("rope.scaling.yarn_beta_fast", 32.0)
            if not 0 < low < high:
                raise Refusal(f"its rotation has the turns {low} to {high} of YaRN")
            rope = replace(rope, low=low, high=high, attention=float(grown))
    for short, long in (
        ("rope_freqs.weight",) * 2,
        ("rope_factors_short.weight", "rope_factors_long.weight"),
    ):
        if short in file and long in file:
            parts = [tuple(_factors(file, name, turning // 2)) for name in (short, long)]
            attention = f.number("rope.scaling.attn_factor", 1.0)
            rope = replace(
                rope, kind="longrope", original=original, short=parts[0], long=parts[1],
                attention=attention,
            )  # fmt: skip
    return rope


def _factors(file: GgufFile, name: str, count: int) -> list[float]:
    found = file[name].numpy()
    if found.shape != (count,) or not np.isfinite(found).all() or (found <= 0).any():
        raise Refusal(f"the tensor {name!r} has no {count} factors above 0")
    return [float(x) for x in found]


# --- writing -----------------------------------------------------------------------------------

_NUMBERS = {float: (6, "<f"), bool: (7, "?")}


def save_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[int, tuple[int, ...], Array]],
) -> None:
    """Write a file of version 3: each tensor is the number of its type, its shape and its bytes."""

    def write(file: IO[bytes]) -> None:
        head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
        for key, value in metadata.items():
            head += [_text(key), _value(value)]
        place = 0
        for name, (kind, shape, raw) in tensors.items():
            head += [_text(name), struct.pack("<I", len(shape))]
            head += [struct.pack("<Q", n) for n in reversed(shape)]
            head.append(struct.pack("<IQ", kind, place))
            place += raw.nbytes + -raw.nbytes % ALIGNMENT
        start = b"".join(head)
        file.write(start + bytes(-len(start) % ALIGNMENT))
        for _, _, raw in tensors.values():
            file.write(np.ascontiguousarray(raw).tobytes())
            file.write(bytes(-raw.nbytes % ALIGNMENT))

    write_whole(path, write)


def plain_kind(array: Array) -> int:
    """The number of a plain type in GGUF files."""
    for number, (_, dtype) in PLAIN.items():
        if dtype.numpy == array.dtype:
            return number
    raise Refusal(f"GGUF files have no type for {array.dtype}")


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    """A value behind the number of its type; sizes are unsigned, as other readers ask for them."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, Sequence):
        return struct.pack("<I", 9) + _values(value)
    if type(value) is int:
        number, layout = (4, "<I") if 0 <= value < 1 << 32 else _whole(value, value)
    else:
        number, layout = _NUMBERS[type(value)]
    return struct.pack("<I", number) + struct.pack(layout, value)


def _values(values: Sequence[Any]) -> bytes:
    """Values of one type behind its number."""
    count = struct.pack("<Q", len(values))
    if values and all(type(one) is int for one in values):
        number, layout = _whole(min(values), max(values))
        inner = [struct.pack(layout, one) for one in values]
    else:
        each = [_value(one) for one in values]
        number = struct.unpack("<I", each[0][:4])[0] if each else 4
        inner = [one[4:] for one in each]
    return struct.pack("<I", number) + count + b"".join(inner)


def _whole(least: int, most: int) -> tuple[int, str]:
    """The number of the type that whole numbers fit, and its layout."""
    if least >= -(1 << 31) and most < 1 << 31:
        return 5, "<i"
    return (11, "<q") if most < 1 << 63 else (10, "<Q")
