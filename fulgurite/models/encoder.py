"""Encoders of text: BERT (MiniLM is one) and ModernBERT.

In: ids of tokens, (batch, length), and a mask of those that count. Out: a vector for each token;
`embed` gives one for each text, the mean of its tokens' at length 1, as sentence encoders use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

import fulgurite as fg

from ..core.op import Array
from ..io.files import Path, Refusal, path_of, reading
from .blocks import BERT, Scope, Sizes, attention, layer, opened, split_heads
from .config import Rope
from .decoder import ACTIVATIONS
from .fields import Fields
from .generate import tokens_of
from .rope import angles, rotated
from .tokens import Tokenizer, from_folder

Run = Callable[[fg.Tensor, fg.Tensor], fg.Tensor]


class Encoder:
    """An encoder: call it with ids and a mask, or `embed` texts."""

    def __init__(self, path: str, width: int, run: Run, context: int, vocabulary: int) -> None:
        self.path, self.width, self.context = path, width, context
        self.vocabulary = vocabulary
        self._run = run
        self._tokenizer: Tokenizer | None = None

    def __call__(self, ids: fg.Tensor, mask: fg.Tensor | None = None) -> fg.Tensor:
        """A vector for each token, (batch, length, width)."""
        mask = fg.ones(ids.shape, dtype=fg.bool) if mask is None else mask.astype(fg.bool)
        with fg.no_grad():
            return self._run(ids, mask)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokeniser of the folder."""
        if self._tokenizer is None:
            self._tokenizer = from_folder(self.path)
        return self._tokenizer

    def embed(self, texts: Sequence[str | Sequence[int]]) -> Array:
        """A vector of length 1 for each text, (texts, width)."""
        ids = [self.tokenizer.encode(t) if isinstance(t, str) else list(t) for t in texts]
        ids = [tokens_of(some[: self.context], self.vocabulary) for some in ids]
        if not ids:
            return np.zeros((0, self.width), np.float32)
        longest = max([len(some) for some in ids], default=0)
        longest = -(-max(longest, 1) // 16) * 16 if longest <= self.context - 16 else self.context
        filled = np.zeros((len(ids), longest), np.int32)
        mask = np.zeros((len(ids), longest), np.bool_)
        for row, some in enumerate(ids):
            filled[row, : len(some)], mask[row, : len(some)] = some, True
        h = self(fg.Tensor(filled), fg.Tensor(mask)).numpy() * mask[:, :, None]
        total = h.sum(axis=1)
        found: Array = total / np.maximum(np.linalg.norm(total, axis=-1, keepdims=True), 1e-12)
        return found


def load_encoder(path: Path) -> Encoder:
    """An encoder from a Hugging Face folder."""
    fields, tensors = opened(path)
    makers = {"bert": _bert, "modernbert": _modern}

    def read(_: str) -> Encoder:
        kind = fields.text("model_type")
        if kind not in makers:
            raise Refusal(
                f"its architecture {kind[:50]!r} is no encoder known here", str([*makers])
            )
        prefix = next((p for p in ("", "bert.", "model.") if f"{p}{_PROBES[kind]}" in tensors), "")
        width = fields.whole("hidden_size", most=1 << 20)
        context = fields.whole("max_position_embeddings", most=1 << 24)
        run = makers[kind](Scope(tensors, prefix), fields)
        run(fg.zeros((1, 2), dtype=fg.int32), fg.ones((1, 2), dtype=fg.bool))  # its tensors fit
        return Encoder(path_of(path), width, run, context, fields.whole("vocab_size"))

    return reading(path, "a folder with a model", read)


_PROBES = {
    "bert": "embeddings.word_embeddings.weight",
    "modernbert": "embeddings.tok_embeddings.weight",
}


def _bert(w: Scope, f: Fields) -> Run:
    if (places := f.text("position_embedding_type", "absolute")) != "absolute":
        raise Refusal(f"its places are told as {places[:50]!r}, which is not known here")
    sizes, e = Sizes.of(f), w.within("embeddings.")

    def run(ids: fg.Tensor, mask: fg.Tensor) -> fg.Tensor:
        x = e["word_embeddings.weight"][ids] + e["token_type_embeddings.weight"][0]
        x = x + e["position_embeddings.weight"][: ids.shape[1]]
        x = e.norm("LayerNorm", x, sizes.eps)
        for n in range(sizes.layers):
            x = layer(w.within(f"encoder.layer.{n}."), BERT, sizes, x, mask[:, None, None])
        return x

    return run


def _modern(w: Scope, f: Fields) -> Run:
    sizes = Sizes.of(f, "norm_eps")
    every = f.whole("global_attn_every_n_layers", 3)
    kinds = f.items("layer_types") or [
        "sliding_attention" if n % every else "full_attention" for n in range(sizes.layers)
    ]
    near = f.whole("local_attention", 128) // 2
    width = f.whole("hidden_size", most=1 << 20)
    given = f.inner("rope_parameters")
    far = given.inner("full_attention").number(
        "rope_theta", f.number("global_rope_theta", 160000.0)
    )
    close = given.inner("sliding_attention").number(
        "rope_theta", f.number("local_rope_theta", 10000.0)
    )
    ropes = {"full_attention": Rope(far, width // sizes.heads),
             "sliding_attention": Rope(close, width // sizes.heads)}  # fmt: skip
    if len(kinds) != sizes.layers or not {*map(str, kinds)} <= ropes.keys():
        raise Refusal(f"'layer_types' does not name {sizes.layers} known kinds of attention")
    act = ACTIVATIONS[sizes.activation]

    def run(ids: fg.Tensor, mask: fg.Tensor) -> fg.Tensor:
        x = w.norm("embeddings.norm", w["embeddings.tok_embeddings.weight"][ids], sizes.eps)
        places = fg.arange(ids.shape[1])
        window = abs(places[:, None] - places) <= near
        turns = {kind: angles(rope, places[None]) for kind, rope in ropes.items()}
        for n, kind in enumerate(kinds):
            part = w.within(f"layers.{n}.")
            qkv = part.linear("attn.Wqkv", part.norm("attn_norm", x, sizes.eps))
            q, k, v = (qkv[..., width * i : width * (i + 1)] for i in range(3))
            q, k = (
                rotated(ropes[kind], split_heads(y, sizes.heads), turns[kind])
                .permute(0, 2, 1, 3)
                .reshape(*y.shape)
                for y in (q, k)
            )
            seen = mask[:, None, None] & (window if kind != "full_attention" else True)
            x = x + part.linear("attn.Wo", attention(q, k, v, sizes.heads, seen))
            both = part.linear("mlp.Wi", part.norm("mlp_norm", x, sizes.eps))
            half = both.shape[-1] // 2
            x = x + part.linear("mlp.Wo", act(both[..., :half]) * both[..., half:])
        return w.norm("final_norm", x, sizes.eps)

    return run
