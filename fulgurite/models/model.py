"""A model: configuration, decoder and tokeniser of one file or folder.

In: a path. Out: a `Model`. Weights are memory-mapped; the tokeniser and the chat template are read
when somebody asks for them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

from ..errors import ArgumentError
from ..io.files import Path, path_of
from ..io.gguf import GgufFile
from .config import ModelConfig
from .decoder import Decoder
from .quantized import Matrix
from .weights import load_gguf, load_hf


class Model:
    """A language model: `config`, `decoder`, `tokenizer` and `template` (the chat template)."""

    def __init__(
        self, config: ModelConfig, decoder: Decoder, path: str = "", file: GgufFile | None = None
    ) -> None:
        self.config, self.decoder, self.path, self.file = config, decoder, path, file
        self.runs: dict[int, dict[int, Any]] = {}  # by slots and by tokens: captured functions

    @cached_property
    def tokenizer(self) -> Any:
        """The tokeniser of the file or folder; an error if it has none."""
        from .tokens import from_folder, from_gguf

        return from_gguf(self.file) if self.file is not None else from_folder(self.path)

    @cached_property
    def template(self) -> str | None:
        """The chat template, Jinja as the file has it, or None."""
        from .tokens import template_of

        return template_of(self.path, self.file)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, with those that begin one."""
        found: list[int] = self.tokenizer.encode(text)
        return found

    def text_stream(self) -> Callable[[int | None], str]:
        """A function that turns tokens into text one by one; None asks for what is left."""
        try:
            tokenizer = self.tokenizer
        except ArgumentError:
            return lambda _: ""  # tokens without text
        found: Callable[[int | None], str] = tokenizer.stream()
        return found

    def __repr__(self) -> str:
        c = self.config
        return f"Model({c.architecture}, {c.layers} layers of {c.width}, {self.path!r})"


def load(path: Path, *, activation_bytes: int = 1) -> Model:
    """A model from a Hugging Face folder (config.json, safetensors) or a GGUF file.

    Nothing is copied or unpacked: weights are the file's own memory, shared between processes.
    Products of packed weights with few tokens are ones of whole numbers: what is multiplied with
    weights is rounded to `activation_bytes` bytes and a scale. 1 is quickest and as good as
    llama.cpp, which does the same; many tokens that meet packed or bfloat16 weights are bfloat16
    then. 3 bytes are as good as float32. Weights of float32 and float16 meet float32 always.
    """
    if activation_bytes not in (1, 2, 3):
        raise ArgumentError(f"activation_bytes is {activation_bytes!r}", "give 1, 2 or 3")
    model = _loaded(path)
    for part in (model.decoder.top, *model.decoder.layers):
        for key, matrix in part.items():
            if isinstance(matrix, Matrix):
                part[key] = replace(matrix, activation_bytes=activation_bytes)
    return model


def _loaded(path: Path) -> Model:
    name = path_of(path)
    if os.path.isdir(name):
        config, top, layers = load_hf(name)
        return Model(config, Decoder(config, top, layers), name)
    file, config, top, layers = load_gguf(name)
    return Model(config, Decoder(config, top, layers), name, file)
