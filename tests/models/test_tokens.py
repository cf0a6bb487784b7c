"""Tokenisers: from tokenizer.json and from GGUF metadata, on hostile text, against references."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from fulgurite.errors import FulguriteError
from fulgurite.models import load
from fulgurite.models.tokens import _from_metadata, from_folder

from .samples import gguf_of, words
from .test_weights import rounds

pytestmark = pytest.mark.device("none")
tokenizers = pytest.importorskip("tokenizers")

TEXT = [
    "The quick brown fox jumps over the lazy dog.", "It's 12345 o'clock; we'll see!", "naïve café",
    "日本語のテキスト と 한국어", "def f(x):\n    return x ** 2\n\n\n",
    "emoji 👩\u200d👩\u200d👧 🏳\ufe0f\u200d🌈 done", "a\u0301 e\u0308",
]  # fmt: skip
HOSTILE = [
    "", " ", "  ", "\n", "\t\t \n ", " leading", "trailing ", "double  space   three",
    "\u200b\u200d\ufeff", "\u0000\u0001\u001f", "\U0010ffff\ue000", "ﷺ ﬁ ½ Ⅷ", "👩\u200d👧" * 3,
    "a" * 300, "é" * 50, "e\u0301" * 20, "한글" * 9, "١٢٣ 1234567890 1e-9", "<s></s><unk><0x41>",
    "▁▁ ▁x", "I'M i'm I'LL 'S's", "العربية עברית", "x\r\ny\rz\n", "\u3000wide\u00a0space",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", *TEXT,
]  # fmt: skip


def byte_level(pre: str = "gpt-2") -> tuple[Any, dict[str, Any]]:
    """A BPE of bytes that the library trained, and the GGUF metadata of it."""
    reference = tokenizers.Tokenizer(tokenizers.models.BPE())
    reference.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    reference.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, show_progress=False, special_tokens=["<|end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    reference.train_from_iterator(TEXT * 3, trainer)
    data = json.loads(reference.to_str())["model"]
    tokens = sorted(data["vocab"], key=data["vocab"].get)
    merges = [" ".join(m) if isinstance(m, list) else m for m in data["merges"]]
    kinds = [3 if token == "<|end|>" else 1 for token in tokens]
    return reference, {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.merges": merges, "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.eos_token_id": 0,
    }  # fmt: skip


def test_byte_level_bpe_of_gguf_is_the_library_s_own() -> None:
    reference, metadata = byte_level()
    ours = _from_metadata(metadata)
    for text in HOSTILE:
        assert ours.encode(text) == reference.encode(text).ids, text
        assert ours.decode(ours.encode(text)) == text
    assert ours.encode("a<|end|>b")[1] == ours.inner.token_to_id("<|end|>") == 0


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sentencepiece_models_of_gguf_are_sentencepiece_s_own(kind: str, tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    (tmp_path / "text.txt").write_text("\n".join(t.replace("\n", " ") for t in TEXT * 20))
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text.txt"), model_prefix=str(tmp_path / "m"), model_type=kind,
        vocab_size=420 if kind == "bpe" else 380, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False,
        character_coverage=1.0, minloglevel=2, hard_vocab_limit=False, bos_id=1, eos_id=2, unk_id=0,
    )  # fmt: skip
    reference = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    size = reference.get_piece_size()
    kinds = [
        2 if reference.is_unknown(n) else 3 if reference.is_control(n) else
        6 if reference.is_byte(n) else 1 for n in range(size)
    ]  # fmt: skip
    ours = _from_metadata(
        {
            "tokenizer.ggml.model": "llama" if kind == "bpe" else "t5",
            "tokenizer.ggml.tokens": [reference.id_to_piece(n) for n in range(size)],
            "tokenizer.ggml.scores": [float(reference.get_score(n)) for n in range(size)],
            "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.unknown_token_id": 0,
            "tokenizer.ggml.add_bos_token": False,
        }
    )
    for text in HOSTILE:
        if "<s>" in text or "\u0000" in text:  # control tokens in text; the reference ends at NUL
            continue
        assert ours.encode(text) == reference.encode(text), text
        assert ours.decode(ours.encode(text)) == reference.decode(reference.encode(text)), text


def test_text_streams_as_whole_letters_and_adds_up() -> None:
    _, metadata = byte_level()
    ours = _from_metadata(metadata)
    for text in HOSTILE:
        stream = ours.stream()
        pieces = [stream(n) for n in ours.encode(text)] + [stream(None)]
        assert "".join(pieces) == text and not any("\ufffd" in p for p in pieces)


def test_bytes_that_are_no_text_are_not_held_for_ever() -> None:
    _, metadata = byte_level()
    ours = _from_metadata(metadata)
    (part,) = [n for n in range(ours.vocabulary) if ours.inner.id_to_token(n) == "Ģ"]  # 0x80
    stream = ours.stream()
    pieces = [stream(part) for _ in range(50)]
    assert sum(map(bool, pieces)) == 6 and set("".join(pieces)) == {"\ufffd"}
    assert len("".join(pieces) + stream(None)) == 50
    text = "über €uro 😀"
    assert "".join([stream(n) for n in ours.encode(text)]) == text


def test_a_gguf_file_has_a_tokeniser_with_its_first_token(tmp_path: Path) -> None:
    model = load(gguf_of(tmp_path / "x.gguf"))
    ids = model.encode("the rest")
    assert ids[0] == 1 and model.tokenizer.decode(ids) == "the rest"
    assert model.tokenizer.inner.id_to_token(ids[1]) == "▁the"
    assert model.template is None


def test_damaged_tokenisers_are_refused_in_words(tmp_path: Path) -> None:
    reference, metadata = byte_level()
    raw = reference.to_str().encode()

    def write(bad: bytes) -> None:
        (tmp_path / "tokenizer.json").write_bytes(bad)
        from_folder(str(tmp_path)).encode("the text")

    assert rounds(100, raw, write, 5) > 30
    for number in range(100):
        pick = random.Random(number)
        bad = dict(metadata)
        key = pick.choice(list(bad))
        bad[key] = pick.choice([None, 3, "x", [], [1], ["a"], {"a": 1}, -1, 1e30])
        try:
            _from_metadata(bad).encode("the text")
        except (FulguriteError, Exception) as error:
            assert type(error).__name__ in ("Refusal", "FileError"), error


def wire(number: int, value: int | bytes | float) -> bytes:
    """A field of a message of Protocol Buffers."""

    def whole(n: int) -> bytes:
        found = bytearray()
        while n > 127:
            found.append(n & 127 | 128)
            n >>= 7
        return bytes([*found, n])

    if isinstance(value, float):
        return whole(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return whole(number << 3) + whole(value)
    return whole(number << 3 | 2) + whole(len(value)) + value


def pieces(kind: int = 2) -> bytes:
    """A `tokenizer.model` with the tokens of the samples."""
    found = b""
    for place, token in enumerate(words()):
        type_ = 2 if place == 0 else 3 if place < 3 else 6 if place < 259 else 1
        piece = wire(1, token.encode()) + wire(2, -float(place)) + wire(3, type_)
        found += wire(1, piece)
    return found + wire(2, wire(3, kind)) + wire(3, wire(3, 1) + wire(4, 0))


def test_a_folder_of_sentencepiece_has_the_tokeniser_of_its_gguf(tmp_path: Path) -> None:
    wanted = load(gguf_of(tmp_path / "m.gguf")).tokenizer
    (tmp_path / "tokenizer.model").write_bytes(pieces())
    ours = from_folder(str(tmp_path))
    for text in HOSTILE:
        assert ours.encode(text) == wanted.encode(text)
        assert ours.decode(ours.encode(text)) == wanted.decode(wanted.encode(text))
    count = len(words())
    added = {str(count): {"content": "<|im_start|>", "special": True},
             str(count + 1): {"content": "<tool>", "special": False}}  # fmt: skip
    settings = {"added_tokens_decoder": added, "add_bos_token": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ours = from_folder(str(tmp_path))
    assert ours.encode("<|im_start|><tool>") == [count, count + 1]
    assert ours.decode([count, count + 1]) == "<tool>"
    settings = {"added_tokens_decoder": {str(count + 7): {"content": "x"}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(FulguriteError, match="added token 'x'"):
        from_folder(str(tmp_path))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_file_of_sentencepiece_is_read_as_its_library_reads_it(kind: str, tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    for number, rule in enumerate(("identity", "nmt_nfkc")):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "text").write_text("\n".join(TEXT * 20))
        sentencepiece.SentencePieceTrainer.train(
            input=str(folder / "text"), model_prefix=str(folder / "tokenizer"), vocab_size=400,
            model_type=kind, byte_fallback=True, normalization_rule_name=rule,
            remove_extra_whitespaces=rule != "identity", minloglevel=2, hard_vocab_limit=False,
        )  # fmt: skip
        reference = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
        ours = from_folder(str(folder))
        for text in [*TEXT, " two  spaces ", "ﬁ ½ Ⅷ wide　space"]:
            assert ours.encode(text, special=False) == reference.encode(text), (rule, text)


def test_a_damaged_file_of_sentencepiece_is_refused(tmp_path: Path) -> None:
    whole, chance = pieces(), random.Random(3)
    (tmp_path / "tokenizer.model").write_bytes(pieces(4))
    with pytest.raises(FulguriteError, match="neither unigram"):
        from_folder(str(tmp_path))
    for _ in range(100):
        data = bytearray(whole[: chance.randrange(len(whole))] if chance.random() < 0.3 else whole)
        for _ in range(chance.randrange(1, 6)):
            if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
        (tmp_path / "tokenizer.model").write_bytes(data)
        try:
            from_folder(str(tmp_path)).encode("the hat")
        except FulguriteError as error:
            assert "tokenizer.model" in str(error)


def test_vocab_and_merges_are_a_tokeniser(tmp_path: Path) -> None:
    reference, metadata = byte_level()
    tokens, merges = (metadata[f"tokenizer.ggml.{name}"] for name in ("tokens", "merges"))
    (tmp_path / "vocab.json").write_text(json.dumps({t: n for n, t in enumerate(tokens)}))
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    added = {"0": {"content": "<|end|>", "special": True}}
    for kind in ("GPT2Tokenizer", "Qwen2Tokenizer"):
        settings = {"tokenizer_class": kind, "added_tokens_decoder": added}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        ours = from_folder(str(tmp_path))
        for text in HOSTILE:
            assert ours.decode(ours.encode(text)) == text
            assert kind[0] == "Q" or ours.encode(text) == reference.encode(text).ids
        assert ours.encode("a<|end|>")[-1] == 0
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "Strange"}')
    with pytest.raises(FulguriteError, match="'Strange' is not known"):
        from_folder(str(tmp_path))
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 2}')
    with pytest.raises(FulguriteError, match="not numbered"):
        from_folder(str(tmp_path))


@pytest.mark.parametrize("pre, text, parts", [
    ("tekken", "HelloWorld 12 fooBar/x", ["Hello", "World", " ", "1", "2", " foo", "Bar", "/x"]),
    ("deepseek-v3", "x1234 日本.ok 5", ["x", "123", "4", " ", "日本", ".ok", " ", "5"]),
    ("deepseek-r1-qwen", "it's 12", ["it", "'s", " ", "1", "2"]),
    ("deepseek-llm", "it's wörd 1234\n日!", ["it", "'", "s", " w", "ö", "rd", " ", "1234", "\n",
                                            "日", "!"]),
    ("deepseek-coder", "wörd's 12", ["wörd", "'", "s", " ", "1", "2"]),
    ("gpt-4o", "it's HelloWORLD 1234", ["it's", " Hello", "WORLD", " ", "123", "4"]),
])  # fmt: skip
def test_words_are_cut_as_models_of_gguf_want_it(pre: str, text: str, parts: list[str]) -> None:
    _, metadata = byte_level(pre)
    ours = _from_metadata(metadata)
    found = [text[slice(*place)] for _, place in ours.inner.pre_tokenizer.pre_tokenize_str(text)]
    assert found == parts


@pytest.mark.parametrize("pre, begins", [("llama-bpe", True), ("tekken", True), ("qwen2", False)])
def test_texts_of_llama_3_begin_with_their_token_where_the_file_does_not_say(
    pre: str, begins: bool
) -> None:
    _, metadata = byte_level(pre)
    metadata = metadata | {"tokenizer.ggml.bos_token_id": 3}
    metadata.pop("tokenizer.ggml.add_bos_token", None)
    assert (_from_metadata(metadata).encode("a")[0] == 3) == begins
    said = _from_metadata(metadata | {"tokenizer.ggml.add_bos_token": not begins})
    assert (said.encode("a")[0] == 3) == (not begins)
