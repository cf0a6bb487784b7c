"""Whisper: speech to text, an encoder of sound and a decoder that looks at it.

In: a log-mel spectrogram (batch, bands, frames). Out: tokens of what was said. The decoder reads
the whole text for every token, padded to the model's own context: one plan, which is replayed.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

import fulgurite as fg

from ..core.op import Array
from ..io.files import Path, Refusal, path_of, reading
from .blocks import WHISPER, Scope, Sizes, attention, layer, opened
from .fields import Fields
from .weights import read_json


class Whisper:
    """`encode` sound, then `logits` of tokens that look at it, or `transcribe` at once."""

    def __init__(self, w: Scope, f: Fields) -> None:
        self.w = w.within("model." if "model.encoder.conv1.weight" in w else "")
        self.outer = w
        self.ears, self.mouth = Sizes.of(f, start="encoder"), Sizes.of(f, start="decoder")
        self.start, self.ends = f.token("decoder_start_token_id"), f.tokens("eos_token_id")
        self.frames = f.whole("max_source_positions", most=1 << 20) * 2
        self.bands = f.whole("num_mel_bins", most=1 << 12)
        self.context = f.whole("max_target_positions", most=1 << 20)
        self.never: list[int] = []  # tokens that are not chosen
        self.never_first: list[int] = []  # nor these as the first one
        self._encode: Any = fg.jit(self.encode)
        self._step: Any = fg.jit(self._next)

    def encode(self, sound: fg.Tensor) -> fg.Tensor:
        """A vector for every second frame, (batch, frames / 2, width)."""
        w, sizes = self.w.within("encoder."), self.ears
        if sound.shape[1:] != (self.bands, self.frames):
            raise Refusal(f"sound of {sound.shape[1:]}, not ({self.bands}, {self.frames})")
        conv = fg.nn.functional.conv1d
        x = fg.gelu(conv(sound, w["conv1.weight"], w["conv1.bias"], padding=1))
        x = fg.gelu(conv(x, w["conv2.weight"], w["conv2.bias"], stride=2, padding=1))
        x = x.mT + w["embed_positions.weight"]
        for n in range(sizes.layers):
            x = layer(w.within(f"layers.{n}."), WHISPER, sizes, x)
        return w.norm("layer_norm", x, sizes.eps)

    def logits(self, ids: fg.Tensor, heard: fg.Tensor) -> fg.Tensor:
        """What may come after each token, (batch, length, vocabulary)."""
        w, sizes, length = self.w.within("decoder."), self.mouth, ids.shape[1]
        x = w["embed_tokens.weight"][ids] + w["embed_positions.weight"][:length]
        places = fg.arange(length)
        mask = places <= places[:, None]
        for n in range(sizes.layers):
            part = w.within(f"layers.{n}.")

            def look(x: fg.Tensor, part: Scope = part) -> fg.Tensor:
                near = part.norm("encoder_attn_layer_norm", x, sizes.eps)
                q = part.linear("encoder_attn.q_proj", near)
                k, v = (part.linear(f"encoder_attn.{p}_proj", heard) for p in "kv")
                seen = attention(q, k, v, sizes.heads)
                return x + part.linear("encoder_attn.out_proj", seen)

            x = layer(part, WHISPER, sizes, x, mask, look)
        x = w.norm("layer_norm", x, sizes.eps)
        head = self.outer.get("proj_out.weight")
        return x @ (w["embed_tokens.weight"] if head is None else head).mT

    def _next(self, ids: fg.Tensor, heard: fg.Tensor, last: fg.Tensor) -> fg.Tensor:
        with fg.no_grad():
            return self.logits(ids, heard)[:, last][0]

    def transcribe(self, sound: Array, prompt: tuple[int, ...] = (), tokens: int = 0) -> list[int]:
        """The most likely tokens of one sound (bands, frames), after those of the prompt."""
        with fg.no_grad():
            heard = self._encode(fg.Tensor(sound[None]))
        ids = list(prompt) or ([] if self.start is None else [self.start])
        if not ids:
            raise Refusal("the model does not say with which token a text begins")
        begun, room = len(ids), self.context if not tokens else min(self.context, len(ids) + tokens)
        filled = np.zeros((1, self.context), np.int32)
        filled[0, :begun] = ids
        while len(ids) < room:
            at = np.array(len(ids) - 1, np.int32)
            logits = self._step(filled, heard, at).numpy().copy()
            logits[self.never + (self.never_first if len(ids) == begun else [])] = -np.inf
            chosen = int(logits.argmax())
            if chosen in self.ends:
                break
            filled[0, len(ids)] = chosen
            ids.append(chosen)
        return ids[begun:]


def load_whisper(path: Path) -> Whisper:
    """A Whisper model from a Hugging Face folder."""
    fields, tensors = opened(path)

    def read(_: str) -> Whisper:
        kind = fields.text("model_type")
        if kind != "whisper":
            raise Refusal(f"its architecture is {kind[:50]!r}, not whisper")
        return Whisper(Scope(tensors), fields)

    found = reading(path, "a folder with a model", read)
    name = os.path.join(path_of(path), "generation_config.json")
    if os.path.exists(name):
        data = read_json(name)
        count = fields.whole("vocab_size")
        found.never, found.never_first = reading(
            name, "a generation_config.json", lambda _: _suppressed(Fields(data), count)
        )
    return found


def _suppressed(f: Fields, vocabulary: int) -> tuple[list[int], list[int]]:
    """Tokens that are not chosen, and those that are not chosen first: signs that nobody says."""
    never, first = (f.tokens(f"{name}suppress_tokens") for name in ("", "begin_"))
    return [n for n in never if n < vocabulary], [n for n in first if n < vocabulary]
