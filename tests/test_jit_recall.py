"""Captures that an earlier process kept: found where its checks would hold, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.config import current
from fulgurite.errors import ArgumentError, BoundsError
from fulgurite.models import Batch, Model, load
from fulgurite.models.decoder import Decoder
from fulgurite.models.generate import STEP
from fulgurite.runtime.cache.disk import Store, store_for
from tests.models.samples import folder_of, gguf_of, golden, golden_folder

pytestmark = pytest.mark.device("cpu")
recall: Any = import_module("fulgurite.jit.recall")
IDS = [5, 17, 3, 88, 41]


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What graphs were built for."""
    found: list[Any] = []
    own = Decoder.hidden

    def hidden(self: Decoder, ids: fg.Tensor, *rest: Any) -> fg.Tensor:
        found.append(ids.shape)
        return own(self, ids, *rest)

    monkeypatch.setattr(Decoder, "hidden", hidden)
    return found


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with fg.config(device="cpu", disk_cache=True, cache_dir=str(tmp_path / "cache")):
        yield tmp_path


def made(path: Path, **changes: Any) -> Model:
    """The model of a folder, loaded as another process does: nothing of it was captured."""
    fg.clear_caches()
    if not path.exists():
        folder_of(path, **{"num_hidden_layers": 1, **changes})
    return load(path)


def talk(batch: Batch) -> list[Any]:
    return [batch.prefill(0, IDS), batch.step({0: 9})[0], batch.step({0: 11})[0]]


def same(found: list[Any], wanted: list[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


def entries() -> int:
    return _store().stats().kinds["capture"][0]


def _store() -> Store:
    found = store_for(current())
    assert found is not None
    return found


@pytest.mark.parametrize("slots", [1, 3])
def test_the_second_process_builds_nothing_and_says_the_same(
    disk: Path, built: list[Any], slots: int
) -> None:
    wanted = talk(Batch(made(disk / "one"), slots))
    assert built == [(1, 16), (slots, 1)] and entries() == 2
    built.clear()
    batch = Batch(made(disk / "one"), slots)
    assert same(talk(batch), wanted) and not built
    with pytest.raises(ArgumentError, match="without its graph"):
        fg.viz_data(batch._runs[1])
    batch._allocate(5 * STEP)  # a size that nobody had before
    with fg.config(disk_cache=False):
        right = Batch(made(disk / "one"), slots)
        talk(right)
        wanted = [right.step({0: 3})[0]]
    built.clear()
    found = [batch.step({0: 3})[0]]
    assert np.abs(found[0] - wanted[0]).max() <= 1e-4 * np.abs(wanted[0]).max()
    assert not built


def test_weights_are_those_of_the_file_and_not_of_the_capture(disk: Path, built: list[Any]) -> None:
    talk(Batch(made(disk / "one")))
    model = made(disk / "one")
    head = model.decoder.top["head"]
    model.decoder.top["head"] = replace(head, data=fg.Tensor(-head.data.numpy()))
    built.clear()
    found = talk(Batch(model))
    with fg.config(disk_cache=False):
        wanted = talk(Batch(made(disk / "one")))
    assert np.array_equal(found[0], -wanted[0])


@pytest.mark.parametrize("change", [
    {"rope_theta": 5000.0}, {"rms_norm_eps": 1e-3}, {"tie_word_embeddings": True},
    {"hidden_act": "gelu"}, {"sliding_window": 4, "model_type": "mistral"},
])  # fmt: skip
def test_another_configuration_is_another_capture(
    disk: Path, built: list[Any], change: dict[str, Any]
) -> None:
    talk(Batch(made(disk / "one")))
    built.clear()
    found = talk(Batch(made(disk / "two", **change)))
    assert built == [(1, 16), (1, 1)]
    with fg.config(disk_cache=False):
        assert same(found, talk(Batch(made(disk / "two"))))


def test_activation_bytes_and_types_of_weights_are_part_of_it(disk: Path, built: list[Any]) -> None:
    for kind in ("Q8_0", "Q4_0"):
        path = gguf_of(disk / f"{kind}.gguf", kind)
        for count in (1, 3):
            built.clear()
            fg.clear_caches()
            talk(Batch(load(path, activation_bytes=count)))
            assert built == [(1, 16), (1, 1)]
            built.clear()
            fg.clear_caches()
            talk(Batch(load(path, activation_bytes=count)))
            assert not built


@pytest.mark.parametrize("options", [
    {"exact": True}, {"verify": True}, {"check_nan": True}, {"autocast": "bfloat16"},
])  # fmt: skip
def test_other_options_find_nothing(disk: Path, built: list[Any], options: dict[str, Any]) -> None:
    talk(Batch(made(disk / "one")))
    built.clear()
    with fg.config(**options):
        talk(Batch(made(disk / "one")))
    assert (1, 16) in built


def test_a_damaged_entry_is_a_warning_and_a_capture(
    disk: Path, built: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = talk(Batch(made(disk / "one")))
    own = Store.get
    for cut in (0, 7, 40, 300):
        monkeypatch.setattr(
            Store, "get",
            lambda self, kind, key, cut=cut: (own(self, kind, key) or b"")[:cut]
            if kind == "capture" else own(self, kind, key),
        )  # fmt: skip
        built.clear()
        with pytest.warns(RuntimeWarning, match="a stored capture is not used"):
            assert same(talk(Batch(made(disk / "one"))), wanted)
        assert built == [(1, 16), (1, 1)]


def test_an_index_out_of_bounds_is_found_without_the_graph(disk: Path, built: list[Any]) -> None:
    talk(Batch(made(disk / "one")))
    batch = Batch(made(disk / "one"))
    wanted = talk(batch)
    built.clear()
    batch._checked = lambda ids: list(ids)  # type: ignore[method-assign]
    with pytest.raises(BoundsError):
        batch.step({0: 10_000})
    assert built == [(1, 1)]  # it was captured to say where
    batch.truncate(0, 5)
    assert same([batch.step({0: 9})[0], batch.step({0: 11})[0]], wanted[1:])


def test_functions_of_the_user_are_not_kept(disk: Path) -> None:
    run = fg.jit(lambda x: (x * 2).sum(), dynamic={"x": {0: True}})
    for count in (300, 400):
        assert run(fg.ones((count, 8))).item() == count * 16
    assert entries() == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(golden()))
def test_every_architecture_is_found_again(disk: Path, built: list[Any], name: str) -> None:
    folder = golden_folder(golden()[name], disk / "model")
    wanted = talk(Batch(made(folder), 2))
    built.clear()
    assert same(talk(Batch(made(folder), 2)), wanted) and not built
