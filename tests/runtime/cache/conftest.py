"""What the tests of the disk cache share."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fulgurite.runtime.cache.disk import Store
from tests.stores import BIG


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store in a folder of its own."""
    with closing(Store(tmp_path / "cache", BIG)) as made:
        yield made
