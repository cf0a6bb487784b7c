"""What a model came to, kept on disk: the next process neither reads its graph nor builds it.

In: the bytes of a model, and inputs. Out: its `Signature`, and for inputs of these shapes a
`Recalled` plan, or None where there is none to be had. An entry of the disk store is named by the
digest of all that it depends on: the file's bytes, every source of this package, the device, the
options, and the shapes of the inputs. It holds the plan as `plan_io` describes it, places of
weights in the file, and the arrays that followed from weights alone; the store checks all of it by
its digest, and there is no pickle in it. A file that was digested before is known by its status
(path, inode, size, times), as the package's own sources are, if it was left alone for a while by
then. What depends on the numbers of inputs, on other files, or on results is not kept.
"""

from __future__ import annotations

import json
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from .._lazy import FORK_LOCK
from ..aot.schedule import Given, TensorSchedule
from ..config import current
from ..core.digest import digest_of
from ..core.dtype import dtype_of
from ..core.lazy_named_tuple import NamedTuple
from ..core.node import Node
from ..core.ops.leaf import param
from ..core.origin import NamedLine
from ..errors import FulguriteError
from ..graph.ir.cache_key import Normal
from ..runtime.cache.plan_cache import build_of, kept_plans
from ..runtime.device import get_device, is_shared
from ..runtime.plan_key import has_patterns, tuned
from ..runtime.realize import storage_of, value_node
from ..runtime.step_executor import concrete
from ..tensor.from_data import array_node
from .ports import Port, Signature
from .runs import Outputs, Runs
from .source import Source

if TYPE_CHECKING:
    from ..runtime.cache.disk import Store
    from .model import Model
    from .plans import Plan

_FORMAT = 1
MOST_BYTES = 1 << 24  # of arrays beside a plan, and of a model that is no file
SETTLED_NS = 2 * 10**9  # since a file's last change, after which its times say that it is the same
ALIGN = 64
_DAMAGES = (FulguriteError, ValueError, KeyError, TypeError, IndexError)


class _Lines(NamedTuple):
    """A place of a graph of which only the lines are known."""

    origins: tuple[NamedLine, ...]


def _with_lines(lines: Sequence[NamedLine]) -> Normal:
    """A key of which only the lines of its places are known."""
    nodes: Any = tuple([_Lines((line,)) for line in lines])
    return Normal((), (), (), {}, nodes)


class Recalled(Runs):
    """A plan that an earlier process made."""

    def __init__(self, given: Mapping[str, Any], source: Source, data: memoryview) -> None:
        super().__init__(given)
        start = 8 + int.from_bytes(data[:8], "little")
        about = json.loads(bytes(data[8:start]))
        start += -start % ALIGN
        self.hosts = set(about["hosts"])
        self.outputs: list[int] = about["outputs"]
        self._given = given
        file = source.name or "model.onnx"
        lines = [
            NamedLine(file, line, tuple(scopes), text) for line, scopes, text in about["lines"]
        ]
        with FORK_LOCK:
            from ..runtime.cache import plan_io
        device = about["device"]
        plan = plan_io.plan_of(about["plan"], _with_lines(lines), device)
        if plan is None:
            raise KeyError("code that is gone")
        buffers = [
            self._buffer(device, source.data, data[start:], *row) for row in about["buffers"]
        ]
        if len(buffers) != plan.inputs or max(self.outputs) >= len(about["roots"]):
            raise KeyError("inputs or outputs")
        for name in given.keys() - self.held.keys():  # nothing reads them
            self.held[name] = np.array(given[name], order="C")
        del self._given
        roots = [param(0, tuple(shape), dtype_of(name), None) for name, shape in about["roots"]]
        self.schedule = TensorSchedule.of_plan(plan, buffers, roots)
        source.release_pages()

    def _buffer(
        self, device: str, file: memoryview, kept: memoryview, kind: str, place: Any, dtype: str,
        shape: Sequence[int],
    ) -> Node:  # fmt: skip
        """The memory of an input, of a weight in the file, or of an array that was kept."""
        if kind == "input":  # with room, where the plan was one for many sizes
            value = self._given[place]
            if value.shape == tuple(shape):
                self.held[place] = whole = np.array(value, order="C")
            else:
                whole = np.zeros(shape, value.dtype)
                self.held[place] = whole[tuple([slice(0, n) for n in value.shape])]
                self.held[place][...] = value
            node = value_node(self.share(whole).node)
            assert node is not None
            return node
        data = file if kind == "weight" else kept
        array = np.frombuffer(data, dtype_of(dtype).numpy, prod(shape), place)
        return array_node(array.reshape(shape), device, share=False)

    def _results(self, ports: Sequence[Port], given: Given = ()) -> Outputs:
        assert self.schedule is not None
        found = self.schedule.run(given=given)
        return Outputs({p.name: found[i] for p, i in zip(ports, self.outputs, strict=True)})


class Recall:
    """The entries of one model in the disk store."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._hashing: threading.Thread | None = None
        self._hashed: str | None = None

    def begin(self) -> None:
        """Digest a file that nobody digested before, while its graph is built and compiled."""
        store = _store()
        if store is None or self._hashing is not None or not self._is_settled:
            return
        if self._known_digest(store) is None:
            self._hashing = threading.Thread(target=self._hash, daemon=True)
            self._hashing.start()

    def _hash(self) -> None:
        self._hashed = digest_of(self.source.data)

    @property
    def _is_settled(self) -> bool:
        """True of a file that nobody seems to be writing to."""
        status = self.source.status
        return bool(status) and time.time_ns() - self.source.changed >= SETTLED_NS

    def signature(self) -> Signature | None:
        """What the model takes and gives, if an earlier process kept that."""
        store = _store()
        digest = self._known_digest(store) if store is not None else None
        if store is None or digest is None:
            return None
        key = _key(store, digest)
        data = store.get("model", key) if key is not None else None
        try:
            return None if data is None else Signature.loaded(json.loads(data))
        except _DAMAGES as problem:
            _not_used(problem)
            return None

    def find(self, given: Mapping[str, Any], dims: Mapping[str, Any]) -> Recalled | None:
        """A plan for such inputs, if an earlier process kept one."""
        store = _store()
        about = _about(given, dims)
        digest = self._known_digest(store) if store is not None and about is not None else None
        if store is None or digest is None or about is None or _has_variables(dims):
            return None
        key = _key(store, digest, about)
        data = store.get("model", key) if key is not None else None
        if data is None:
            return None
        try:
            return Recalled(given, self.source, memoryview(data))
        except _DAMAGES as problem:
            _not_used(problem)
            return None

    def keep(self, plan: Plan, model: Model) -> None:
        """Write a plan for the next process, if it depends on nothing but shapes."""
        store, given = _store(), plan.held
        about = _about(given, model.dims)
        if store is None or about is None or plan.consulted or _has_variables(model.dims):
            return
        found = _described(plan, model, self.source)
        digest = self._digest(store) if found is not None else None
        if found is None or digest is None:
            return
        first, second = _key(store, digest), _key(store, digest, about)
        if first is not None and second is not None:
            signature = json.dumps(model.signature.dump()).encode()
            store.put_many([("model", first, signature), ("model", second, found)])

    def _known_digest(self, store: Store) -> str | None:
        """The digest of its bytes, if that is to be had without reading a file."""
        if not self.source.status:
            few = len(self.source.data) <= MOST_BYTES
            return digest_of(self.source.data) if few else None
        kept = store.get("sources", _status_key(self.source))
        return None if kept is None else kept.decode("ascii", "replace")

    def _digest(self, store: Store) -> str | None:
        """The digest of its bytes; None of a file that somebody may be writing to."""
        known = self._known_digest(store)
        if known is not None or not self.source.status:
            return known
        if not self._is_settled:
            return None
        if self._hashing is not None:
            self._hashing.join()
        found = self._hashed or digest_of(self.source.data)  # a fork leaves the thread behind
        self.source.release_pages()
        store.put("sources", _status_key(self.source), found.encode())
        return found


def _has_variables(dims: Mapping[str, Any]) -> bool:
    """True if the user says that sizes vary: then there is one plan for all of them."""
    return any([type(size) is not int for size in dims.values()])


def _status_key(source: Source) -> str:
    return digest_of(f"model {source.status!r}")


def _store() -> Store | None:
    """Where models are kept under these options; nowhere if they are to be checked or patched."""
    options = current()
    if options.verify or not options.disk_cache or has_patterns(options):
        return None
    with FORK_LOCK:
        from ..runtime.cache import disk
    return disk.store_for(options)


def _about(given: Mapping[str, Any], dims: Mapping[str, Any]) -> str | None:
    """What a plan depends on besides the file, as text; None if not on shapes alone."""
    if not all([type(v) is np.ndarray and v.dtype != object for v in given.values()]):
        return None
    options = current()
    shapes = [(name, value.shape, value.dtype.name) for name, value in given.items()]
    device = get_device(options.device)
    machine = device.plan_key()
    if machine is None:
        return None
    rest = (device.name, machine, options.key, options.autocast, tuned(options), np.__version__)
    return repr((sorted(shapes), sorted(dims.items(), key=lambda d: d[0]), rest))


def _key(store: Store, digest: str, about: str = "") -> str | None:
    """The name of an entry; None where it is not known what this process runs."""
    build = build_of(store, whole=True)
    return None if build is None else digest_of(f"{_FORMAT} {build} {digest} {about}")


def _not_used(problem: Exception) -> None:
    warnings.warn(f"a stored model is not used: {problem}", RuntimeWarning, stacklevel=4)


# --- writing -------------------------------------------------------------------------------------


def _described(plan: Plan, model: Model, source: Source) -> bytes | None:
    """The bytes that stand for a plan; None if it is not worth it, or depends on other things."""
    outputs = _outputs(plan)
    part = plan.schedule.only_part if plan.schedule is not None else None
    if outputs is None or part is None or not _is_kept(part, model):
        return None
    values = part.normal.values
    numbered = getattr(part.plan.executor, "numbered", lambda _: None)  # of sizes that vary
    made = numbered(values) if values else part.plan
    if made is None:
        return None
    rows, blob = _packed(part.normal.buffers, _Places(plan, model, source))
    if len(blob) > MOST_BYTES or None in rows:
        return None
    origins: dict[Any, None] = {o: None for item in made.schedule.items for o in item.origins}
    named = [o for o in origins if isinstance(o, NamedLine)]
    with FORK_LOCK:
        from ..runtime.cache import plan_io
    about = {
        "plan": plan_io.described(made, _with_lines(named)), "device": part.device,
        "lines": [[o.line, o.scopes, o.text] for o in named], "hosts": sorted(plan.hosts),
        "roots": [[r.dtype.name, list(concrete(r.shape, values))] for r in part.roots],
        "buffers": rows, "outputs": outputs,
    }  # fmt: skip
    head = json.dumps(about, separators=(",", ":")).encode()
    start = len(head).to_bytes(8, "little") + head
    return start + bytes(-len(start) % ALIGN) + bytes(blob)


def _outputs(plan: Plan) -> list[int] | None:
    """Which result of the plan each output of the model is; None if one of them is none."""
    if plan.schedule is None:
        return None
    places = {id(tensor): number for number, tensor in enumerate(plan.tensors)}
    found = []
    for value in plan.values:
        number = places.get(id(getattr(value, "_tensor", None)))
        if number is None or type(value).__name__ != "Value" or not value.kind.plain:
            return None
        found.append(plan.schedule.place_of(number))
    return found


def _packed(buffers: Sequence[Node], places: _Places) -> tuple[list[list[Any] | None], bytearray]:
    """What each input of a plan is, and the arrays among them one behind the other."""
    rows: list[list[Any] | None] = []
    blob = bytearray()
    for node in buffers:
        kind, place = places.of(node)
        if kind == "array" and len(blob) <= MOST_BYTES:
            shape: Any = node.shape
            blob += bytes(-len(blob) % ALIGN)
            place = len(blob)
            device = get_device(node.device or "")
            blob += device.to_host(storage_of(node), shape, node.dtype).tobytes()
        rows.append([kind, place, node.dtype.name, list(node.shape)] if kind else None)
    return rows, blob


def _is_kept(part: Any, model: Model) -> bool:
    """True if a plan of its own is on disk, or could be: it has names that processes share."""
    normal, compiled = part.normal, part.compiled
    if compiled.lifted or normal.assigned or model.program.files.open:
        return False
    options = replace(current(), tier="native")  # as schedules are compiled
    kept = kept_plans(part.device, options, normal)
    return kept is not None and kept.key(normal, {}, part.device, options) is not None


class _Places:
    """Where the inputs of a plan come from."""

    def __init__(self, plan: Plan, model: Model, source: Source) -> None:
        names = {id(array): name for name, array in (*plan.held.items(), *plan.whole.items())}
        self.given = {value_node(t.node): names.get(id(array), "") for array, t in plan.shared}
        weights = model.program.weights_of(model.program.graph).made.values()
        self.stored = {
            value_node(v._tensor.node): v._array for v in weights if v._tensor is not None
        }
        self.first = np.frombuffer(source.data, np.uint8).ctypes.data
        self.size = len(source.data)

    def of(self, node: Node) -> tuple[str, Any]:
        """Input and its name, weight and its place in the file, or array; "" if none of them."""
        name = self.given.get(node)
        if name is not None:
            return ("input" if name else ""), name
        stored = self.stored.get(node)
        if stored is not None and stored.dtype == node.dtype.numpy and stored.flags.c_contiguous:
            place = stored.ctypes.data - self.first
            if 0 <= place <= self.size - stored.nbytes:
                return "weight", place
        known = not is_shared(storage_of(node)) and all([type(n) is int for n in node.shape])
        return ("array" if known else ""), 0
