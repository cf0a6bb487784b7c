"""Training checkpoints: everything that training goes on from, in one file, whole or not at all.

In: a nest of dicts, lists, numbers, text and tensors, or objects with a `state_dict`. Out: a file,
and the same nest back. The file is a safetensors file whose metadata holds the nest as JSON and a
digest of all of it: other programs can read the weights, and a damaged byte is found before
anything is restored. Writing goes to a temporary file that is renamed; the file before it stays as
`<path>.previous`. At every moment, a power cut included, a whole checkpoint is at the path.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from .. import random
from ..core import ranks
from ..core.op import Array
from ..errors import ArgumentError, DTypeError
from ..tensor import Tensor, realize_all
from . import shards
from .files import FileError, Path, Refusal, path_of, reading, sync_folder, tensor_digest
from .safetensors import SafetensorsFile, save_safetensors

FORMAT = "fulgurite checkpoint 1"
PREVIOUS = ".previous"
DEEPEST = 100


def save_checkpoint(
    path: Path, *, model: Any = None, optimizer: Any = None, schedule: Any = None,
    loader: Any = None, generator: bool = True, step: int = 0, **more: Any,
) -> None:  # fmt: skip
    """Write the state of training; the checkpoint that was at the path is kept as `.previous`.

    Objects give their `state_dict()`, those in `more` too (`ema=`, `scaler=`, a second optimiser);
    the rest of `more` are nests of tensors, numbers and text; `generator` adds the state of the
    process's random numbers.
    """
    kept = {name: part.state_dict() if _has_state(part) else part for name, part in more.items()}
    state: dict[str, Any] = {"step": step, "more": kept}
    for name, part in _parts(model, optimizer, schedule, loader):
        state[name] = part.state_dict()
    if generator:
        state["generator"] = random.get_state()
    save_tree(path, state)


def load_checkpoint(
    path: Path, *, model: Any = None, optimizer: Any = None, schedule: Any = None,
    loader: Any = None, generator: bool = True, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """Restore the objects from a checkpoint; `step` and what else was saved are returned.

    Objects in `more` take the state that was saved by their name: `load_checkpoint(path, ema=ema)`.
    """
    state = load_tree(path)
    if not isinstance(state, dict) or "step" not in state:
        raise FileError(f"{path_of(path)!r} holds no training state", "use fg.io.load_tree")
    wanted = _parts(model, optimizer, schedule, loader, **more)
    state = {**state.get("more", {}), **state}
    missing = [name for name, _ in wanted if name not in state]
    if missing:
        raise FileError(
            f"{path_of(path)!r} has no {' and no '.join(missing)}",
            f"it has {', '.join([name for name in state if name != 'more'])}",
        )
    for name, part in wanted:
        part.load_state_dict(state[name])
    if generator and "generator" in state:
        random.set_state(state["generator"])
    return {"step": state["step"], **state.get("more", {})}


def _has_state(part: Any) -> bool:
    return callable(getattr(part, "state_dict", None))


def _parts(
    model: Any, optimizer: Any, schedule: Any, loader: Any, **more: Any
) -> list[tuple[str, Any]]:
    named = {"model": model, "optimizer": optimizer, "schedule": schedule, "loader": loader}
    found = [(name, part) for name, part in {**named, **more}.items() if part is not None]
    for name, part in found:
        if not _has_state(part):
            raise ArgumentError(
                f"{name} is {type(part).__name__}, which has no state_dict()",
                "give nests of tensors by a name of their own: save_checkpoint(path, ema=tree)",
            )
    return found


def save_tree(path: Path, tree: Any) -> None:
    """Write a nest of dicts, lists, tuples, numbers, text and tensors."""
    name = path_of(path)
    tensors: dict[str, Tensor | Array] = {}
    text = json.dumps(_plain(tree, tensors, 0), separators=(",", ":"))
    realize_all(*[value for value in tensors.values() if isinstance(value, Tensor)])
    if ranks.world().size > 1:
        _save_on_ranks(name, text, tensors)
    else:
        _write(name, text, tensors)


def _save_on_ranks(name: str, text: str, tensors: dict[str, Tensor | Array]) -> None:
    """Every rank writes its shards; the first one then writes the checkpoint, and all know."""
    sharded = shards.split(tensors)
    table = shards.write_shards(name, sharded)
    problem = ""
    if ranks.world().rank == 0:
        whole = {key: value for key, value in tensors.items() if key not in sharded}
        try:
            _write(name, text, whole, table)
            before = _metadata(name + PREVIOUS).get("shards", "")
            shards.remove_old(name, shards.tokens(table) | shards.tokens(before))
        except (OSError, FileError) as error:
            problem = str(error)
    shards.agree(problem, f"writing {name!r}")


def _metadata(name: str) -> Mapping[str, str]:
    """What a file says of itself, nothing if there is none."""
    try:
        return SafetensorsFile(name).metadata
    except (FileError, OSError):
        return {}


def _write(name: str, text: str, tensors: dict[str, Tensor | Array], table: str = "") -> None:
    digest = tensor_digest(text + table, tensors.items())
    metadata = {"format": FORMAT, "digest": digest, "tree": text}
    if table:
        metadata["shards"] = table
    fresh = f"{name}.{os.urandom(4).hex()}.new"
    try:
        save_safetensors(tensors, fresh, metadata)
        _keep_previous(name)
        os.replace(fresh, name)
        sync_folder(name)
    except OSError as error:
        raise FileError(
            f"{name!r} cannot be written: {error.strerror}", "choose another place"
        ) from None
    finally:
        with suppress(OSError):
            os.unlink(fresh)


def _keep_previous(name: str) -> None:
    """Give the file at the path a second name, so that there is one at the path all the time."""
    if not os.path.exists(name):
        return
    link = f"{name}.{os.urandom(4).hex()}.old"
    try:
        os.link(name, link)
    except OSError:  # a file system without links
        import shutil

        shutil.copyfile(name, link)
    os.replace(link, name + PREVIOUS)


def load_tree(path: Path) -> Any:
    """The nest that `save_tree` or `save_checkpoint` wrote, every byte of it checked."""
    name = path_of(path)
    older = name + PREVIOUS
    hint = f"the one before it is {older!r}" if os.path.exists(older) else ""

    def read(_: str) -> Any:
        try:
            file = SafetensorsFile(name)
            metadata = file.metadata
            if metadata.get("format") != FORMAT:
                raise Refusal(f"it is no checkpoint of the format {FORMAT!r}")
            tensors = dict(file)
            text = metadata.get("tree", "")
            table = metadata.get("shards", "")
            if tensor_digest(text + table, tensors.items()) != metadata.get("digest"):
                raise Refusal("it is damaged: its digest is that of other bytes")
            tensors |= shards.read_shards(name, table) if table else {}
            return _nest(json.loads(text), tensors)
        except Refusal as refusal:
            raise Refusal(refusal.problem, refusal.hint or hint) from None
        except (FileError, DTypeError) as error:
            if not hint or isinstance(error, FileNotFoundError):
                raise
            raise FileError(error.what, hint) from None

    return reading(name, "a checkpoint", read)


# --- nests as JSON -------------------------------------------------------------------------------


def _plain(value: Any, tensors: dict[str, Tensor | Array], depth: int) -> Any:
    """A nest in which containers and tensors have a mark that JSON can hold."""
    if depth > DEEPEST:
        raise ArgumentError(f"a nest more than {DEEPEST} deep", "does it hold itself?")
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) in (int, float):
        return value
    if isinstance(value, Tensor | np.ndarray):
        name = str(len(tensors))
        tensors[name] = value.detach() if isinstance(value, Tensor) else value
        return {"tensor": name}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str | int):
                raise ArgumentError(f"{key!r} is no key for a checkpoint", "use text or numbers")
        return {"dict": [[k, _plain(v, tensors, depth + 1)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_plain(v, tensors, depth + 1) for v in value]}
    raise ArgumentError(
        f"{type(value).__name__} cannot be in a checkpoint",
        "use dicts, lists, numbers, text and tensors",
    )


def _nest(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "tensor":
        return tensors[inner]
    if kind == "dict":
        return {k: _nest(v, tensors) for k, v in inner}
    made = [_nest(v, tensors) for v in inner]
    if kind not in ("list", "tuple"):
        raise Refusal(f"its nest has a {kind[:50]!r}")
    return made if kind == "list" else tuple(made)
