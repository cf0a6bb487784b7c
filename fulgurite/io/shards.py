"""Checkpoints of many ranks: each writes its shards, and one small step makes them the checkpoint.

In: tensors of which some are in shards. Out: beside the checkpoint a file for each rank that holds
shards nobody else writes, and the table of parts that the checkpoint's metadata keeps: whole shape,
and for every part its file and where it begins. A rank tells the others whether its file is written
before rank 0 writes the checkpoint itself, so at every moment a whole one is at the path; if one
rank fails, all do, and the message names it. The table has a digest of each file: one that is
damaged, or of another checkpoint, is refused. Reading needs no ranks: parts become whole arrays,
which whoever loads them splits as it likes.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from ..core import ranks
from ..core.op import Array
from ..core.ops.collective import UNSHARD, other_axes
from ..errors import DistributedError
from ..runtime.device import get_device
from ..runtime.realize import storage_of, value_node
from ..tensor import Tensor
from .files import FileError, Refusal, tensor_digest
from .safetensors import SafetensorsFile, save_safetensors

SUFFIX = ".shards"  # of the files beside a checkpoint: <path>.<token>-<rank>.shards
_STATUS_BYTES = 400


def split(tensors: Mapping[str, Tensor | Array]) -> dict[str, tuple[Tensor, Any]]:
    """Those that are kept in shards, each with the node of its memory."""
    found = {}
    for name, tensor in tensors.items():
        node = value_node(tensor.entry.node) if isinstance(tensor, Tensor) else None
        if isinstance(tensor, Tensor) and node is not None and node.op is UNSHARD:
            found[name] = tensor, node
    return found


def write_shards(path: str, sharded: Mapping[str, tuple[Tensor, Any]]) -> str:
    """Write this rank's part beside a checkpoint; the table of all parts, as JSON."""
    world = ranks.world()
    token = _token()
    mine: dict[str, Tensor | Array] = {}
    table: dict[str, Any] = {}
    for name, (tensor, node) in sharded.items():
        mesh, layout, _ = node.arg
        local = [int(n) for n in node.src[0].shape]
        parts = {}
        for rank in range(ranks.mesh_size(mesh)):
            here = ranks.coordinates(mesh, rank)
            if any([here[axis] for axis in other_axes(mesh, layout)]):
                continue  # another rank has the same shard
            starts = [n * _number(mesh, axes, here) for n, axes in zip(local, layout, strict=True)]
            parts[rank] = [f"{token}-{rank}", starts]  # and the digest of the file
            if rank == world.rank:
                shape: Any = node.src[0].shape
                device = get_device(node.device or "")
                mine[name] = device.to_host(storage_of(node.src[0]), shape, node.dtype)
        table[name] = {"shape": list(tensor.shape), "parts": list(parts.values())}
    problem = ""
    if mine:
        try:
            save_safetensors(mine, f"{path}.{token}-{world.rank}{SUFFIX}", {})
        except (OSError, FileError) as error:
            problem = str(error).partition("\n")[0]
    agree(problem, f"writing shards of {path!r}")
    digests = _told(tensor_digest("", mine.items()))
    for about in table.values():
        for part in about["parts"]:
            part.append(digests[int(part[0].rpartition("-")[2])])
    return json.dumps(table, separators=(",", ":"))


def _number(mesh: Any, axes: Any, here: Mapping[str, int]) -> int:
    number = 0
    for axis in axes:
        number = number * dict(mesh)[axis] + here[axis]
    return number


def _token() -> str:
    """A name for the files of one checkpoint, the same on all ranks."""
    world = ranks.world()
    random = np.frombuffer(os.urandom(4), np.uint8).copy()
    group = list(range(world.size))
    return bytes(world.gather(group, random, "the name of a checkpoint")[0]).hex()


def _told(digest: str) -> list[str]:
    """The digests of all ranks' files."""
    world = ranks.world()
    mine = np.frombuffer(digest.encode(), np.uint8).copy()
    rows = world.gather(list(range(world.size)), mine, "the digests of a checkpoint")
    return [bytes(row).decode() for row in rows]


def agree(problem: str, doing: str) -> None:
    """An error on every rank if one of them has a problem."""
    world = ranks.world()
    text = problem.encode()[:_STATUS_BYTES].ljust(_STATUS_BYTES)
    mine = np.frombuffer(text, np.uint8).copy()
    told = world.gather(list(range(world.size)), mine, doing)
    for rank, row in enumerate(told):
        found = bytes(row).decode(errors="replace").strip()
        if found:
            raise DistributedError(
                f"rank {rank} failed at {doing}: {found}",
                "the checkpoint before is whole: free some space, and go on from it",
            )


def remove_old(path: str, kept: set[str]) -> None:
    """Remove files of shards that no checkpoint names."""
    for name in glob.glob(f"{glob.escape(path)}.*{SUFFIX}"):
        token = name[len(path) + 1 : -len(SUFFIX)].partition("-")[0]
        if token not in kept:
            with suppress(OSError):
                os.unlink(name)


def tokens(text: str) -> set[str]:
    """The tokens of the files that a table names."""
    table = json.loads(text) if text else {}
    return {part[0].partition("-")[0] for one in table.values() for part in one["parts"]}


def _checked(place: str, digest: str) -> SafetensorsFile:
    """A file of shards whose bytes are those that were written."""
    if not os.path.exists(place):
        raise Refusal(f"its shards in {place!r} are missing")
    found = SafetensorsFile(place)
    if tensor_digest("", found.items()) != digest:
        raise Refusal(f"its shards in {place!r} are damaged: their digest is that of other bytes")
    return found


def read_shards(path: str, text: str) -> dict[str, Tensor]:
    """The whole tensors that a table describes."""
    files: dict[str, SafetensorsFile] = {}
    found: dict[str, Tensor] = {}
    for name, about in json.loads(text).items():
        whole: Array | None = None
        for file, starts, digest in about["parts"]:
            if file not in files:
                files[file] = _checked(f"{path.removesuffix('.previous')}.{file}{SUFFIX}", digest)
            part = files[file][name].numpy()
            if whole is None:
                whole = np.empty(about["shape"], part.dtype)
            at = tuple([slice(s, s + n) for s, n in zip(starts, part.shape, strict=True)])
            whole[at] = part
        assert whole is not None
        found[name] = Tensor(whole)
    return found
