"""Files of shards: written by ranks side by side, checked by their digests when they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core import ranks
from fulgurite.core.ops.collective import UNSHARD
from fulgurite.io import shards
from fulgurite.io.files import Refusal
from fulgurite.runtime.realize import value_node
from fulgurite.tensor import wrap
from tests.ranks import on_ranks

pytestmark = pytest.mark.device("none")
X = np.arange(24, dtype=np.float32).reshape(4, 6)


def written(path: Path) -> str:
    """The table of a checkpoint whose rows two ranks have."""

    def write(rank: int) -> str:
        part = fg.Tensor(X[2 * rank : 2 * rank + 2]).realize()
        buffer = value_node(part.entry.node)
        assert buffer is not None
        whole = UNSHARD(buffer, arg=((("data", 2),), (("data",), ()), False))
        assert ranks.world().rank == rank
        return shards.write_shards(str(path), {"w": (wrap(whole), whole)})

    tables = on_ranks(2, write)
    assert tables[0] == tables[1]
    return tables[0]


def test_parts_of_all_ranks_become_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    found = shards.read_shards(str(path), written(path))
    np.testing.assert_array_equal(found["w"].numpy(), X)


@pytest.mark.parametrize("what", ["a flipped bit", "another checkpoint's file", "no file"])
def test_a_file_of_shards_that_is_not_the_one_written_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "c.safetensors"
    table = written(path)
    first = sorted(tmp_path.glob("*-0.shards"))[0]
    other = sorted(tmp_path.glob("*-1.shards"))[0]
    damage: dict[str, Any] = {
        "a flipped bit": lambda: other.write_bytes(
            other.read_bytes()[:-1] + bytes([other.read_bytes()[-1] ^ 1])
        ),
        "another checkpoint's file": lambda: other.write_bytes(first.read_bytes()),
        "no file": other.unlink,
    }
    damage[what]()
    problem = "are missing" if what == "no file" else "are damaged"
    with pytest.raises(Refusal, match=rf"-1\.shards' {problem}"):
        shards.read_shards(str(path), table)
