"""Tokenisers: from tokenizer.json and from GGUF metadata, on hostile text, against references."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from fulgurite.errors import FulguriteError
from fulgurite.models import load
from fulgurite.models.tokens import _from_metadata, from_folder

from .samples import gguf_of
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
