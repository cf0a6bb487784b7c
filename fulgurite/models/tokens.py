"""Tokenisers through the `tokenizers` package: from a folder's files, or built from GGUF metadata.

In: a folder or a `GgufFile`. Out: a `Tokenizer`. A folder has `tokenizer.json`, or else what it is
made from: `tokenizer.model` of SentencePiece, or `vocab.json` and `merges.txt`. GGUF has byte-level
BPE (`gpt2`), SentencePiece's BPE (`llama`) and unigram (`t5`); each is put together from tokens,
scores and merges.
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
LARGEST = 1 << 28  # bytes of a file that describes one
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
    """The tokeniser of a folder: `tokenizer.json`, or the files of the model's first library."""
    name = os.path.join(path, "tokenizer.json")
    if path and not os.path.exists(name):
        for file, of in (("tokenizer.model", _of_pieces), ("merges.txt", _of_merges)):
            if os.path.exists(os.path.join(path, file)):
                return reading(os.path.join(path, file), "a tokeniser", of)
    if not path or not os.path.exists(name):
        raise ArgumentError(
            f"{path!r} has no tokenizer.json",
            "put it beside config.json (or tokenizer.model, or vocab.json and merges.txt)",
        )

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


def _of_pieces(name: str) -> Tokenizer:
    """That of SentencePiece's file, with the tokens that a folder adds to it."""
    from .sentencepiece import sentencepiece_fields

    with open(name, "rb") as file:
        fields = sentencepiece_fields(file.read(LARGEST + 1))
    return _with_added(fields, os.path.dirname(name), begins=True)


def _of_merges(name: str) -> Tokenizer:
    """Byte-level BPE of `vocab.json` and `merges.txt`."""
    folder = os.path.dirname(name)
    places = read_json(os.path.join(folder, "vocab.json"))
    if not isinstance(places, dict) or sorted(map(str, places.values())) != sorted(
        map(str, range(len(places)))
    ):
        raise Refusal("the tokens of 'vocab.json' are not numbered from 0")
    with open(name, encoding="utf-8") as file:
        lines = file.read(LARGEST).splitlines()
    kind = _settings(folder).get("tokenizer_class", "GPT2Tokenizer")
    cut = BY_CLASS.get(str(kind).removesuffix("Fast"))
    if cut is None:
        raise Refusal(f"its tokeniser {str(kind)[:50]!r} is not known", ", ".join(BY_CLASS))
    merges = [line for line in lines if line and not line.startswith("#version")]
    fields = {"model": "gpt2", "tokens": sorted(places, key=places.__getitem__), "merges": merges,
              "pre": cut}  # fmt: skip
    return _with_added(fields, folder, begins=False)


def _settings(folder: str) -> dict[str, Any]:
    """What `tokenizer_config.json` says; nothing if there is none."""
    name = os.path.join(folder, "tokenizer_config.json")
    found = read_json(name) if os.path.exists(name) else {}
    return found if isinstance(found, dict) else {}


def _with_added(fields: dict[str, Any], folder: str, begins: bool) -> Tokenizer:
    """A tokeniser of fields, and the tokens that `tokenizer_config.json` adds behind or marks."""
    settings = _settings(folder)
    added = settings.get("added_tokens_decoder")
    given = Fields({} if added is None else added, "added_tokens_decoder.")
    tokens, kinds = list(fields["tokens"]), list(fields.get("token_type") or [])
    kinds += [NORMAL] * (len(tokens) - len(kinds))
    scores = list(fields.get("scores") or [])
    for key in sorted(given.data, key=lambda k: int(k) if str(k).isdecimal() else -1):
        one = given.part(key)
        text, place = one.text("content"), int(key) if str(key).isdecimal() else -1
        if not 0 <= place <= len(tokens):
            raise Refusal(f"the added token {text[:50]!r} has the number {str(key)[:20]}")
        if place == len(tokens):
            tokens.append(text)
            kinds.append(NORMAL)
            scores.append(0.0)
        if tokens[place] == text and kinds[place] in (NORMAL, USER):
            kinds[place] = CONTROL if one.flag("special", False) else USER
    known = fields | {"tokens": tokens, "token_type": kinds, "scores": scores[: len(tokens)],
                      "add_bos_token": settings.get("add_bos_token", begins)}  # fmt: skip
    return _from_metadata({f"tokenizer.ggml.{name}": value for name, value in known.items()})


def read_text(path: str) -> str:
    """The text of a chat template's file."""

    def read(name: str) -> str:
        with open(name, encoding="utf-8") as file:
            try:
                return file.read()
            except UnicodeDecodeError:
                raise Refusal("it is not UTF-8", "give a chat template as UTF-8") from None

    return reading(path, "a chat template", read)


def template_of(path: str, file: GgufFile | None) -> str | None:
    """The chat template of a file or folder."""
    if file is not None:
        found = file.metadata.get("tokenizer.chat_template")
        return found if isinstance(found, str) else None
    plain = os.path.join(path, "chat_template.jinja")
    if os.path.exists(plain):
        return read_text(plain)
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
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK3 = (  # one after the other
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_CASED = (  # letters with upper and lower case, without some scripts and those of mathematics
    r"[\p{Lu}\p{Ll}\p{Lt}&&[^"
    "\u0560-\u0588\u10d0-\u10ff\u2d00-\u2d2d\ua790-\uab68"
    "\U00010500-\U000105bf\U00010d50-\U00010d85\U00016e40-\U00016e7f\U0001d400-\U0001dfff]]"
)
_DEEPSEEK1 = (  # one after the other
    "[\r\n]",
    rf"\s?{_CASED}+",
    "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
    r"\s+$",
    "[一-龥\u0800-一가-\ud7ff]+",
    r"\p{N}+",
)
_DEEPSEEK_CODER = ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥\u0800-一가-\ud7ff]+", r"\p{N}")
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# a word that is a token is not cut, and a text begins with its own token
WHOLE = ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "tekken")
BY_CLASS = {"GPT2Tokenizer": "gpt-2", "Qwen2Tokenizer": "qwen2"}  # of folders without more
# how text is cut before merges, by the file's name of it
SPLITS: dict[str, str | tuple[str, ...] | None] = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), _LLAMA3.replace("{1,3}", "")),
    "tekken": _TEKKEN, "gpt-4o": _GPT4O, "deepseek-v3": _DEEPSEEK3, "deepseek-llm": _DEEPSEEK1,
    "deepseek-coder": _DEEPSEEK_CODER,
    **dict.fromkeys(("olmo", "gpt-2", "default", "gpt2", "phi-2"), None),
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
    begins = kind == "llama" or (kind == "gpt2" and f.text("pre", "") in WHOLE)
    wants = f.flag("add_bos_token", begins)  # which files of Llama 3 do not say
    if wants and bos is not None and bos >= len(tokens):
        raise Refusal(f"its first token is {bos}, of {len(tokens)} tokens")
    return Tokenizer(inner, bos if wants else None)


def _add_whole(inner: Any, tokens: list[str], kinds: list[Any]) -> None:
    """Tokens that are never cut: those of control, which text has not, and those of users."""
    library = _library()
    found: dict[int, list[Any]] = {CONTROL: [], USER: []}
    for place, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if kind in found and inner.token_to_id(token) == place:
            added = library.AddedToken(token, normalized=False, special=kind == CONTROL)
            found[kind].append(added)
    inner.add_special_tokens(found[CONTROL])  # at once: each call makes the search for all anew
    inner.add_tokens(found[USER])


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
        library.models.BPE(_vocabulary(tokens), merges, ignore_merges=f.text("pre", "") in WHOLE)
    )
    pre = f.text("pre", "default")
    if pre not in SPLITS:
        raise Refusal(f"its pre-tokeniser {pre[:50]!r} is not known", ", ".join(SPLITS))
    cut, parts = SPLITS[pre], library.pre_tokenizers
    if cut is None:
        inner.pre_tokenizer = parts.ByteLevel(add_prefix_space=False)
    else:
        cuts = (cut,) if isinstance(cut, str) else cut
        first = [parts.Digits(individual_digits=True)] if cut == "digits" else [
            parts.Split(library.Regex(one), "isolated") for one in cuts
        ]  # fmt: skip
        inner.pre_tokenizer = parts.Sequence(
            [*first, parts.ByteLevel(add_prefix_space=False, use_regex=cut == "digits")]
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
    _spaces(library, inner, f)
    return inner


def _unigram(library: Any, f: Fields, tokens: list[str]) -> Any:
    """SentencePiece's unigram model: the cut of a text with the best sum of scores."""
    unknown = f.whole("unknown_token_id", 0, least=0, most=len(tokens) - 1)
    pairs = list(zip(tokens, _scores(f, tokens), strict=True))
    inner = library.Tokenizer(library.models.Unigram(pairs, unknown, "<0x00>" in tokens))
    _spaces(library, inner, f)
    return inner


def _spaces(library: Any, inner: Any, f: Fields) -> None:
    """Spaces are written as ▁; bytes that no token has as <0x..>."""
    normal, decoders = library.normalizers, library.decoders
    prefix, steps = f.flag("add_space_prefix", True), []
    charsmap = f.data.get("precompiled_charsmap")
    if charsmap and isinstance(charsmap, bytes | list):
        steps.append(normal.Precompiled(bytes(charsmap)))
    if f.flag("remove_extra_whitespaces", False):
        steps += [normal.Strip(), normal.Replace(library.Regex(" {2,}"), " ")]
    steps += [normal.Prepend("▁")] if prefix else []
    inner.normalizer = normal.Sequence([*steps, normal.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    inner.decoder = decoders.Sequence([*parts, *([decoders.Strip(" ", 1, 0)] if prefix else [])])
