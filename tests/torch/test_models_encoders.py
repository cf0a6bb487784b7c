"""BERT, ModernBERT, ViT, CLIP and Whisper against `transformers` on the same random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fulgurite as fg
from fulgurite.errors import ArgumentError
from fulgurite.models import Clip, ViT, load_encoder, load_vision, load_whisper

transformers = pytest.importorskip("transformers")

SMALL: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96,
}  # fmt: skip


def saved(model: Any, folder: Path) -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name != "logit_scale":
                start = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
                spread = 0.2 if weight.ndim == 1 else 1.5 / weight.shape[-1] ** 0.5
                weight.copy_(torch.randn_like(weight) * spread + start)
    model.eval().save_pretrained(folder)
    return model


def close(ours: fg.Tensor, theirs: Any) -> None:
    wanted = theirs.detach().numpy()
    assert np.abs(ours.numpy() - wanted).max() <= 1e-4 * np.abs(wanted).max()


@pytest.mark.parametrize("kind", ["Bert", "ModernBert"])
def test_vectors_of_text_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    more = {"local_attention": 8, "pad_token_id": 0} if kind == "ModernBert" else {}
    config = getattr(transformers, f"{kind}Config")(vocab_size=97, **SMALL, **more)
    config._attn_implementation = "eager"
    theirs = saved(getattr(transformers, f"{kind}Model")(config), tmp_path)
    ids = torch.randint(1, 97, (2, 24))
    mask = torch.ones_like(ids)
    mask[1, 17:] = 0
    wanted = theirs(ids, attention_mask=mask).last_hidden_state
    model = load_encoder(tmp_path)
    got = model(fg.Tensor(ids.numpy().astype(np.int32)), fg.Tensor(mask.numpy()))
    close(got[0], wanted[0])
    close(got[1, :17], wanted[1, :17])
    mean = wanted[1, :17].mean(0)
    assert model.embed([]).shape == (0, 64)
    with pytest.raises(ArgumentError, match="no token"):
        model.embed([[1, -1]])
    (vector,) = model.embed([ids[1, :17].tolist()])
    assert np.allclose(vector, (mean / mean.norm()).detach().numpy(), atol=1e-4)


def test_scores_of_images_are_those_of_transformers(tmp_path: Path) -> None:
    config = transformers.ViTConfig(image_size=32, patch_size=8, num_labels=5, **SMALL)
    theirs = saved(transformers.ViTForImageClassification(config), tmp_path)
    images = torch.randn(2, 3, 32, 32)
    model = load_vision(tmp_path)
    assert isinstance(model, ViT)
    close(model.logits(fg.Tensor(images.numpy())), theirs(images).logits)


def test_images_fit_texts_as_transformers_says(tmp_path: Path) -> None:
    config = transformers.CLIPConfig(
        text_config={"vocab_size": 97, "eos_token_id": 96, "bos_token_id": 1, **SMALL},
        vision_config={"image_size": 32, "patch_size": 8, **SMALL}, projection_dim=32,
    )  # fmt: skip
    theirs = saved(transformers.CLIPModel(config), tmp_path)
    images, ids = torch.randn(2, 3, 32, 32), torch.randint(2, 96, (3, 9))
    ids[0, 8] = ids[1, 5] = ids[2, 7] = 96
    model = load_vision(tmp_path)
    assert isinstance(model, Clip)
    got = model.logits(fg.Tensor(images.numpy()), fg.Tensor(ids.numpy().astype(np.int32)))
    close(got, theirs(input_ids=ids, pixel_values=images).logits_per_image)
    with pytest.raises(ArgumentError, match="squares of 8"):
        model.images(fg.zeros((1, 3, 33, 32)))


def test_speech_is_written_as_transformers_writes_it(tmp_path: Path) -> None:
    config = transformers.WhisperConfig(
        vocab_size=97, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96, num_mel_bins=16,
        max_source_positions=50, max_target_positions=40, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    theirs = saved(transformers.WhisperForConditionalGeneration(config), tmp_path)
    sound, ids = torch.randn(1, 16, 100), torch.randint(3, 97, (1, 12))
    model = load_whisper(tmp_path)
    heard = model.encode(fg.Tensor(sound.numpy()))
    got = model.logits(fg.Tensor(ids.numpy().astype(np.int32)), heard)
    close(got, theirs(input_features=sound, decoder_input_ids=ids).logits)
    said = [1]
    with torch.no_grad():
        for _ in range(20):
            logits = theirs(input_features=sound, decoder_input_ids=torch.tensor([said])).logits
            said.append(int(logits[0, -1].argmax()))
            if said[-1] == 2:
                break
    wanted = [n for n in said[1:] if n != 2]
    assert model.transcribe(sound[0].numpy(), tokens=20) == wanted
    never = sorted({*wanted[1:4]} - {wanted[0]})
    settings = {"suppress_tokens": never, "begin_suppress_tokens": [wanted[0], 2]}
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    generated = theirs.generate(
        input_features=sound, max_new_tokens=20, do_sample=False, suppress_tokens=never,
        begin_suppress_tokens=[wanted[0], 2], decoder_input_ids=torch.tensor([[1]]),
    )[0].tolist()  # fmt: skip
    found = load_whisper(tmp_path).transcribe(sound[0].numpy(), tokens=20)
    assert found == [n for n in generated if n not in (1, 2)][: len(found)] and len(found) > 1
