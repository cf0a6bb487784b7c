"""Weights from files: Hugging Face folders and GGUF, memory-mapped, by the tables of `names`.

In: a folder with `config.json` and safetensors files (one, or several with an index), or a GGUF
file. Out: a `ModelConfig` and the weights that a decoder asks for. Tensors are the file's own
read-only memory, so processes that load the same file share it; only experts that are stored one by
one are put together. The invariant: every weight has the shape that the configuration says, or the
file is refused with its name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import fulgurite as fg

from ..io.files import FileError, MissingFileError, Path, Refusal, reading
from ..io.gguf import GgufFile
from ..io.quants import GROUPS, QUANTS, Quant
from ..io.safetensors import SafetensorsFile
from . import names
from .config import ModelConfig, from_hf
from .fields import Fields
from .quantized import Matrix

Stored = Callable[[str], "tuple[fg.Tensor, Quant | None]"]
LARGEST_JSON = 1 << 28
INDEX = "model.safetensors.index.json"


def read_json(path: str) -> Any:
    """The contents of a JSON file."""

    def read(name: str) -> Any:
        if os.path.getsize(name) > LARGEST_JSON:
            raise Refusal("it is larger than any such file")
        with open(name, encoding="utf-8") as file:
            return json.load(file)

    return reading(path, "a JSON file", read)


class Folder(Mapping[str, Any]):
    """The tensors of all safetensors files of a folder, by name."""

    def __init__(self, path: str) -> None:
        self.path = path
        index = os.path.join(path, INDEX)
        self.files: dict[str, SafetensorsFile] = {}
        self.places: dict[str, str] = {}
        if os.path.exists(index):
            table = read_json(index)
            self.places = reading(index, "an index of safetensors files", lambda _: _index(table))
        else:
            name = _only_file(path)
            self.places = dict.fromkeys(self._file(name), name)

    def _file(self, name: str) -> SafetensorsFile:
        if name not in self.files:
            self.files[name] = SafetensorsFile(os.path.join(self.path, name))
        return self.files[name]

    def __getitem__(self, name: str) -> fg.Tensor:
        file = self._file(self.places[name])
        if name not in file:
            raise Refusal(f"{self.places[name]!r} has no tensor {name[:100]!r}, its index says so")
        return file[name]

    def __iter__(self) -> Any:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


def _only_file(path: str) -> str:
    """The safetensors file of a folder without an index: `model.safetensors`, or the only one."""
    wanted = "model.safetensors"
    if os.path.exists(os.path.join(path, wanted)):
        return wanted
    found = sorted([n for n in os.listdir(path) if n.endswith(".safetensors")])
    if len(found) == 1:
        return found[0]
    old = [n for n in os.listdir(path) if n.endswith((".bin", ".pt", ".pth"))]
    why = f"its weights are pickled ({min(old)[:100]!r}), which are not read" if old else (
        f"there is no {INDEX!r} that says what is in which file" if found else
        "it has no safetensors file"
    )  # fmt: skip
    raise FileError(
        f"{path!r} is refused: {why}", "get the model as safetensors, or as a GGUF file"
    )


def _index(table: Any) -> dict[str, str]:
    places = table.get("weight_map") if isinstance(table, dict) else None
    if not isinstance(places, dict) or not places:
        raise Refusal("it has no 'weight_map'")
    for file in places.values():
        if not isinstance(file, str) or os.path.basename(file) != file or not file:
            raise Refusal(f"it names {str(file)[:100]!r}, which is no file of its folder")
    return places


def load_hf(path: Path) -> tuple[ModelConfig, dict[str, Any], list[dict[str, Any]]]:
    """The configuration and the weights of a decoder in a folder."""
    folder = os.fspath(path)
    if not os.path.exists(os.path.join(folder, "config.json")):
        raise MissingFileError(
            f"{folder!r} has no config.json", "give a Hugging Face folder, or a GGUF file"
        )
    data = read_json(os.path.join(folder, "config.json"))
    config = reading(os.path.join(folder, "config.json"), "a config.json", lambda _: from_hf(data))
    config = replace(config, eos=_ends(folder, config))
    tensors = Folder(folder)
    quant = reading(folder, "a folder with a model", lambda _: _quant(data))
    is_gpt2 = config.architecture == "gpt2"
    top = names.HF_GPT2_TOP if is_gpt2 else names.HF_TOP
    layer = names.HF_GPT2_LAYER if is_gpt2 else names.HF_LAYER

    def read(_: str) -> Any:
        wanted = f"{top['embed']}.weight"
        prefix = next((n.removesuffix(wanted) for n in tensors if n.endswith(wanted)), None)
        if prefix is None:
            raise Refusal(f"it has no tensor {wanted!r}")

        def stored(name: str) -> tuple[fg.Tensor, Quant | None]:
            tensor = tensors[name]
            is_packed = quant is not None and tensor.dtype is fg.uint8 and tensor.ndim > 2
            if is_packed and quant is not None and tensor.shape[-1] != quant.bytes:
                raise Refusal(f"the tensor {name!r} has no blocks of {quant.bytes} bytes")
            return tensor, quant if is_packed else None

        reader = Reader(config, tensors, stored, is_gpt2)
        found = reader.all(top, prefix, layer, names.hf_names(config.architecture))
        if data.get("attention_bias") is True and not config.latent:
            _check_biases(found[1])
        return found

    return config, *reading(folder, "a folder with a model", read)


def _check_biases(layers: list[dict[str, Any]]) -> None:
    """A refusal of layers without the biases that `attention_bias` promises."""
    for number, w in enumerate(layers):
        if "q" in w and w["q"].bias is None:
            raise Refusal(f"layer {number} has no biases, 'attention_bias' is true")


def _ends(folder: str, config: ModelConfig) -> tuple[int, ...]:
    """Tokens that end a text; `generation_config.json` has those that end a turn, too."""
    if any(n >= config.vocabulary for n in config.eos):
        raise FileError(
            f"the config.json of {folder!r} is refused: 'eos_token_id' is {config.eos}, of "
            f"{config.vocabulary} tokens", "get the file anew",
        )  # fmt: skip
    name = os.path.join(folder, "generation_config.json")
    if not os.path.exists(name):
        return config.eos
    data = read_json(name)
    more = reading(name, "a generation_config.json", lambda _: Fields(data).tokens("eos_token_id"))
    return tuple(dict.fromkeys([*config.eos, *[n for n in more if n < config.vocabulary]]))


def _quant(data: Any) -> Quant | None:
    """The type that packed matrices of a folder have."""
    given = Fields(data).inner("quantization_config")
    if "quant_method" not in given:
        return None
    if (method := given.text("quant_method")) != "fulgurite":
        raise Refusal(
            f"its matrices are packed by {method[:50]!r}, which is not known here",
            "use the model without quantisation, or a GGUF file",
        )
    by_name = {quant.name: quant for quant in (*QUANTS.values(), *GROUPS.values())}
    kind = given.text("type")
    if kind not in by_name:
        raise Refusal(f"its matrices have the unknown type {kind[:50]!r}", ", ".join(by_name))
    return by_name[kind]


class Reader:
    """Puts together what a decoder asks for; whatever does not fit is refused by name."""

    def __init__(
        self, config: ModelConfig, present: Mapping[str, Any], stored: Stored, transposed: bool
    ) -> None:
        self.config, self.present, self.stored, self.transposed = (
            config,
            present,
            stored,
            transposed,
        )

    def all(
        self, top: names.Names, prefix: str, layer: str, inner: names.Names
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The weights outside of layers, and those of each layer."""
        outside = {own: f"{prefix}{name}" for own, name in top.items()}
        if f"{outside['head']}.weight" not in self.present:  # which lies beside the model
            outside["head"] = top["head"]
        found = self.some(outside, ("embed", "norm"))
        if self.config.tied or "head" not in found:
            if not self.config.tied:
                raise Refusal(f"it has no tensor {top['head'] + '.weight'!r}, and is not tied")
            found.pop("head", None)
        layers = []
        for number in range(self.config.layers):
            where = f"{prefix}{layer.format(number)}"
            layers.append(self.some({own: where + name for own, name in inner.items()}, ()))
            self._complete(layers[-1], where)
        return found, layers

    def some(self, wanted: dict[str, str], needed: tuple[str, ...]) -> dict[str, Any]:
        """Those of the wanted weights that the file has."""
        found: dict[str, Any] = {}
        for own, name in wanted.items():
            own = own.strip()
            if own in names.VECTORS:
                if name in self.present:
                    found[own] = self._vector(own, name)
            elif own in names.NORMS:
                if f"{name}.weight" in self.present:
                    found[own] = self._vector(own, f"{name}.weight")
                if f"{name}.bias" in self.present:
                    found[f"{own}.bias"] = self._vector(own, f"{name}.bias")
            elif (matrix := self._matrix(own, name)) is not None:
                found[own] = matrix
            if own in needed and own not in found:
                raise Refusal(f"it has no tensor {name + '.weight'!r}")
        return found

    def _vector(self, own: str, name: str) -> fg.Tensor:
        tensor, quant = self.stored(name)
        if tensor.ndim != 1 or quant is not None:
            raise Refusal(f"the tensor {name!r} has the shape {tensor.shape}, not one dimension")
        c = self.config
        sizes = {"router_bias": c.experts.count if c.experts else 0}
        sizes |= dict.fromkeys(("norm", "norm1", "norm1_post", "norm2", "norm2_post"), c.width)
        self._check(name, tensor.shape, (sizes.get(own, 0),))
        return tensor

    def _matrix(self, own: str, name: str) -> Matrix | None:
        data, quant = None, None
        if "{e}" in name and self.config.experts:
            each = [f"{name.format(e=e)}.weight" for e in range(self.config.experts.count)]
            if each[0] in self.present:
                data = fg.stack([self._stored(one)[0] for one in each]).realize()
        else:
            present = [n for n in (f"{name}.weight", name) if n in self.present]
            if present:
                data, quant = self._stored(present[0], own == "shared_gate")
        if data is None:
            return None
        is_transposed = self.transposed and own not in ("embed", "places", "head") and not quant
        bias = self.stored(f"{name}.bias")[0] if f"{name}.bias" in self.present else None
        matrix = Matrix(data, quant, bias, is_transposed)
        self._check(name, matrix.shape, self._shape(own))
        if bias is not None:
            self._check(f"{name}.bias", bias.shape, matrix.shape[-2:-1])
        return matrix

    def _stored(self, name: str, of_one: bool = False) -> tuple[fg.Tensor, Quant | None]:
        """A matrix as it is stored; one of a single row may be that row alone."""
        if name not in self.present:
            raise Refusal(f"it has no tensor {name!r}")
        tensor, quant = self.stored(name)
        if of_one and tensor.ndim == 1:
            tensor = tensor[None]
        if tensor.ndim < 2 or tensor.dtype.kind not in "fu":
            raise Refusal(f"the tensor {name!r} of {tensor.dtype}{list(tensor.shape)} is no matrix")
        return tensor, quant

    def _shape(self, own: str) -> tuple[int, ...]:
        """The shape that a matrix has: 0 where the configuration does not say."""
        c = self.config
        rows, shared = c.heads * c.head_size, c.kv_heads * c.head_size
        known: dict[str, tuple[int, ...]] = {
            "embed": (c.vocabulary, c.width), "head": (c.vocabulary, c.width),
            "places": (c.context, c.width), "q": (rows, c.width), "k": (shared, c.width),
            "v": (shared, c.width), "qkv": (rows + 2 * shared, c.width), "o": (c.width, rows),
            "gate": (0, c.width), "up": (0, c.width), "gate_up": (0, c.width),
            "down": (c.width, 0), "shared_gate": (1, c.width),
        }  # fmt: skip
        if c.experts:
            known["router"] = (c.experts.count, c.width)
        if c.latent:
            n = c.latent
            known |= {
                "q_a": (0, c.width), "q_b": (rows, 0), "kv_a": (n.rank + n.turning, c.width),
                "kv_b": (c.heads * (n.plain + n.value), n.rank), "o": (c.width, c.heads * n.value),
                "k_b": (c.heads, n.rank, n.plain), "v_b": (c.heads, n.value, n.rank),
            }  # fmt: skip
        kind, _, part = own.rpartition(".")
        outer = (c.experts.count,) if kind == "experts" and c.experts else ()
        return (*outer, *known[part])

    def _check(self, name: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
        fits = len(shape) == len(wanted)
        if not fits or any(b and a != b for a, b in zip(shape, wanted, strict=True)):
            text = ", ".join(str(n or "any") for n in wanted)
            raise Refusal(f"the tensor {name[:100]!r} has the shape {shape}, not ({text})")

    def _complete(self, w: dict[str, Any], where: str) -> None:
        """A layer has attention and a network whose sizes agree."""
        wanted = LATENT_ATTENTIONS if self.config.latent else ATTENTIONS
        if not any(parts <= w.keys() for parts in wanted):
            raise Refusal(f"the layer {where!r} has no whole attention: it has {sorted(w)}")
        if "router" in w and not (self.config.experts and "experts.down" in w):
            raise Refusal(f"the layer {where!r} has a router and no experts")
        kinds = ["experts.", "shared."] if "router" in w else [""]
        for of in kinds:
            parts = {p: w[of + p].shape for p in ("gate_up", "gate", "up", "down") if of + p in w}
            if parts or of != "shared.":
                _fits(parts, where + of)


ATTENTIONS = ({"qkv", "o"}, {"q", "k", "v", "o"})  # what an attention may be made of
LATENT_ATTENTIONS = tuple(
    {"kv_a", "o", *queries, *values}
    for queries in (("q",), ("q_a", "q_b"))
    for values in (("kv_b",), ("k_b", "v_b"))
)


def _fits(parts: dict[str, tuple[int, ...]], where: str) -> None:
    """A network has all its parts, whose sizes agree."""
    hidden = {
        s[-1] if p == "down" else s[-2] // (2 if p == "gate_up" else 1) for p, s in parts.items()
    }
    if "down" not in parts or not {"gate_up", "up"} & parts.keys() or len(hidden) > 1:
        raise Refusal(f"the network {where!r} has parts of sizes {parts}")


def load_gguf(path: Path) -> tuple[GgufFile, ModelConfig, dict[str, Any], list[dict[str, Any]]]:
    """The file, the configuration and the weights of a decoder in a GGUF file."""
    from .gguf import from_gguf

    file = GgufFile(path)

    def read(_: str) -> Any:
        config = from_gguf(file)
        reader = Reader(config, file, file.packed, False)
        inner = names.gguf_names(config.architecture)
        return config, *reader.all(names.GGUF_TOP, "", names.GGUF_LAYER, inner)

    return file, *reading(path, "a GGUF file", read)
