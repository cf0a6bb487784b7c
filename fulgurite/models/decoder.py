"""One decoder for Llama, Mistral, Qwen, Gemma, Phi-3, GPT-2, OLMo 2, Mixtral and DeepSeek.

In: ids of tokens and their places, (batch, length). Out: a vector for each, and logits. A layer is
attention and a network, each added to what comes in; what differs between architectures is which
norms there are (a layer uses those its file has), what the network is, how places are told, and a
few numbers of the configuration. Keys and values of earlier places are kept in a `Cache` (the KV
cache). It is all plain array code: what becomes one kernel is up to the compiler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import fulgurite as fg

from ..errors import ArgumentError
from .config import Experts, ModelConfig, Rope
from .quantized import Matrix
from .rope import angles, rotated

Weights = Mapping[str, Any]  # names within a layer -> Matrix, or Tensor for norms
Turn = tuple[fg.Tensor, fg.Tensor]
ACTIVATIONS = {
    "silu": fg.silu,
    "gelu": fg.gelu,
    "gelu_tanh": lambda x: fg.gelu(x, approximate="tanh"),
    "gelu_quick": lambda x: x * fg.sigmoid(1.702 * x),
    "relu": fg.relu,
}


@dataclass
class Cache:
    """Keys and values of each layer, (heads, slots * places, size), written in place.

    `at` says where the tokens of a batch go, and `rows` which slots its rows are; None means all of
    them, in order. Indices are computed and checked once, before anything is written: only then may
    memory be written over.
    """

    keys: list[fg.Tensor]
    values: list[fg.Tensor]
    slots: int
    at: fg.Tensor
    rows: fg.Tensor | None = None
    is_long: fg.Tensor | None = None  # of each row: is its text beyond the original context?

    @staticmethod
    def of(
        keys: list[fg.Tensor],
        values: list[fg.Tensor],
        slots: int,
        places: fg.Tensor,
        rows: fg.Tensor | None,
        is_long: fg.Tensor | None = None,
    ) -> Cache:
        """A cache for tokens at places (batch, length) of some slots."""
        capacity = keys[0].shape[1] // slots
        which = fg.arange(slots) if rows is None else fg.clip(rows, 0, slots - 1)
        at = (which[:, None] * capacity + places).reshape(-1).contiguous()
        return Cache(keys, values, slots, at, None if rows is None else which, is_long)

    @property
    def capacity(self) -> int:
        """Places of a slot."""
        return self.keys[0].shape[1] // self.slots

    def put(self, layer: int, k: fg.Tensor, v: fg.Tensor) -> tuple[fg.Tensor, fg.Tensor]:
        """Write keys and values (batch, heads, length, size); all that the slots have then."""
        return self._put(self.keys[layer], k), self._put(self.values[layer], v)

    def _put(self, kept: fg.Tensor, new: fg.Tensor) -> fg.Tensor:
        heads, _, size = kept.shape
        kept[:, self.at] = new.permute(1, 0, 2, 3).reshape(heads, -1, size).astype(kept.dtype)
        found = kept.reshape(heads, self.slots, self.capacity, size).permute(1, 0, 2, 3)
        return found if self.rows is None else found[self.rows]


class Decoder:
    """A decoder: `hidden` gives a vector for each token, `logits` what may come after it."""

    def __init__(self, config: ModelConfig, top: Weights, layers: Sequence[Weights]) -> None:
        self.config, self.top, self.layers = config, dict(top), [dict(one) for one in layers]

    def __call__(self, ids: fg.Tensor) -> fg.Tensor:
        """Logits for every token of whole texts, (batch, length, vocabulary); nothing is kept."""
        if "places" in self.top and ids.shape[1] > self.config.context:
            raise ArgumentError(
                f"{ids.shape[1]} tokens are beyond the {self.config.context} places of the model",
                "give shorter texts",
            )
        places = fg.broadcast_to(fg.arange(ids.shape[1])[None], ids.shape)
        return self.logits(self.hidden(ids, places))

    def hidden(
        self,
        ids: fg.Tensor,
        places: fg.Tensor,
        cache: Cache | None = None,
        is_long: fg.Tensor | None = None,
    ) -> fg.Tensor:
        """A vector for each token, which has seen the tokens before it, here and in the cache.

        Without a cache `is_long` says which texts are beyond the original context; None: all that
        reach it.
        """
        c = self.config
        h = self.top["embed"].rows(ids) * c.embedding_scale
        if "places" in self.top:
            h = h + self.top["places"].rows(fg.clip(places, 0, c.context - 1))
        h = h.contiguous()  # tokens are looked up once, before a cache is written
        long = is_long if cache is None else cache.is_long
        both = {c.rope, c.local_rope} - {None}
        ropes = {rope: angles(rope, places, long) for rope in both if rope}
        for number, w in enumerate(self.layers):
            rope = c.local_rope if c.local_rope and c.windows[number] else c.rope
            rope = None if number in c.nope else rope
            x = self._norm(h, w, "norm1")
            turn = ropes[rope] if rope else None
            x = self._attention(x, w, number, places, rope, turn, cache)
            h = h + self._norm(x, w, "norm1_post")
            x = self._norm(h, w, "norm2")
            x = self._mixture(x, w, c.experts) if "router" in w else self._network(x, w)
            h = h + self._norm(x, w, "norm2_post")
        return self._norm(h, self.top, "norm")

    def logits(self, h: fg.Tensor) -> fg.Tensor:
        """For each token of the vocabulary how likely it comes next, as a logit."""
        found: fg.Tensor = self.top.get("head", self.top["embed"])(h)
        return _capped(found, self.config.logit_cap)

    def _norm(self, x: fg.Tensor, w: Weights, name: str, shift: str = "bias") -> fg.Tensor:
        """The norm of this name, if there is one."""
        if name not in w:
            return x
        weight, eps = w[name].astype(fg.float32), self.config.eps
        if self.config.norm == "layer":
            return fg.layer_norm(x, (x.shape[-1],), weight, w[f"{name}.{shift}"], eps)
        scaled = x * fg.rsqrt((x * x).mean(axis=-1, keepdims=True) + eps)
        found: fg.Tensor = scaled * (1 + weight if self.config.norm == "rms1" else weight)
        return found

    def _attention(
        self,
        x: fg.Tensor,
        w: Weights,
        number: int,
        places: fg.Tensor,
        rope: Rope | None,
        turn: Turn | None,
        cache: Cache | None,
    ) -> fg.Tensor:
        c = self.config
        project = self._latent if c.latent else self._project
        q, k, v = project(x, w, rope, turn)
        if cache is not None:
            k, v = (kept.astype(fg.float32) for kept in cache.put(number, k, v))
        others = fg.arange(k.shape[2]) if cache is not None else places[:, None]
        mask = others <= places[:, :, None]
        if c.windows[number]:
            mask = mask & (others > places[:, :, None] - c.windows[number])
        batch, heads, length, size = q.shape
        shared = k.shape[1]
        q = q.reshape(batch, shared, heads // shared, length, size)
        scale = c.scale / (number + 1) if c.is_scaled_by_layer else c.scale
        scores = _capped(q @ k[:, :, None].mT * scale, c.score_cap)
        weights = fg.softmax(fg.where(mask[:, None, None], scores, -fg.inf), axis=-1)
        seen = (weights @ v[:, :, None]).reshape(batch, heads, length, v.shape[-1])
        if c.latent:  # from the short vector to each head's values
            seen = seen @ self._latent_parts(w)[1].mT
        found: fg.Tensor = w["o"](seen.permute(0, 2, 1, 3).reshape(batch, length, -1))
        return found

    def _project(
        self, x: fg.Tensor, w: Weights, rope: Rope | None, turn: Turn | None
    ) -> tuple[fg.Tensor, fg.Tensor, fg.Tensor]:
        """Queries, keys and values, (batch, heads, length, size)."""
        c, (batch, length, _) = self.config, x.shape
        if "qkv" in w:
            sizes = (c.heads, c.kv_heads, c.kv_heads)
            q, k, v = _parts(w["qkv"](x), [n * c.head_size for n in sizes])
        else:
            q, k, v = w["q"](x), w["k"](x), w["v"](x)

        def heads(y: fg.Tensor, norm: str = "") -> fg.Tensor:
            whole = norm in w and w[norm].shape[0] != c.head_size  # over all heads at once
            y = self._norm(y, w, norm) if whole else y
            y = y.reshape(batch, length, -1, c.head_size)
            y = y if whole else self._norm(y, w, norm)
            y = y.permute(0, 2, 1, 3)
            return rotated(rope, y, turn) if norm and rope and turn else y

        return heads(q, "q_norm"), heads(k, "k_norm"), heads(v)

    def _latent(
        self, x: fg.Tensor, w: Weights, rope: Rope | None, turn: Turn | None
    ) -> tuple[fg.Tensor, fg.Tensor, fg.Tensor]:
        """Multi-head latent attention: queries are brought to the short vector's space, so that it
        is the key and the value of one head that all share, and nothing else is kept."""
        c, latent, (batch, length, _) = self.config, self.config.latent, x.shape
        assert latent is not None and rope is not None and turn is not None
        q = w["q"](x) if "q" in w else w["q_b"](self._norm(w["q_a"](x), w, "q_a_norm"))
        q = q.reshape(batch, length, c.heads, -1).permute(0, 2, 1, 3)
        plain, turning = _parts(q, [latent.plain, latent.turning])
        short, key = _parts(w["kv_a"](x), [latent.rank, latent.turning])
        short = self._norm(short, w, "kv_a_norm")[:, None]
        key = rotated(rope, key[:, None], turn)
        q = fg.concat([plain @ self._latent_parts(w)[0], rotated(rope, turning, turn)], axis=-1)
        return q, fg.concat([short, key], axis=-1), short

    def _latent_parts(self, w: Weights) -> tuple[fg.Tensor, fg.Tensor]:
        """From the short vector to keys and to values, (heads, size, rank) each."""
        latent = self.config.latent
        assert latent is not None
        if "kv_b" not in w:  # newer GGUF files have them apart
            return w["k_b"].values().mT, w["v_b"].values()
        both = w["kv_b"].values().reshape(self.config.heads, -1, latent.rank)
        return both[:, : latent.plain], both[:, latent.plain :]

    def _network(self, x: fg.Tensor, w: Weights, of: str = "") -> fg.Tensor:
        """down(act(gate(x)) * up(x)), or down(act(up(x))) without a gate."""
        act = ACTIVATIONS[self.config.activation]
        if of + "gate_up" in w:
            both = w[of + "gate_up"](x)
            gate, up = _parts(both, [both.shape[-1] // 2] * 2)
            found = act(gate) * up
        elif of + "gate" in w:
            pairs = zip(w[of + "gate"].pieces(x), w[of + "up"].pieces(x), strict=True)
            parts = [act(gate(x)) * up(x) for gate, up in pairs]
            if len(parts) > 1:  # as few bytes as the next product reads
                parts = [fg.concat([w[of + "down"].met(part) for part in parts], axis=-1)]
            found = parts[0]
        else:
            found = act(w[of + "up"](x))
        result: fg.Tensor = w[of + "down"](found)
        return result

    def _mixture(self, x: fg.Tensor, w: Weights, experts: Experts | None) -> fg.Tensor:
        """The networks of the experts that a router chooses for each token, weighted, and the one
        that all share. Few tokens read the experts that they use, many all of them."""
        assert experts is not None
        batch, length, width = x.shape
        flat = x.reshape(-1, width)
        share, chosen = _routed(w["router"](flat), w.get("router_bias"), experts)
        if flat.shape[0] * experts.used < experts.count:
            rows = flat[:, None, None]  # (tokens, 1, 1, width) for (tokens, used, ...) matrices
            some = {name: _taken(w["experts." + name], chosen) for name in _names(w)}
            out = self._network(rows, some)[:, :, 0]
        else:
            some = {name: w["experts." + name] for name in _names(w)}
            every = self._network(flat[None], some).permute(1, 0, 2)  # (tokens, experts, width)
            out = fg.take_along_axis(every, fg.broadcast_to(
                chosen[:, :, None], (*chosen.shape, width)), axis=1)  # fmt: skip
        found = (out * share[:, :, None]).sum(axis=1).reshape(batch, length, width)
        if "shared.down" in w:
            shared = self._network(x, w, "shared.")
            found = found + (
                shared * fg.sigmoid(w["shared_gate"](x)) if "shared_gate" in w else shared
            )
        return found


def _names(w: Weights) -> list[str]:
    return [n for n in ("gate_up", "gate", "up", "down") if "experts." + n in w]


def _taken(matrix: Matrix, chosen: fg.Tensor) -> Matrix:
    return replace(matrix, data=matrix.data[chosen], bias=None)


def _parts(x: fg.Tensor, sizes: list[int]) -> list[fg.Tensor]:
    """The last axis in parts."""
    found, start = [], 0
    for size in sizes:
        found.append(x[..., start : start + size])
        start += size
    return found


def _capped(x: fg.Tensor, cap: float) -> fg.Tensor:
    """Numbers that approach a cap smoothly; all of them if there is none."""
    return fg.tanh(x / cap) * cap if cap else x


def _routed(
    logits: fg.Tensor, bias: fg.Tensor | None, experts: Experts
) -> tuple[fg.Tensor, fg.Tensor]:
    """The weights and the numbers of the experts of each token, (tokens, used)."""
    scores = fg.sigmoid(logits) if experts.scores == "sigmoid" else fg.softmax(logits, axis=-1)
    choice = scores if bias is None else scores + bias
    if experts.groups > 1:  # only the best groups of experts may be chosen from
        parts = choice.reshape(-1, experts.groups, experts.count // experts.groups)
        if experts.scores == "sigmoid":
            best = fg.topk(parts, 2, axis=-1)[0].sum(axis=-1)
        else:
            best = parts.max(axis=-1)
        least = fg.topk(best, experts.groups_used, axis=-1)[0][:, -1:]
        choice = fg.where((best >= least)[:, :, None], parts, -fg.inf).reshape(*choice.shape)
    chosen = fg.clip(fg.topk(choice, experts.used, axis=-1)[1], 0, experts.count - 1)
    share = fg.take_along_axis(scores, chosen, axis=-1)
    if experts.normalised:
        share = share / (share.sum(axis=-1, keepdims=True) + 1e-20)
    return share * experts.scale, chosen
