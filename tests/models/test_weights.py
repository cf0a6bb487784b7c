"""Weights from folders and GGUF: the same model, shared memory, and thousands of damaged files."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import FulguriteError
from fulgurite.io.gguf import GgufFile
from fulgurite.io.safetensors import SafetensorsFile, save_safetensors
from fulgurite.models import FileError, load, quantize
from fulgurite.models.config import from_hf
from fulgurite.models.gguf import save_gguf
from fulgurite.models.quantize import ENCODERS, NUMBERS

from .samples import SMALL, folder_of, gguf_of

pytestmark = pytest.mark.device("none")
IDS = fg.Tensor(np.array([[5, 17, 3, 88]], np.int32), device="reference")


def logits(path: Path) -> Any:
    with fg.no_grad(), fg.config(device="reference"):
        return load(path).decoder(IDS).numpy()


def test_a_folder_its_shards_and_a_gguf_file_are_the_same_model(tmp_path: Path) -> None:
    wanted = logits(folder_of(tmp_path / "one"))
    assert np.array_equal(logits(folder_of(tmp_path / "many", shards=3)), wanted)
    got = logits(gguf_of(tmp_path / "x.gguf"))
    assert np.allclose(got, wanted, atol=1e-4 * np.abs(wanted).max())


def test_weights_are_the_memory_of_the_file(tmp_path: Path) -> None:
    for path in (folder_of(tmp_path / "one"), gguf_of(tmp_path / "x.gguf", "Q8_0")):
        matrix = load(path).decoder.layers[0]["q"].data
        array = matrix._array()
        assert not array.flags.writeable and not array.flags.owndata


@pytest.mark.parametrize("kind", ["Q8_0", "I8G64", "I4G64"])
def test_a_quantised_folder_is_about_the_same_model(kind: str, tmp_path: Path) -> None:
    source = folder_of(tmp_path / "one")
    counts = quantize(source, tmp_path / "two", kind)
    assert counts[kind] == 16 and counts["plain"] == 5
    wanted, got = logits(source), logits(tmp_path / "two")
    error = np.abs(got - wanted).max() / np.abs(wanted).max()
    assert 0 < error < (0.5 if kind == "I4G64" else 0.05)


def test_a_quantised_file_has_its_metadata_and_smaller_matrices(tmp_path: Path) -> None:
    source = gguf_of(tmp_path / "x.gguf")
    counts = quantize(source, tmp_path / "y.gguf", "q4_k")  # rows of 64 are no blocks of 256
    assert counts == {"Q8_0": 16, "plain": 5}
    model = load(tmp_path / "y.gguf")
    assert model.file is not None and model.file.metadata == load(source).file.metadata  # type: ignore[union-attr]
    assert (tmp_path / "y.gguf").stat().st_size < source.stat().st_size / 2


def test_every_type_that_is_written_is_read_as_about_the_same() -> None:
    from fulgurite.models.quantize import BY_NAME, packed

    values = np.random.default_rng(0).normal(size=(4, 512)).astype(np.float32)
    for kind in ENCODERS:
        blocks = packed(values, kind)
        quant = BY_NAME[kind]
        got = quant.values(fg.Tensor(blocks.reshape(-1, quant.bytes), device="reference")).numpy()
        error = np.abs(got.reshape(4, 512) - values).max()
        assert error < {"8": 0.02, "6": 0.1, "5": 0.2}.get(kind[1], 0.4), (kind, error)
        zeros = packed(np.zeros((1, 512), np.float32), kind).reshape(-1, quant.bytes)
        assert not quant.values(fg.Tensor(zeros, device="reference")).numpy().any()
    assert {*NUMBERS} >= {k for k in ENCODERS if k[-3:] != "G64"}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model_type": "mamba"}, "'mamba' is not known"), ({"hidden_size": None}, "'hidden_size'"),
        ({"num_hidden_layers": "2"}, "'num_hidden_layers'"), ({"vocab_size": -1}, "'vocab_size'"),
        ({"num_attention_heads": 5}, "shape|head_dim|share"), ({"hidden_act": "sine"}, "'sine'"),
        ({"rope_scaling": {"rope_type": "spiral"}}, "'spiral'"),
        ({"rope_scaling": 3}, "rope_scaling"),
        ({"num_key_value_heads": 3}, "share"), ({"eos_token_id": "x"}, "eos_token_id"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"num_hidden_layers": 3}, "layers.2"), ({"vocab_size": 301}, r"\(301, 64\)"),
    ],
)  # fmt: skip
def test_a_wrong_configuration_is_refused_by_the_field(
    change: dict[str, Any], text: str, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / "one")
    data = json.loads((folder / "config.json").read_text()) | change
    (folder / "config.json").write_text(
        json.dumps({k: v for k, v in data.items() if v is not None})
    )
    with pytest.raises(FileError, match=text):
        load(folder)


def damaged(raw: bytes, pick: random.Random) -> bytes:
    """Bytes that are cut, flipped, overwritten or put elsewhere; mostly near the beginning."""
    found = bytearray(raw)
    for _ in range(pick.choice((1, 1, 2, 5))):
        size = len(found)
        at = pick.randrange(size if pick.random() < 0.3 else min(size, 4000)) if size else 0
        how = pick.randrange(5)
        if how == 0:
            found = found[:at]
        elif how == 1 and size:
            found[at] ^= 1 << pick.randrange(8)
        elif how == 2:
            found[at : at + 8] = pick.randbytes(8)
        elif how == 3:
            found[at : at + 4] = pick.choice((b"\xff" * 4, b"\0" * 4, b"9999", b"null", b"-1.0"))
        else:
            other = pick.randrange(max(size, 1))
            found[at:at] = found[other : other + pick.randrange(1, 64)]
    return bytes(found)


def rounds(count: int, raw: bytes, write: Callable[[bytes], object], seed: int) -> int:
    """Damage a file so many times; a reader gives a model or an error of ours. How many errors."""
    refused = 0
    for number in range(count):
        bad = damaged(raw, random.Random(seed * 100_000 + number))
        try:
            write(bad)
        except FulguriteError as error:
            assert str(error).count("\n") <= 3
            refused += 1
    return refused


def hostile(count: int, folder: Path) -> None:
    source = folder_of(folder / "one", shards=2)
    files = ["config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors"]
    for seed, name in enumerate(files):
        raw = (source / name).read_bytes()

        def write(bad: bytes, name: str = name) -> None:
            (source / name).write_bytes(bad)
            load(source)

        assert rounds(count, raw, write, seed) > count / 3
        (source / name).write_bytes(raw)
    target = gguf_of(folder / "x.gguf", "Q8_0")
    raw, copy = target.read_bytes(), folder / "y.gguf"

    def write_gguf(bad: bytes) -> None:
        copy.write_bytes(bad)
        load(copy)

    assert rounds(count, raw, write_gguf, 9) > count / 3
    shutil.rmtree(source)


def test_damaged_files_are_refused_in_words(tmp_path: Path) -> None:
    hostile(125, tmp_path)  # of each of four files


@pytest.mark.slow
def test_many_damaged_files_are_refused_in_words(tmp_path: Path) -> None:
    hostile(1250, tmp_path)


def split(path: Path, count: int) -> list[Path]:
    """A GGUF file of the samples, cut into parts as gguf-split does it."""
    whole = GgufFile(gguf_of(path.with_name("whole.gguf"), "Q8_0"))
    names = list(whole)
    found = []
    for number in range(count):
        some = {}
        for name in names[number::count]:
            data, quant = whole.packed(name)
            kind = NUMBERS[quant.name] if quant else 0
            some[name] = (kind, whole.shape(name), data.numpy())
        about = {"split.no": number, "split.count": count, "split.tensors.count": len(names)}
        found.append(path.with_name(f"{path.name}-{number + 1:05}-of-{count:05}.gguf"))
        save_gguf(found[-1], (whole.metadata if number == 0 else {}) | about, some)
    return found


def test_a_gguf_file_in_parts_is_one_model_whichever_part_is_named(tmp_path: Path) -> None:
    parts = split(tmp_path / "m", 3)
    whole = GgufFile(tmp_path / "whole.gguf")
    ids = fg.Tensor([[5, 17, 3]])
    wanted = load(tmp_path / "whole.gguf").decoder(ids).numpy()
    for part in parts:
        file = GgufFile(part)
        assert set(file) == set(whole) and file.metadata == whole.metadata
        assert np.array_equal(load(part).decoder(ids).numpy(), wanted)


def test_parts_that_are_missing_or_of_another_model_are_refused(tmp_path: Path) -> None:
    parts = split(tmp_path / "m", 3)
    data = [part.read_bytes() for part in parts]
    parts[1].write_bytes(data[2])
    with pytest.raises(FileError, match="is not part 2 of 3"):
        GgufFile(parts[0])
    parts[1].write_bytes(b"GGUX" + data[1][4:])
    with pytest.raises(FileError, match=r"00002-of-00003\.gguf' is refused: it does not begin"):
        GgufFile(parts[0])
    parts[1].unlink()
    with pytest.raises(FileError, match="3 parts, of which 1 are not beside it"):
        GgufFile(parts[0])
    (tmp_path / "renamed.gguf").write_bytes(data[0])
    with pytest.raises(FileError, match="its name does not say which"):
        GgufFile(tmp_path / "renamed.gguf")
    for wrong in (0, -1, 1 << 40, "3", [3]):
        about = {"split.no": 0, "split.count": wrong}
        save_gguf(tmp_path / "x-00001-of-00003.gguf", about, {})
        with pytest.raises(FileError):
            GgufFile(tmp_path / "x-00001-of-00003.gguf")


def test_turns_end_where_generation_config_says(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m")
    assert load(folder).config.eos == (2,)
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 2, 9, 100000]}')
    assert load(folder).config.eos == (2, 7, 9)
    for wrong in ('{"eos_token_id": "x"}', '{"eos_token_id": [-1]}', "[]", "{"):
        (folder / "generation_config.json").write_text(wrong)
        with pytest.raises(FileError, match=r"generation_config\.json"):
            load(folder)


def test_a_folder_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"has no config\.json"):
        load(tmp_path)
    folder = folder_of(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    assert load(folder).config.layers == 2  # the only one
    (folder / "weights.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(FileError, match="pickled"):
        load(folder)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(FileError, match="no safetensors file"):
        load(folder)


def test_gemma_with_pictures_has_what_its_file_leaves_out() -> None:
    inner = {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
        "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }  # fmt: skip
    data = {"model_type": "gemma3", "eos_token_id": [1, 106], "text_config": inner}
    config = from_hf(data)
    assert (config.heads, config.kv_heads, config.head_size) == (8, 4, 256)
    assert (config.eos, config.vocabulary, config.context) == ((1, 106), 262208, 131072)
    assert config.rope is not None and config.local_rope is not None
    assert (config.rope.theta, config.rope.kind, config.rope.factor) == (1e6, "linear", 8.0)
    assert (config.local_rope.theta, config.local_rope.kind) == (10000.0, "default")
    assert config.windows[:7] == (1024,) * 5 + (0, 1024) and config.tied
    data["text_config"] = inner | {"sliding_window_pattern": 3}
    assert from_hf(data).windows[:4] == (1024, 1024, 0, 1024)


@pytest.mark.parametrize("kind, windows", [
    ("qwen2", (0, 5, 5)), ("qwen3", (0, 5, 5)), ("qwen2_moe", (5, 0, 0)), ("qwen3_moe", (5, 5, 5)),
])  # fmt: skip
def test_windows_of_files_that_do_not_name_layers(kind: str, windows: tuple[int, ...]) -> None:
    data = SMALL | {
        "model_type": kind, "num_hidden_layers": 3, "sliding_window": 5, "max_window_layers": 1,
    }  # fmt: skip
    assert from_hf(data | {"use_sliding_window": True}).windows == windows
    assert from_hf(data).windows == (0, 0, 0)


def test_the_first_files_of_gemma_mean_another_gelu() -> None:
    data = SMALL | {"model_type": "gemma", "hidden_act": "gelu"}
    assert from_hf(data).activation == "gelu_tanh"


def test_layers_that_do_not_turn_are_those_the_file_names(tmp_path: Path) -> None:
    ids = fg.Tensor([[5, 17, 3, 88, 41]])
    found = {}
    for turns in ([1, 1], [0, 1], [1, 0], [0, 0]):
        folder = folder_of(tmp_path / f"{turns}", model_type="smollm3", no_rope_layers=turns)
        model = load(folder)
        assert model.config.nope == {n for n, turn in enumerate(turns) if not turn}
        found[tuple(turns)] = model.decoder(ids).numpy()
    assert np.array_equal(found[1, 1], load(folder_of(tmp_path / "llama")).decoder(ids).numpy())
    assert len({values.tobytes() for values in found.values()}) == 4
    folder = folder_of(tmp_path / "all", model_type="smollm3", num_hidden_layers=9)
    assert load(folder).config.nope == {3, 7}
    folder = folder_of(tmp_path / "bad", model_type="smollm3", no_rope_layers=[1, 2])
    with pytest.raises(FileError, match="no_rope_layers"):
        load(folder)


def test_a_packed_folder_is_not_packed_again(tmp_path: Path) -> None:
    quantize(folder_of(tmp_path / "one"), tmp_path / "two", "I8G64")
    with pytest.raises(FulguriteError, match="packed already"):
        quantize(tmp_path / "two", tmp_path / "three", "Q8_0")
    assert not (tmp_path / "three").exists()


def test_targets_that_are_something_else_are_left_alone(tmp_path: Path) -> None:
    file, folder = gguf_of(tmp_path / "x.gguf"), folder_of(tmp_path / "one")
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    os.mkfifo(tmp_path / "pipe")
    pipe, many = tmp_path / "pipe", folder_of(tmp_path / "many", shards=3)
    for source, targets in ((file, [other, pipe]), (folder, [other, pipe, many])):
        for target in targets:
            with pytest.raises(FulguriteError, match="choose another target"):
                quantize(source, target, "Q8_0")
    assert (tmp_path / "pipe").is_fifo() and os.listdir(other) == ["mine.txt"]
    link = tmp_path / "link.gguf"
    link.symlink_to(tmp_path / "real.gguf")
    for _ in range(2):  # what it points to is not there, then is
        quantize(file, link, "Q8_0")
        assert link.is_symlink() and not (tmp_path / "real.gguf").is_symlink()
    load(tmp_path / "real.gguf")


def test_nothing_takes_the_place_of_what_is_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(FileError, match="no regular file"):
        fg.save({"a": fg.ones(3)}, tmp_path / "pipe.safetensors")
    assert (tmp_path / "pipe.safetensors").is_fifo()


def test_what_a_configuration_promises_and_a_file_has_not_is_named(tmp_path: Path) -> None:
    many = folder_of(tmp_path / "many", shards=3)
    gone = max(many.glob("*.safetensors"))
    gone.unlink()
    with pytest.raises(FileError, match=gone.name):
        load(many)
    for name, other, text in (
        ("bias", {"attention_bias": True}, "attention_bias"),
        ("ends", {"eos_token_id": 300}, "eos_token_id"),
    ):
        with pytest.raises(FileError, match=text):
            load(folder_of(tmp_path / name, **other))
    with pytest.raises(FileError, match="rope scaling 'odd'"):
        load(gguf_of(tmp_path / "x.gguf", **{"llama.rope.scaling.type": "odd"}))
    one = folder_of(tmp_path / "one")
    file = SafetensorsFile(one / "model.safetensors")
    kept = {name: np.array(file[name].numpy()) for name in file if name != "lm_head.weight"}
    save_safetensors(kept, one / "model.safetensors")
    with pytest.raises(FileError, match=r"lm_head\.weight"):
        load(one)
