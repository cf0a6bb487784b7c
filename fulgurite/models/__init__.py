"""Language models in plain array code: load a file, and generate text.

`model = fulgurite.models.load(path)` reads a Hugging Face folder or a GGUF file; `model.config`,
`model.decoder` and `model.tokenizer` are its parts. `Generator(model).generate(prompt, options)`
gives tokens one by one. `Batch(model, slots)` is what a server is made of: texts join with
`prefill(slot, ids)` (or chunk by chunk: `chunks`, `read`), go on with `step({slot: token})`, which
gives logits by slot, and leave with `release(slot)`; `truncate(slot, length)` goes back.
`Sampler(options, prompt).choose(logits, allowed)` chooses a token; `Text` turns tokens into text
without half letters or stop strings. `decoder(ids)` gives logits of whole texts and is
differentiable; its weights are `decoder.top` and `decoder.layers`, dicts of `Matrix` (callable: a
wrapper with the same call can take one's place) and of tensors for norms.
"""

from __future__ import annotations

from .._hints import surface as _surface
from ..io.files import FileError
from .config import ModelConfig
from .decoder import Cache, Decoder
from .encoder import Encoder, load_encoder
from .generate import Batch, Generator, Text, Token
from .model import Model, load
from .quantize import quantize
from .quantized import Matrix
from .sampling import Sampler, SamplingOptions
from .vision import Clip, ViT, load_vision
from .whisper import Whisper, load_whisper

__all__ = [
    "Batch", "Cache", "Clip", "Decoder", "Encoder", "FileError", "Generator", "Matrix", "Model",
    "ModelConfig", "Sampler", "SamplingOptions", "Text", "Token", "ViT", "Whisper", "load",
    "load_encoder", "load_vision", "load_whisper", "quantize",
]  # fmt: skip

__getattr__, __dir__ = _surface(__name__)
