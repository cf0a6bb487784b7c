"""Tokenisers through the `tokenizers` package: from `tokenizer.json`, or built from GGUF metadata.

In: a folder or a `GgufFile`. Out: a `Tokenizer`. GGUF has byte-level BPE (`gpt2`), SentencePiece's
BPE (`llama`) and unigram (`t5`); each is put together from tokens, scores and merges of the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..errors import ArgumentError
from ..io.files import Refusal, reading
from ..io.gguf import GgufFile
from .fields import Fields
from .weights import read_json

REMEMBERED = 1 << 14  # pairs of tokens whose text is
MOST_HELD = 8  # tokens without a whole letter; one has four bytes at most


def _library() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise ArgumentError(
            "text needs the package 'tokenizers'", "pip install tokenizers (it is in the extra llm)"
        ) from None
    return tokenizers


class Tokenizer:
    """Text to tokens and back."""

    def __init__(self, inner: Any, bos: int | None = None) -> None:
        self.inner, self.bos = inner, bos
        self.few = lru_cache(REMEMBERED)(lambda ids: self.decode(list(ids)))  # the text of a tuple

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The tokens of a text; with `special`, those that begin a text too."""
        ids: list[int] = self.inner.encode(text, add_special_tokens=special).ids
        if special and self.bos is not None and ids[:1] != [self.bos]:
            ids = [self.bos, *ids]
        return ids

    def decode(self, ids: list[int], skip_special: bool = True) -> str:
        """The text of tokens."""
        found: str = self.inner.decode(list(ids), skip_special_tokens=skip_special)
        return found

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return int(self.inner.get_vocab_size())

    def stream(self) -> Callable[[int | None], str]:
        """A function that turns tokens into text one by one; None asks for what is left.

        Tokens may hold parts of a letter: text comes once it is whole. What a token adds is the
        difference of two texts that begin at the same token, since the first may lose a space.
        Bytes that become no letter are given as they are after a while.
        """
        held: list[int] = []  # those of the text that was given last, and those after it
        given = [0]  # how many of the former there are

        def add(token: int | None) -> str:
            if token is not None:
                held.append(token)
            before, now = self.few(tuple(held[: given[0]])), self.few(tuple(held))
            if token is not None and now.endswith("�") and len(held) - given[0] < MOST_HELD:
                return ""
            del held[: given[0]]
            given[0] = len(held)
            return now[len(before) :]

        return add


def from_folder(path: str) -> Tokenizer:
    """The tokeniser of a folder's `tokenizer.json`."""
    name = os.path.join(path, "tokenizer.json")
    if not path or not os.path.exists(name):
        raise ArgumentError(f"{path!r} has no tokenizer.json", "put it beside config.json")

    def read(name: str) -> Tokenizer:
        with open(name, encoding="utf-8") as file:
            text = file.read()
        return Tokenizer(_built(lambda library: library.Tokenizer.from_str(text)))

    return reading(name, "a tokenizer.json", read)


def _built(make: Callable[[Any], Any]) -> Any:
    """What the library makes; whatever it does not like is a refusal."""
    library = _library()
    try:
        return make(library)
    except Exception as error:  # it raises plain Exception
        raise Refusal(f"its tokeniser is no good: {str(error)[:200]}") from None
    except BaseException as error:  # a panic of its native code
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise Refusal(f"its tokeniser is no good: {str(error)[:200]}") from None


def template_of(path: str, file: GgufFile | None) -> str | None:
    """The chat template of a file or folder."""
    if file is not None:
        found = file.metadata.get("tokenizer.chat_template")
        return found if isinstance(found, str) else None
    plain = os.path.join(path, "chat_template.jinja")
    if os.path.exists(plain):
        with open(plain, encoding="utf-8") as text:
            return text.read()
    name = os.path.join(path, "tokenizer_config.json")
    if not os.path.exists(name):
        return None
    data = read_json(name)
    found = data.get("chat_template") if isinstance(data, dict) else None
    if isinstance(found, list):  # several by name
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


# --- from GGUF ---------------------------------------------------------------------------------

NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {  # how text is cut before merges, by the file's name of it
    "llama-bpe": _LLAMA3, "llama3": _LLAMA3, "dbrx": _LLAMA3,
    "qwen2": _LLAMA3.replace("{1,3}", ""),
    "olmo": None, "gpt-2": None, "default": None, "gpt2": None,
    "smollm": "digits",
}  # fmt: skip


def from_gguf(file: GgufFile) -> Tokenizer:
    """The tokeniser that a file's metadata describes."""
    return reading(file.path, "a GGUF file", lambda _: _from_metadata(file.metadata))


def _from_metadata(metadata: dict[str, Any]) -> Tokenizer:
    f = Fields({k.removeprefix("tokenizer.ggml."): v for k, v in metadata.items()
                if k.startswith("tokenizer.ggml.")}, "tokenizer.ggml.")  # fmt: skip
    kind = f.text("model")
    tokens = f.items("tokens")
    if not tokens or not all(isinstance(token, str) for token in tokens):
        raise Refusal("the field 'tokenizer.ggml.tokens' has no tokens")
    kinds = f.items("token_type") or [NORMAL] * len(tokens)
    if len(kinds) != len(tokens):
        raise Refusal(
            f"'tokenizer.ggml.token_type' has {len(kinds)} entries for {len(tokens)} tokens"
        )
    makers = {"gpt2": _byte_level, "llama": _sentencepiece, "t5": _unigram}
    if kind not in makers:
        raise Refusal(f"its tokeniser {kind[:50]!r} is not known", f"known are {', '.join(makers)}")
    inner = _built(lambda library: makers[kind](library, f, tokens))
    _add_whole(inner, tokens, kinds)
    bos = f.token("bos_token_id")
    wants = f.flag("add_bos_token", kind == "llama")
    if wants and bos is not None and bos >= len(tokens):
        raise Refusal(f"its first token is {bos}, of {len(tokens)} tokens")
    return Tokenizer(inner, bos if wants else None)


def _add_whole(inner: Any, tokens: list[str], kinds: list[Any]) -> None:
    """Tokens that are never cut: those of control, which text has not, and those of users."""
    library = _library()
    for place, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if kind in (CONTROL, USER) and inner.token_to_id(token) == place:
            added = library.AddedToken(token, normalized=False, special=kind == CONTROL)
            (inner.add_special_tokens if kind == CONTROL else inner.add_tokens)([added])


def _vocabulary(tokens: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for place, token in enumerate(tokens):
        found.setdefault(token, place)
    return found


def _byte_level(library: Any, f: Fields, tokens: list[str]) -> Any:
    """BPE over bytes that are written as letters, as GPT-2 has it."""
    merges = []
    for merge in f.items("merges") or []:
        left, _, right = str(merge).partition(" ")
        merges.append((left, right))
    inner = library.Tokenizer(
        library.models.BPE(
            _vocabulary(tokens), merges, ignore_merges=f.text("pre", "") == "llama-bpe"
        )
    )
    pre = f.text("pre", "default")
    if pre not in SPLITS:
        raise Refusal(f"its pre-tokeniser {pre[:50]!r} is not known", ", ".join(SPLITS))
    cut, parts = SPLITS[pre], library.pre_tokenizers
    if cut is None:
        inner.pre_tokenizer = parts.ByteLevel(add_prefix_space=False)
    else:
        first = parts.Digits(individual_digits=True) if cut == "digits" else parts.Split(
            library.Regex(cut), "isolated"
        )  # fmt: skip
        inner.pre_tokenizer = parts.Sequence(
            [first, parts.ByteLevel(add_prefix_space=False, use_regex=cut == "digits")]
        )
    inner.decoder = library.decoders.ByteLevel()
    return inner


def _scores(f: Fields, tokens: list[str]) -> tuple[float, ...]:
    return f.numbers("scores", len(tokens))


def _sentencepiece(library: Any, f: Fields, tokens: list[str]) -> Any:
    """SentencePiece's BPE: the pair whose whole has the best score is joined first."""
    scores, places = _scores(f, tokens), _vocabulary(tokens)
    merges = []
    for token, place in places.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in places and right in places:
                merges.append((-scores[place], place, places[left], places[right], left, right))
    merges.sort(key=lambda m: m[:4])
    unknown = f.whole("unknown_token_id", 0, least=0, most=len(tokens) - 1)
    inner = library.Tokenizer(
        library.models.BPE(
            places,
            [m[4:] for m in merges],
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    _spaces(library, inner, f.flag("add_space_prefix", True))
    return inner


def _unigram(library: Any, f: Fields, tokens: list[str]) -> Any:
    """SentencePiece's unigram model: the cut of a text with the best sum of scores."""
    unknown = f.whole("unknown_token_id", 0, least=0, most=len(tokens) - 1)
    pairs = list(zip(tokens, _scores(f, tokens), strict=True))
    inner = library.Tokenizer(library.models.Unigram(pairs, unknown, "<0x00>" in tokens))
    _spaces(library, inner, f.flag("add_space_prefix", True))
    return inner


def _spaces(library: Any, inner: Any, prefix: bool) -> None:
    """Spaces are written as ▁; bytes that no token has as <0x..>."""
    normal, decoders = library.normalizers, library.decoders
    steps = [normal.Prepend("▁")] if prefix else []
    inner.normalizer = normal.Sequence([*steps, normal.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    inner.decoder = decoders.Sequence([*parts, *([decoders.Strip(" ", 1, 0)] if prefix else [])])
