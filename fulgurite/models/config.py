"""What a model is: its sizes and its choices, read from `config.json` or from GGUF metadata.

In: the mapping that a file has. Out: a frozen `ModelConfig`. Each architecture is one line of
`ARCHITECTURES`: what it does when its file does not say. Whatever is missing, or is no number where
a number belongs, is a `Refusal` that names the field; nothing of a file is executed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import isfinite, log
from typing import Any

from ..io.files import Refusal
from .fields import Fields

LARGEST = 1 << 24  # of a vocabulary, a width or a number of places
MOST_LAYERS = 1 << 10


@dataclass(frozen=True)
class Rope:
    """Rotary positions: how fast each pair of a head's numbers turns from place to place."""

    theta: float
    size: int  # numbers of a head that turn
    kind: str = "default"  # linear, llama3, yarn, longrope
    factor: float = 1.0
    low: float = 1.0  # llama3: wavelengths that are kept and stretched; yarn: slow and fast turns
    high: float = 4.0
    whole: bool = True  # yarn: where turns begin to be slow and fast is a whole pair
    original: int = 0  # places of the model before its context was made longer
    attention: float = 1.0  # what cosines and sines are multiplied by
    short: tuple[float, ...] = ()  # longrope: a factor for each pair
    long: tuple[float, ...] = ()
    pairs: bool = False  # neighbours turn together, not halves


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in place of the network of a layer."""

    count: int
    used: int
    first: int = 0  # layers before it that have an ordinary network
    scores: str = "softmax"  # or sigmoid
    normalised: bool = True  # weights of those used add up to 1
    scale: float = 1.0
    groups: int = 1
    groups_used: int = 1


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: keys and values are kept as one short vector for all heads."""

    rank: int  # of keys and values
    plain: int  # numbers of a head's key that do not turn
    turning: int  # and those that do, which all heads share
    value: int  # numbers of a head's value


@dataclass(frozen=True)
class ModelConfig:
    """Everything about a model except for its weights."""

    architecture: str
    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    context: int  # places that it was trained for
    norm: str = "rms"  # rms, rms1 (the weight is added to 1), layer
    eps: float = 1e-6
    activation: str = "silu"
    rope: Rope | None = None
    local_rope: Rope | None = None  # of layers with a window, where they have their own
    windows: tuple[int, ...] = ()  # for each layer: how far it looks back, 0 for all
    nope: frozenset[int] = frozenset()  # layers without rotary positions (NoPE)
    scale: float = 1.0  # of scores
    is_scaled_by_layer: bool = False  # are scores divided by the number of the layer, too?
    score_cap: float = 0.0
    logit_cap: float = 0.0
    embedding_scale: float = 1.0
    tied: bool = False
    experts: Experts | None = None
    latent: Latent | None = None
    bos: int | None = None
    eos: tuple[int, ...] = ()

    @property
    def short_context(self) -> int:
        """Tokens beyond which all of a text turns by other factors (longrope); 0 if none do."""
        found = [r.original for r in (self.rope, self.local_rope) if r and r.short != r.long]
        return min(found, default=0)

    @property
    def cache_heads(self) -> int:
        """Heads of keys and values that are kept for each place."""
        return 1 if self.latent else self.kv_heads

    @property
    def cache_sizes(self) -> tuple[int, int]:
        """Numbers of a kept key and of a kept value."""
        if self.latent:
            return self.latent.rank + self.latent.turning, self.latent.rank
        return self.head_size, self.head_size


@dataclass(frozen=True)
class Architecture:
    """What an architecture does where its file does not say; `gguf` is its name there."""

    norm: str = "rms"
    activation: str = "silu"
    theta: float = 10000.0
    tied: bool = False
    windows: str = "none"  # all, every second, five of six, or one of `ASKED`
    scaled_embedding: bool = False
    rope: bool = True
    pairs: bool = False  # of GGUF files, whose weights were put in another order
    partial: bool = False  # may some of a head's numbers not turn?
    nope_every: int = 0  # the last of so many layers has no rotary positions
    normalised_experts: bool = True
    expert_scores: str = "softmax"


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(pairs=True),
    "smollm3": Architecture(windows="nope", theta=2e6, tied=True, pairs=True, nope_every=4),
    "mistral": Architecture(windows="all"),
    "mixtral": Architecture(windows="all", theta=1e6),
    "qwen2": Architecture(windows="late"),
    "qwen3": Architecture(windows="late"),
    "qwen2_moe": Architecture(windows="early even", normalised_experts=False),
    "qwen3_moe": Architecture(windows="asked", normalised_experts=False),
    "gemma": Architecture("rms1", "gelu_pytorch_tanh", tied=True, scaled_embedding=True),
    "gemma2": Architecture(
        "rms1", "gelu_pytorch_tanh", tied=True, windows="every second", scaled_embedding=True
    ),
    "gemma3": Architecture(
        "rms1", "gelu_pytorch_tanh", 1e6, True, "five of six", scaled_embedding=True
    ),
    "phi3": Architecture(windows="all", partial=True),
    "gpt2": Architecture("layer", "gelu_new", tied=True, rope=False),
    "olmo2": Architecture(),
    "deepseek_v2": Architecture(normalised_experts=False, pairs=True),
    "deepseek_v3": Architecture(expert_scores="sigmoid", pairs=True),
}
ASKED = ("late", "early even", "asked", "nope")  # windows only if 'use_sliding_window' is true
ALIASES = {"gemma3_text": "gemma3", "qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe"}
ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu",
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh", "quick_gelu": "gelu_quick",
}  # fmt: skip


def architecture_of(kind: str) -> tuple[str, Architecture]:
    """The table's line for a name, or a refusal that lists the known ones."""
    name = ALIASES.get(kind, kind)
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise Refusal(f"its architecture {kind[:50]!r} is not known here", f"known are: {known}")
    return name, ARCHITECTURES[name]


def activation_of(name: str) -> str:
    """Our name of an activation."""
    if name not in ACTIVATIONS:
        raise Refusal(f"its activation {name[:50]!r} is not known", ", ".join(ACTIVATIONS))
    return ACTIVATIONS[name]


def windows_of(rule: str, window: int, layers: int, named: list[Any] | None) -> tuple[int, ...]:
    """How far each layer looks back."""
    if named is not None:
        if len(named) != layers:
            raise Refusal(f"'layer_types' has {len(named)} entries for {layers} layers")
        return tuple(window if kind == "sliding_attention" else 0 for kind in named)
    period, without = {"all": (1, -1), "every second": (2, 1), "five of six": (6, 5)}.get(
        rule, (1, 0)
    )
    return tuple(0 if n % period == without else window for n in range(layers))


def _windows(
    f: Fields, known: Architecture, window: int, layers: int, nope: frozenset[int]
) -> tuple[int, ...]:
    """How far each layer looks back; older files do not name layers, they say where to begin."""
    named = f.items("layer_types")
    if named is None and known.windows == "five of six" and "sliding_window_pattern" in f:
        every = f.whole("sliding_window_pattern", most=MOST_LAYERS)
        return tuple(0 if (number + 1) % every == 0 else window for number in range(layers))
    if named is not None or known.windows not in ASKED:
        return windows_of(known.windows, window, layers, named)
    start = f.whole("max_window_layers", 28, least=0, most=MOST_LAYERS)
    having: Collection[int] = {
        "late": range(start, layers), "early even": range(0, min(start, layers), 2),
        "asked": range(layers), "nope": nope,
    }[known.windows]  # fmt: skip
    return tuple(window if number in having else 0 for number in range(layers))


def nope_layers(known: Architecture, layers: int, turns: list[Any] | None) -> frozenset[int]:
    """Layers without rotary positions (NoPE); `turns` has a 0 for each of them."""
    every = known.nope_every
    if not every:
        return frozenset()
    if turns is None:
        return frozenset(range(every - 1, layers, every))
    if len(turns) != layers or not all(n in (0, 1) for n in turns):
        raise Refusal(f"'no_rope_layers' is not 0 or 1 for each of {layers} layers")
    return frozenset([n for n, turn in enumerate(turns) if not turn])


_GPT2 = {  # its own names of fields
    "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings", "layer_norm_epsilon": "rms_norm_eps",
}  # fmt: skip


_GEMMA3: dict[str, Any] = {  # what files of Gemma 3 with pictures leave out
    "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "max_position_embeddings": 131072, "query_pre_attn_scalar": 256, "rope_theta": 1e6,
    "rope_local_base_freq": 10000.0, "sliding_window": 4096,
}  # fmt: skip


def from_hf(data: Mapping[str, Any]) -> ModelConfig:
    """The configuration that a `config.json` of Hugging Face's libraries describes."""
    f = Fields(data)
    name, known = architecture_of(f.text("model_type"))
    if "text_config" in f:
        f = _of_text(f, name)
    if name == "gpt2":
        f = Fields({_GPT2.get(key, key): value for key, value in f.data.items()})
    width = f.whole("hidden_size", most=LARGEST)
    layers = f.whole("num_hidden_layers", most=MOST_LAYERS)
    heads = f.whole("num_attention_heads", most=LARGEST)
    latent = _latent(f) if name.startswith("deepseek") else None
    size = f.whole("head_dim", width // heads if width % heads == 0 else None, most=LARGEST)
    if latent:
        size = latent.plain + latent.turning
    scale = f.number("query_pre_attn_scalar", size) ** -0.5
    if not f.flag("scale_attn_weights", True):
        scale = 1.0
    rope, local = (
        (None, None) if not known.rope else _ropes(f, known, latent.turning if latent else size)
    )
    if latent and rope and rope.kind == "yarn":
        every = f.inner("rope_parameters", "rope_scaling").number("mscale_all_dim", 0.0)
        scale *= _stretch(rope.factor, every) ** 2 if every else 1.0
    window = f.whole("sliding_window", 0, least=0, most=LARGEST)
    if known.windows in ASKED and not f.flag("use_sliding_window", False):
        window = 0
    nope = nope_layers(known, layers, f.items("no_rope_layers"))
    activation = f.first(
        ("hidden_activation", "hidden_act", "activation_function"), known.activation
    )
    if name == "gemma" and activation == "gelu":  # its first files say so and mean the other one
        activation = known.activation
    return ModelConfig(
        architecture=name,
        vocabulary=f.whole("vocab_size", most=LARGEST),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=_divides(f.whole("num_key_value_heads", heads, most=LARGEST), heads),
        head_size=size,
        context=f.whole("max_position_embeddings", most=LARGEST),
        norm=known.norm,
        eps=f.number("rms_norm_eps", 1e-6),
        activation=activation_of(activation),
        rope=rope,
        local_rope=local,
        windows=_windows(f, known, window, layers, nope),
        nope=nope,
        scale=scale,
        is_scaled_by_layer=f.flag("scale_attn_by_inverse_layer_idx", False),
        score_cap=f.number("attn_logit_softcapping", 0.0),
        logit_cap=f.number("final_logit_softcapping", 0.0),
        embedding_scale=width**0.5 if known.scaled_embedding else 1.0,
        tied=f.flag("tie_word_embeddings", known.tied),
        experts=_experts(f, known),
        latent=latent,
        bos=f.token("bos_token_id"),
        eos=f.tokens("eos_token_id"),
    )


def _of_text(f: Fields, name: str) -> Fields:
    """The fields of the text's part of a model of text and pictures. Those that `transformers`
    takes as given are not in its file; the ids of tokens may be beside it."""
    part = f.part("text_config")
    beside = {key: f.data[key] for key in ("bos_token_id", "eos_token_id") if key in f}
    given = _GEMMA3 if name == "gemma3" else {}
    own = {key: value for key, value in part.data.items() if value is not None}
    return Fields({**given, **beside, **own}, part.where)


def _divides(part: int, whole: int) -> int:
    if whole % part:
        raise Refusal(f"{whole} heads cannot share {part} heads of keys and values")
    return part


def _latent(f: Fields) -> Latent:
    return Latent(
        f.whole("kv_lora_rank", most=LARGEST),
        f.whole("qk_nope_head_dim", most=LARGEST),
        f.whole("qk_rope_head_dim", most=LARGEST),
        f.whole("v_head_dim", most=LARGEST),
    )


def _experts(f: Fields, known: Architecture) -> Experts | None:
    count = 0
    for name in ("num_local_experts", "n_routed_experts", "num_experts"):
        count = count or f.whole(name, 0, least=0, most=LARGEST)
    if not count:
        return None
    groups = f.whole("n_group", 1) if known.expert_scores == "sigmoid" else 1
    if f.text("topk_method", "") == "group_limited_greedy":
        groups = f.whole("n_group", 1)
    return Experts(
        count,
        f.whole("num_experts_per_tok", most=count),
        f.whole("first_k_dense_replace", 0, least=0, most=MOST_LAYERS),
        known.expert_scores,
        f.flag("norm_topk_prob", known.normalised_experts),
        f.number("routed_scaling_factor", 1.0),
        _divides(groups, count),
        f.whole("topk_group", 1, most=groups) if groups > 1 else 1,
    )


def _stretch(factor: float, strength: float = 1.0) -> float:
    """YaRN's growth of scores with the factor by which the context grew."""
    return 0.1 * strength * log(factor) + 1.0 if factor > 1 else 1.0


def _ropes(f: Fields, known: Architecture, size: int) -> tuple[Rope | None, Rope | None]:
    """The rotation of all layers, and that of those with a window if it is another."""
    given = f.inner("rope_parameters")
    if "full_attention" in given:
        whole, local = given.part("full_attention"), given.part("sliding_attention")
        return _rope(f, whole, known, size), _rope(f, local, known, size)
    rope = _rope(f, f.inner("rope_parameters", "rope_scaling"), known, size)
    if "rope_local_base_freq" in f:
        return rope, Rope(f.number("rope_local_base_freq"), size)
    return rope, None


def _rope(f: Fields, given: Fields, known: Architecture, size: int) -> Rope:
    theta = given.number("rope_theta", f.number("rope_theta", known.theta))
    share = given.number("partial_rotary_factor", f.number("partial_rotary_factor", 1.0))
    turning = int(size * share) if known.partial else size
    if turning < 2 or turning % 2 or turning > size or theta <= 0 or not isfinite(theta):
        raise Refusal(f"its rotation turns {turning} of {size} numbers, with theta {theta}")
    kind = given.first(("rope_type", "type"), "default")
    pairs = known.pairs and "kv_lora_rank" in f and f.flag("rope_interleave", True)
    rope = Rope(theta, turning, pairs=pairs)
    return _scaled(rope, kind, given, f.whole("max_position_embeddings", 0, least=0), f)


def _scaled(rope: Rope, kind: str, given: Fields, context: int, f: Fields) -> Rope:
    """The rotation of a context that was made longer."""
    if kind in ("default", "mrope", "dynamic"):  # dynamic: the same within the context
        return rope
    if kind not in ("linear", "llama3", "yarn", "longrope", "su"):
        raise Refusal(
            f"its rope scaling {kind[:50]!r} is not known", "linear, llama3, yarn, longrope"
        )
    original = given.whole(
        "original_max_position_embeddings",
        f.whole("original_max_position_embeddings", context or None),
        most=1 << 30,
    )
    grown = max(context, 1) / original
    factor = given.number("factor", grown if kind in ("longrope", "su", "yarn") else None)
    if factor <= 0:
        raise Refusal(f"'factor' of its rope scaling is {factor}")
    settings: dict[str, Any] = {"kind": "longrope" if kind == "su" else kind, "factor": factor}
    if kind == "llama3":
        settings |= {
            "low": given.number("low_freq_factor"),
            "high": given.number("high_freq_factor"),
        }
    elif kind == "yarn":
        m, every = given.number("mscale", 0.0), given.number("mscale_all_dim", 0.0)
        both = _stretch(factor, m) / _stretch(factor, every) if m and every else _stretch(factor)
        settings |= {
            "low": given.number("beta_slow", 1.0),
            "high": given.number("beta_fast", 32.0),
            "whole": given.flag("truncate", True),
            "attention": given.number("attention_factor", both),
        }
    elif kind != "linear":
        default = (1 + log(factor) / log(original)) ** 0.5 if factor > 1 else 1.0
        settings["attention"] = given.number("attention_factor", default)
        for name in ("short", "long"):
            settings[name] = given.numbers(f"{name}_factor", rope.size // 2)
    return Rope(rope.theta, rope.size, original=original, pairs=rope.pairs, **settings)
