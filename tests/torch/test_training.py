"""Tests of training as users write it: a loop with all that belongs to it, a Lightning module."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import fulgurite.torch as fgt
from fulgurite.torch.conformance.models import import_torchvision


class Tagger(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(50, 16)
        self.places = torch.nn.Parameter(torch.randn(12, 16) * 0.1)
        layer = torch.nn.TransformerEncoderLayer(16, 4, 32, 0.0, "gelu", batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(16, 5)

    def forward(self, words: Any, labels: Any) -> dict[str, Any]:
        logits = self.head(self.encoder(self.words(words) + self.places))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


def batches() -> list[tuple[Any, Any]]:
    maker = torch.Generator().manual_seed(1)
    words = [torch.randint(0, 50, (4, 12), generator=maker) for _ in range(6)]
    return [(w, w % 5) for w in words]


def train(model: Any, call: Any) -> list[float]:
    """A loop with weight decay by groups, warm-up, accumulation, clipping and evaluation."""
    plain = [p for p in model.parameters() if p.ndim < 2]
    others = [p for p in model.parameters() if p.ndim >= 2]
    groups = [{"params": others, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.99))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
    losses = []
    for _ in range(2):
        model.train()
        for step, (words, labels) in enumerate(batches()):
            loss = call(words, labels)["loss"] / 2
            loss.backward()
            if step % 2:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad(set_to_none=True)
            losses.append(float(loss.detach()))
        model.eval()
        with torch.no_grad():
            losses.append(float(call(*batches()[0])["loss"]))
    return losses


def test_a_training_loop_has_eager_torchs_losses() -> None:
    model = Tagger()
    twin = copy.deepcopy(model)
    ours = train(model, torch.compile(model, backend="fulgurite"))
    theirs = train(twin, twin)
    assert ours == pytest.approx(theirs, rel=2e-3)
    assert ours[-1] < ours[0] * 2
    assert not fgt.report().eager


def test_a_lightning_module_trains_with_the_one_line(tmp_path: Path) -> None:
    with suppress(ModuleNotFoundError):
        import_torchvision()  # which Lightning imports, where its extension may not load
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, net: Any, call: Any) -> None:
            super().__init__()
            self.net, self.losses = net, list[float]()
            self.call = [call]  # in a list, so that it is no second submodule

        def training_step(self, batch: Any, _: int) -> Any:
            loss = self.call[0](*batch)["loss"]
            self.losses.append(float(loss.detach()))
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def run(net: Any, call: Any) -> list[float]:
        module = Module(net, call)
        trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
        )  # fmt: skip
        trainer.fit(module, torch.utils.data.DataLoader(batches(), batch_size=None))
        return module.losses

    model = Tagger()
    twin = copy.deepcopy(model)
    theirs = run(twin, twin)
    ours = run(model, torch.compile(model, backend="fulgurite"))
    assert len(ours) == 6
    assert ours == pytest.approx(theirs, rel=2e-3)


PROGRAM = """
import torch
import fulgurite as fg, fulgurite.torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))
call = torch.compile(model, backend="fulgurite")
call(torch.ones(32, 64)).sum().backward()
print(fg.cache_stats()["kernel"]["misses"], "llvmlite" in __import__("sys").modules)
"""


def test_a_second_process_compiles_no_kernel(tmp_path: Path) -> None:
    environment = os.environ | {"FULGURITE_DISK_CACHE": "1", "FULGURITE_CACHE_DIR": str(tmp_path)}
    shown = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True,
            check=True,
        ).stdout.split()
        for _ in range(2)
    ]  # fmt: skip
    assert shown[1][1] == "False", shown  # no compiler was loaded
