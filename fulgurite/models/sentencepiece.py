"""`tokenizer.model`: SentencePiece's own file, read without its library.

In: the bytes of a `ModelProto` (Protocol Buffers). Out: the same fields that GGUF has of such a
tokeniser, so that one code builds both. The invariant: every length is compared with the bytes that
are left before it is used, and what is no such message is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from ..io.files import Refusal

MODELS = {1: "t5", 2: "llama"}  # unigram and BPE, as GGUF calls them
NORMAL = 1


def sentencepiece_fields(data: bytes) -> dict[str, Any]:
    """The tokeniser's fields by their names in GGUF, and how it normalises text."""
    tokens: list[str] = []
    scores: list[float] = []
    kinds: list[int] = []
    trainer: dict[int, Any] = {}
    normal: dict[int, Any] = {}
    for number, value in _fields(data):
        if number == 1:
            piece = dict(_fields(_bytes(value)))
            tokens.append(_bytes(piece.get(1, b"")).decode("utf-8", "replace"))
            scores.append(_float(piece.get(2, b"\0\0\0\0")))
            kinds.append(piece.get(3, NORMAL))
        elif number in (2, 3):
            (trainer if number == 2 else normal).update(_fields(_bytes(value)))
    model = trainer.get(3, 1)
    if model not in MODELS:
        raise Refusal(f"its kind is {str(model)[:20]}, neither unigram (1) nor BPE (2)")
    found = {
        "model": MODELS[model], "tokens": tokens, "scores": scores, "token_type": kinds,
        "unknown_token_id": trainer.get(40, 0), "add_space_prefix": bool(normal.get(3, 1)),
        "precompiled_charsmap": _bytes(normal.get(2, b"")),
        "remove_extra_whitespaces": bool(normal.get(4, 1)),
    }  # fmt: skip
    bos = trainer.get(41, 1)
    if bos < len(tokens):  # -1 is written as a large number
        found["bos_token_id"] = bos
    return found


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise Refusal("it is no message of SentencePiece")
    return value


def _float(value: Any) -> float:
    if not isinstance(value, bytes) or len(value) != 4:
        raise Refusal("a score in it is no number")
    found: float = struct.unpack("<f", value)[0]
    return found


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The numbers and values of a message's fields: whole numbers, or bytes."""
    at = 0
    while at < len(data):
        tag, at = _whole(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = _whole(data, at)
            yield number, value
            continue
        size = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            size, at = _whole(data, at)
        if size is None or size > len(data) - at:
            raise Refusal("it is no message of SentencePiece, or it ends too early")
        yield number, data[at : at + size]
        at += size


def _whole(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits in each byte, and the place after it."""
    found = 0
    for place in range(10):
        if at + place >= len(data):
            break
        byte = data[at + place]
        found |= (byte & 127) << (7 * place)
        if byte < 128:
            return found, at + place + 1
    raise Refusal("it is no message of SentencePiece, or it ends too early")
