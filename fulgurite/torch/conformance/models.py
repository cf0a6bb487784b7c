"""Models at reduced size with fixed random weights: torchvision, timm and transformers.

In: the name of a suite. Out: its architectures, each with a function that makes the model and
inputs for it. Sizes are reduced by what the libraries offer (image size, a config's widths and
depths); dropout and stochastic depth are off, so that two runs can be compared.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from itertools import zip_longest
from types import ModuleType
from typing import Any, NamedTuple
from zlib import crc32

import torch

Make = Callable[[], tuple[Any, dict[str, Any]]]
MOST_PARAMETERS = 60_000_000  # of a model that is judged: larger ones say nothing more


class Architecture(NamedTuple):
    """One model of a suite."""

    name: str
    make: Make  # the model, and its arguments by name ("" for the first)


_RATES = (
    "activation_dropout", "attention_dropout", "attn_drop", "attn_drop_p", "drop_prob", "dropout",
    "dropout_p", "hidden_dropout", "layerdrop", "p",
)  # fmt: skip


def calm(model: Any) -> Any:
    """A model without random layers: dropout of every kind and stochastic depth are off."""
    for module in model.modules():
        for name in _RATES:
            if isinstance(getattr(module, name, None), float):
                with contextlib.suppress(AttributeError, TypeError):
                    setattr(module, name, 0.0)
    return model


def awake(model: Any) -> Any:
    """A model without weights that are all zero, behind which results and gradients are zero too:
    last layers of heads, of residual branches, and routers, whose experts would be ties."""
    for name, parameter in model.named_parameters():
        if (parameter.dim() > 1 or name.endswith("weight")) and not bool(parameter.any()):
            torch.nn.init.normal_(parameter, std=0.02 if parameter.dim() > 1 else 0.5)
    return model


# --- torchvision ----------------------------------------------------------------------------------

_LARGE = {"inception_v3": 96, "googlenet": 64, "alexnet": 96, "maxvit_t": 224}
# boxes, whose number is data; quantised layers; optical flow
_BOXES = ("detection", "rcnn", "retinanet", "ssd", "fcos", "quantized_", "raft")
_CLIPS = ("mc3_18", "r3d_18", "r2plus1d_18", "s3d")


def import_torchvision() -> Any:
    """torchvision, also where its extension does not load: models of images need none of it."""
    try:
        import torchvision
    except RuntimeError:  # its library is for another build of torch
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            with contextlib.suppress(RuntimeError):
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(library)
        import torchvision
    return torchvision


_KEPT: list[Any] = []


def torchvision_suite() -> Iterator[Architecture]:
    """Classification, segmentation and video models of torchvision."""
    vision = import_torchvision()
    models = vision.models
    for name in models.list_models():
        if any([part in name for part in _BOXES]):
            continue

        def make(name: str = name) -> tuple[Any, dict[str, Any]]:
            named: dict[str, Any] = {"weights": None}
            if name.startswith("vit_"):
                named["image_size"] = 56 if name == "vit_h_14" else 64
            if name in ("fcn_resnet50", "fcn_resnet101", "lraspp_mobilenet_v3_large") or (
                name.startswith("deeplab")
            ):
                named["weights_backbone"] = None
            if name in ("inception_v3", "googlenet"):
                named |= {"init_weights": False, "aux_logits": False}
            model = awake(models.get_model(name, **named))
            if name == "s3d":  # its pool is of 7 x 7 where the picture is a 32nd
                return model, {"": torch.randn(1, 3, 16, 224, 224)}
            if name in _CLIPS:
                return model, {"": torch.randn(2, 3, 4, 32, 32)}
            if name.startswith(("mvit", "swin3d")):
                size = 224 if name.startswith("mvit") else 32
                return model, {"": torch.randn(1, 3, 16 if size == 224 else 4, size, size)}
            size = named.get("image_size", _LARGE.get(name, 64))
            return model, {"": torch.randn(2, 3, size, size)}

        yield Architecture(name, make)


# --- timm -----------------------------------------------------------------------------------------


def _stand_in(name: str) -> Any:
    """A class for what timm takes from torchvision, where there is none: data, not models."""
    if name.startswith("__"):
        raise AttributeError(name)
    return _StandIn(name, (torch.nn.Module,), {})


class _StandIn(type):
    def __getattr__(cls, name: str) -> Any:
        return _stand_in(name)


class _StandInModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        return _stand_in(name)


_TAKEN = ("", ".datasets", ".models", ".models.feature_extraction", ".ops", ".ops.misc",
          ".transforms", ".transforms.functional", ".utils")  # fmt: skip


def import_timm() -> Any:
    """timm, also where there is no torchvision: it takes transforms of pictures from there."""
    names = []
    try:
        import_torchvision()
    except ModuleNotFoundError:
        names = [f"torchvision{name}" for name in _TAKEN]
        sys.modules.update({name: _StandInModule(name) for name in names})
    import timm

    for name in names:  # for nobody else
        del sys.modules[name]
    return timm


def timm_suite() -> Iterator[Architecture]:
    """Of every family of timm the smallest by name; then of every family the next, up to eight."""
    timm = import_timm()

    chosen: dict[str, list[str]] = {}
    for name in timm.list_models():
        module = timm.models.model_entrypoint(name).__module__
        chosen.setdefault(module, []).append(name)
    ranked = [sorted(names, key=_likely_size)[:8] for names in chosen.values()]
    for name in [each for some in zip_longest(*ranked) for each in some if each is not None]:

        def make(name: str = name) -> tuple[Any, dict[str, Any]]:
            model, size = _at_a_small_size(timm, name)
            return awake(model), {"": torch.randn(2, 3, size, size)}

        yield Architecture(name, make)


def _at_a_small_size(timm: Any, name: str) -> tuple[Any, int]:
    """A model, and the smallest of a few sizes of pictures that it can be made for and takes."""
    with contextlib.suppress(TypeError, AssertionError, ValueError, RuntimeError):
        model = timm.create_model(name, num_classes=10, img_size=64)
        if _takes(model, 64):
            _check_size(model)
            return model, 64
    model = timm.create_model(name, num_classes=10)
    _check_size(model)
    full = model.default_cfg.get("input_size", (3, 64, 64))[-1]
    small = min(full, 96)
    fixed = model.default_cfg.get("fixed_input_size", False)
    return model, small if not fixed and _takes(model, small) else full


def _takes(model: Any, size: int) -> bool:
    """True if a model runs with pictures of this size: windows may have to divide it."""
    try:
        with torch.no_grad():
            model.eval()(torch.randn(1, 3, size, size))
    except (AssertionError, RuntimeError, ValueError):
        return False
    return True


def _check_size(model: Any) -> None:
    size = sum([p.numel() for p in model.parameters()])
    if size > MOST_PARAMETERS:
        raise ValueError(f"more than {MOST_PARAMETERS:,} parameters")


_SMALL = ("atto", "femto", "pico", "nano", "zepto", "xxs", "tiny", "xs", "_t", "xxtiny", "050",
          "small", "18", "_s", "b0", "micro", "mini", "lite")  # fmt: skip
_BIG = (
    "large",
    "huge",
    "giant",
    "_l",
    "xl",
    "base",
    "_b",
    "152",
    "101",
    "384",
    "512",
    "448",
    "200",
)


def _likely_size(name: str) -> tuple[int, int, str]:
    """How large a model is likely to be, by its name."""
    small = sum([part in name for part in _SMALL])
    big = sum([part in name for part in _BIG])
    return big - small, len(name), name


# --- transformers ---------------------------------------------------------------------------------

_WIDTHS = {
    "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "embed_dim": 32,
    "intermediate_size": 64, "ffn_dim": 64, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
    "d_ff": 64, "hidden_dim": 64, "n_inner": 64, "d_inner": 64,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2,
    "decoder_layers": 2, "num_decoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_key_value_heads": 4,
    "vocab_size": 99, "max_position_embeddings": 64, "n_positions": 64, "embedding_size": 32,
    "image_size": 32, "patch_size": 8, "head_dim": 8, "d_kv": 8, "word_embed_proj_dim": 32,
    "type_vocab_size": 2, "n_ctx": 64, "seq_length": 64, "num_experts": 4, "num_local_experts": 4,
    "moe_intermediate_size": 32, "num_experts_per_tok": 2, "moe_k": 2,
    "state_size": 8, "time_step_rank": 4,
}  # fmt: skip
_OFF = ("dropout", "drop_rate", "drop_path", "layerdrop", "pdrop")


def _config(kind: str) -> Any:
    """A config with small sizes and no dropout, and so its configs of parts."""
    from transformers import AutoConfig

    config = AutoConfig.for_model(kind)
    _shrink(config)
    with contextlib.suppress(Exception):
        config.use_cache = False
    return config


def _shrink(config: Any) -> None:
    """Small sizes, no dropout and few tokens, in a config and those inside it."""
    for name, value in list(vars(config).items()):
        with contextlib.suppress(Exception):
            if hasattr(value, "to_dict") and hasattr(value, "model_type"):
                _shrink(value)
            elif not isinstance(value, bool) and value is not None:
                setattr(config, name, _small(name, value))
    with contextlib.suppress(Exception):
        if isinstance(config.layer_types, list):
            config.layer_types = config.layer_types[: config.num_hidden_layers]


def _small(name: str, value: Any) -> Any:
    """A small value for a setting of a config; most stay as they are."""
    if name == "depths":
        return [1] * len(value)
    if isinstance(value, float):
        return 0.0 if any([part in name for part in _OFF]) else value
    if not isinstance(value, int) or value <= 0:
        return value
    if name.endswith("_token_id"):
        return value if value < 99 else 1
    return min(value, _WIDTHS.get(name, value))


def transformers_suite() -> Iterator[Architecture]:
    """The base model of every configuration of transformers, small, in an order that mixes them."""
    with contextlib.suppress(ModuleNotFoundError):
        import_torchvision()
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    for kind in sorted(MODEL_MAPPING_NAMES, key=lambda kind: crc32(kind.encode())):
        found = MODEL_MAPPING_NAMES[kind]
        name = found[0] if isinstance(found, tuple | list) else found

        def make(kind: str = kind, name: str = name) -> tuple[Any, dict[str, Any]]:
            config = _config(kind)
            made = getattr(transformers, name)
            with torch.device("meta"):
                _check_size(made(config))
            model = awake(made(config))
            return model, _inputs(model, config)

        yield Architecture(kind, make)


def _inputs(model: Any, config: Any) -> dict[str, Any]:
    """Tokens, pixels or sound, as a model's main input says."""
    name = getattr(model, "main_input_name", "input_ids")
    names = inspect.signature(model.forward).parameters
    if name == "pixel_values":
        # of no fixed size: at 32 a stride of 32 leaves two values to normalise, 1 and -1 then
        sized = any([hasattr(part, "image_size") for part in vars(config).values()])
        size = getattr(config, "image_size", 32 if sized else 64)
        size = size if isinstance(size, int) else size[0]
        given = {"pixel_values": torch.randn(2, getattr(config, "num_channels", 3), size, size)}
        if "input_ids" in names:
            given["input_ids"] = torch.randint(2, 90, (2, 8))
        return given
    if name == "input_features":
        bins = getattr(config, "num_mel_bins", 80)
        return {"input_features": torch.randn(2, bins, 64)}
    if name == "input_values":
        return {"input_values": torch.randn(2, 1600)}
    most = getattr(config, "vocab_size", 99) or 99
    given = {"input_ids": torch.randint(2, max(3, min(90, most)), (2, 8))}
    if "decoder_input_ids" in names:
        given["decoder_input_ids"] = torch.randint(2, max(3, min(90, most)), (2, 6))
    return given


SUITES: dict[str, Callable[[], Iterator[Architecture]]] = {
    "torchvision": torchvision_suite, "timm": timm_suite, "transformers": transformers_suite,
}  # fmt: skip
