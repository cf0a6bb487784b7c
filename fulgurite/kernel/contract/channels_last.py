"""Memory layout of images between kernels: channels last (NHWC), where products read them.

In: a `Schedule`. Out: the same schedule in which some slots hold their values with dimension 1
behind all others, and the kernels that touch them read and write so; what goes in and comes out
keeps its order. Tensor cores take tiles along channels: then these are contiguous, a convolution's
tiles are copied 16 bytes at a time, one by one it is a plain matrix product, and what is computed
for each channel runs along memory.

A slot is laid out so if the product of some kernel treats dimension 1 in one way and all others in
another: the channels of a convolution are folded while batch and space are not, or the other way
round, or they are its columns. All slots of the same shape follow, so that kernels between products
have one order; of the other factor, the window's weights, those with a window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ...core.node import Node, Shape, toposort
from ...core.ops.effect import CONTIGUOUS
from ...core.ops.index import FOLD, LOAD, STORE
from ...core.ops.leaf import PARAM, SINK, param
from ...core.ops.movement import permute, reshape
from ...core.rewriting.substitute import substitute
from ...graph.ir.affine import Affine, strides
from ...graph.ir.kernel import Item, Kernel, Schedule, Slot, params_of
from ...graph.ir.kernel_kind import KernelKind
from ...graph.ir.lower import lower
from ...graph.ir.queries import free_axes
from ...graph.ir.reshape_groups import CannotLower
from .problem import ProductAxes, product_axes

_PLAIN = (KernelKind.MAP, KernelKind.REDUCE, KernelKind.CONTRACT)
Roles = Mapping[int, str]  # of axes in a product
Sizes = tuple[int, ...]
Made = dict[tuple[Kernel, tuple[Sizes, ...]], Kernel]


def channels_last(schedule: Schedule) -> Schedule:
    """The schedule with images between kernels in the order that products want."""
    between = slots_between(schedule)
    movable = frozenset([place for place in between if _has_channels(schedule.slots[place])])
    wanted = _wanted(schedule, movable)
    return laid_out(schedule, wanted, _last, _read, _written) if wanted else schedule


def laid_out(
    schedule: Schedule, wanted: Mapping[int, Sizes], stored: Callable[[Sizes], Sizes],
    read: Callable[[Node, Sizes], Node], written: Callable[[Node, Sizes], Node],
) -> Schedule:  # fmt: skip
    """The schedule with some slots in another layout.

    Of each the shape of its value is given; `stored` is the shape in memory, `read` a param of that
    memory as the value that it was, `written` a result in that memory.
    """
    slots = list(schedule.slots)
    for place, shape in wanted.items():
        slot = slots[place]
        assert slot is not None
        slots[place] = slot._replace(shape=stored(shape))
    made: Made = {}
    items = tuple([_moved(item, wanted, made, read, written) for item in schedule.items])
    return schedule._replace(slots=tuple(slots), items=items)


def slots_between(schedule: Schedule) -> frozenset[int]:
    """Slots that plain kernels write, each once, and others of the plan read."""
    fixed = {*range(schedule.inputs), *schedule.outputs}
    fixed |= {place for pair in schedule.aliases for place in pair}
    written: set[int] = set()
    for item in schedule.items:
        if item.kernel.kind not in _PLAIN or item.kernel.plan is not None:
            fixed.update(item.reads, item.writes)
        fixed.update(written.intersection(item.writes))
        written.update(item.writes)
    return frozenset(written - fixed)


def _has_channels(slot: Slot | None) -> bool:
    """True if a slot has dimensions behind its second that moving that one changes."""
    return slot is not None and slot.bits is None and len(_image(slot.shape)) > 2


def _image(shape: Shape) -> Sizes:
    """A shape without dimensions of size 1 behind the first; nothing if a size varies."""
    sizes = [n for n in shape if isinstance(n, int)]
    if len(sizes) < len(shape):
        return ()
    return (*sizes[:1], *[n for n in sizes[1:] if n != 1])


def _wanted(schedule: Schedule, movable: frozenset[int]) -> dict[int, Sizes]:
    """Slots that products want channels last, those like them, and weights; as images."""
    images: set[int] = set()
    weights: set[int] = set()
    known: dict[Kernel, tuple[frozenset[int], frozenset[int]]] = {}
    for item in schedule.items:
        kernel = item.kernel
        places = (*item.reads, *item.writes)
        if kernel.kind is not KernelKind.CONTRACT or not movable.intersection(places):
            continue
        if kernel not in known:
            known[kernel] = _asked(kernel)
        images.update([places[number] for number in known[kernel][0]])
        weights.update([places[number] for number in known[kernel][1]])
    known_shapes = {p: _image(slot.shape) for p in movable if (slot := schedule.slots[p])}
    shapes = {known_shapes[place] for place in images & movable}
    return {p: s for p, s in known_shapes.items() if s in shapes or p in weights}


# --- what a product wants ------------------------------------------------------------------------


def _asked(kernel: Kernel) -> tuple[frozenset[int], frozenset[int]]:
    """The params of a kernel that its product wants channels last: images, and weights."""
    try:
        indexed = lower(kernel.body, kernel.inputs)
    except CannotLower:
        return frozenset(), frozenset()
    sizes = [n if isinstance(n, int) else 0 for n in indexed.axes]
    order = [n for n in toposort([indexed.body]) if n.op is not SINK]
    shapes = [node.shape for node in params_of(kernel)]
    stores = [n for n in order if n.op is STORE]
    images: set[int] = set()
    others: set[int] = set()
    for roles, factors in _products(order):
        for accesses in (stores, *factors):
            images |= _images(accesses, shapes, sizes, roles)
        others |= {n.arg[0] for loads in factors for n in loads}
    windows = _windows(others - images, shapes) if images else frozenset[int]()
    return frozenset(images), windows


def _windows(params: Iterable[int], shapes: Sequence[Shape]) -> frozenset[int]:
    """The params among some that are weights of a window."""
    return frozenset([p for p in params if len(_image(shapes[p])) > 3])


def _products(order: Sequence[Node]) -> Iterator[tuple[Roles, list[list[Node]]]]:
    """The roles of axes in each sum of products, and the loads of its factors."""
    free = free_axes(order)
    for fold in [n for n in order if n.op is FOLD]:
        axes = product_axes(fold, free)
        if axes is not None and axes.left and axes.right:
            yield _roles(axes), [_loads(factor) for factor in fold.src[0].src]


def _loads(value: Node) -> list[Node]:
    return [n for n in toposort([value]) if n.op is LOAD]


def _images(
    accesses: Sequence[Node], shapes: Sequence[Shape], sizes: Sequence[int], roles: Roles
) -> set[int]:
    """Params of which some access is one of an image."""
    return {n.arg[0] for n in accesses if _is_image(n.arg, shapes, sizes, roles)}


def _roles(axes: ProductAxes) -> Roles:
    """What axes of a product are: rows, columns, folded; those of both factors have no role."""
    found = dict.fromkeys(axes.left, "rows") | dict.fromkeys(axes.right, "columns")
    return found | dict.fromkeys(axes.folded, "folded")


def _is_image(
    access: tuple[int, Affine, object], shapes: Sequence[Shape], sizes: Sequence[int], roles: Roles
) -> bool:
    """True if an access goes along dimension 1 in one role and along all others in another."""
    shape = _image(shapes[access[0]])
    if len(shape) < 3:
        return False
    along: dict[int, int] = {}  # the longest axis of each dimension
    for dimension, axis in _dimensions(access[1], shape):
        if dimension not in along or sizes[axis] > sizes[along[dimension]]:
            along[dimension] = axis
    found = {d: roles.get(axis, "") for d, axis in along.items()}
    channel = found.pop(1, "")
    behind = {role for d, role in found.items() if d > 1}
    rest = set(found.values())
    return bool(channel and behind) and len(rest) == 1 and "" not in rest and channel not in rest


def _dimensions(index: Affine, shape: Sizes) -> Iterator[tuple[int, int]]:
    """Which dimension of row-major memory each axis of an index steps along."""
    steps = strides(shape)
    for atom, step in index[1]:
        if isinstance(atom, int):
            yield next((d for d, s in enumerate(steps) if s <= abs(step)), len(shape) - 1), atom


# --- kernels over other memory -------------------------------------------------------------------


def _last(shape: Sizes) -> Sizes:
    """A shape with its second dimension behind all others."""
    return (shape[0], *shape[2:], shape[1])


def _moved(
    item: Item, wanted: Mapping[int, Sizes], made: Made, read: Callable[[Node, Sizes], Node],
    written: Callable[[Node, Sizes], Node],
) -> Item:  # fmt: skip
    """An item whose kernel reads and writes slots in their new order."""
    kernel = item.kernel
    images = tuple([wanted.get(place, ()) for place in (*item.reads, *item.writes)])
    if not any(images):
        return item
    if (kernel, images) not in made:
        params = [n for n in toposort([kernel.body]) if n.op is PARAM and images[n.arg[0]]]
        changes = {node: read(node, images[node.arg[0]]) for node in params}
        body = substitute(kernel.body, changes, walk=True) if changes else kernel.body
        roots = [
            written(root, image) if image else root
            for root, image in zip(body.src, images[kernel.inputs :], strict=True)
        ]
        made[kernel, images] = Kernel(kernel.kind, SINK(*roots), kernel.inputs)
    return item._replace(kernel=made[kernel, images])


def _read(node: Node, image: Sizes) -> Node:
    """A param as before, of memory with channels last."""
    number, _, device = node.arg
    rank = len(image)
    source = param(number, _last(image), node.dtype, device)
    return reshape(permute(source, (0, rank - 1, *range(1, rank - 1))), node.shape)


def _written(root: Node, image: Sizes) -> Node:
    """A result with channels last."""
    return permute(CONTIGUOUS(reshape(root, image)), (0, *range(2, len(image)), 1))
