"""Movement ops: the same elements at other places. Fusion turns them into index arithmetic.

Arguments are flat tuples of ints, in which a symbolic size is a `Source`. Each op's gradient is
its mirror image: what is cut is padded, what is repeated is summed.
WINDOW slides along one axis: result[..., i, ..., j] = x[..., i*stride + j*dilation, ...] with j
last; UNWINDOW adds the windows up again. Convolution, pooling and strided slices are made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter, methodcaller

import numpy as np

from .. import shape as sizes
from ..node import Bounds, Node, Shape, Size, dims_of, shape_of
from ..op import Array, Op, derived
from ..operators import OPS


def reshape(x: Node, shape: Shape) -> Node:
    """The elements in order, in another shape of as many."""
    if shape == x.shape:
        return x
    dims, extra = dims_of(shape, 1)
    return derived(RESHAPE(x, *extra, arg=dims), shape)


def expand(x: Node, shape: Shape) -> Node:
    """Dimensions of size 1 repeated."""
    if shape == x.shape:
        return x
    dims, extra = dims_of(shape, 1)
    return derived(EXPAND(x, *extra, arg=dims), shape)


def permute(x: Node, order: tuple[int, ...]) -> Node:
    """The dimensions in another order."""
    shape = x.shape
    if order == tuple(range(len(shape))):
        return x
    return derived(PERMUTE(x, arg=order), tuple([shape[i] for i in order]))


def pad(x: Node, pads: Sequence[tuple[Size, Size]]) -> Node:
    """Zeros before and after, per dimension."""
    if all([p == (0, 0) for p in pads]):
        return x
    dims, extra = dims_of(tuple([size for pair in pads for size in pair]), 1)
    return PAD(x, *extra, arg=dims)


def shrink(x: Node, cuts: Sequence[tuple[Size, Size]]) -> Node:
    """The part from start to stop, per dimension."""
    if all([start == 0 and stop == n for (start, stop), n in zip(cuts, x.shape, strict=True)]):
        return x
    dims, extra = dims_of(tuple([size for pair in cuts for size in pair]), 1)
    return SHRINK(x, *extra, arg=dims)


def flip(x: Node, axes: tuple[int, ...]) -> Node:
    """Some dimensions backwards."""
    return FLIP(x, arg=tuple(sorted(axes))) if axes else x


def window(x: Node, axis: int, size: int, stride: int = 1, dilation: int = 1) -> Node:
    """Windows of `size` elements along an axis, the window's own axis last."""
    return WINDOW(x, arg=(axis, size, stride, dilation))


def unwindow(x: Node, axis: int, length: Size, stride: int = 1, dilation: int = 1) -> Node:
    """Windows added up where they overlap: the transpose of `window`."""
    dims, extra = dims_of((axis, length, stride, dilation), 1)
    return UNWINDOW(x, *extra, arg=dims)


def pairs(node: Node) -> list[tuple[Size, Size]]:
    """The argument of PAD or SHRINK as one pair per dimension."""
    flat = shape_of(node.arg, node.src)
    return list(zip(flat[::2], flat[1::2], strict=True))


def _concrete(shape: Shape) -> tuple[int, ...]:
    assert all([isinstance(s, int) for s in shape]), "bind the variables before evaluating"
    return shape  # type: ignore[return-value]


# --- shape rules ---------------------------------------------------------------------------------


def _arg_shape(node: Node) -> Shape:
    return shape_of(node.arg, node.src)


def _pad_shape(node: Node) -> Shape:
    return tuple(
        sizes.add(sizes.add(n, low), high)
        for n, (low, high) in zip(node.src[0].shape, pairs(node), strict=True)
    )


def _shrink_shape(node: Node) -> Shape:
    return tuple([sizes.sub(stop, start) for start, stop in pairs(node)])


def _window_shape(node: Node) -> Shape:
    axis, size, stride, dilation = node.arg
    shape = node.src[0].shape
    room = sizes.sub(shape[axis], (size - 1) * dilation + 1)
    count = sizes.add(sizes.floordiv(room, stride), 1)
    return (*shape[:axis], count, *shape[axis + 1 :], size)


def _unwindow_shape(node: Node) -> Shape:
    axis, length, _, _ = shape_of(node.arg, node.src)
    assert isinstance(axis, int)
    shape = node.src[0].shape[:-1]
    return (*shape[:axis], length, *shape[axis + 1 :])


# --- checks --------------------------------------------------------------------------------------


def _reshape_check(node: Node) -> str | None:
    a, b = sizes.prod(node.src[0].shape), sizes.prod(node.shape)
    return None if sizes.same(a, b) else f"{a} elements cannot take shape {node.shape}"


def _expand_check(node: Node) -> str | None:
    source = node.src[0].shape
    fits = len(source) == len(node.shape) and all(
        a == 1 or sizes.same(a, b) for a, b in zip(source, node.shape, strict=True)
    )
    return None if fits else f"{source} does not expand to {node.shape}"


def _permute_check(node: Node) -> str | None:
    fits = sorted(node.arg) == list(range(node.src[0].ndim))
    return None if fits else f"{node.arg} is no order of {node.src[0].ndim} dimensions"


def _pad_check(node: Node) -> str | None:
    fits = len(node.arg) == 2 * node.src[0].ndim and all(
        sizes.lower(size) >= 0 for pair in pairs(node) for size in pair
    )
    return None if fits else f"bad padding {node.arg}"


def _shrink_check(node: Node) -> str | None:
    if len(node.arg) != 2 * node.src[0].ndim:
        return f"bad cut {node.arg}"
    for (start, stop), n in zip(pairs(node), node.src[0].shape, strict=True):
        inside = sizes.lower(start) >= 0 and sizes.lower(sizes.sub(stop, start)) >= 0
        if not inside or sizes.lower(sizes.sub(n, stop)) < 0:
            return f"the cut {start}:{stop} is not inside 0:{n}"
    return None


def _flip_check(node: Node) -> str | None:
    fits = all(0 <= a < node.ndim for a in node.arg) and len(set(node.arg)) == len(node.arg)
    return None if fits else f"bad axes {node.arg}"


def _window_check(node: Node) -> str | None:
    axis, size, stride, dilation = node.arg
    if not 0 <= axis < node.src[0].ndim or min(size, stride, dilation) < 1:
        return f"bad window {node.arg}"
    fits = sizes.lower(node.src[0].shape[axis]) >= (size - 1) * dilation + 1
    return None if fits else f"a window of {node.arg[1:]} does not fit {node.src[0].shape}"


def _unwindow_check(node: Node) -> str | None:
    axis, length, stride, dilation = shape_of(node.arg, node.src)
    assert isinstance(axis, int) and isinstance(stride, int) and isinstance(dilation, int)
    shape = node.src[0].shape
    if not 0 <= axis < len(shape) - 1 or min(stride, dilation) < 1:
        return f"bad windows {node.arg}"
    last = sizes.add(sizes.mul(sizes.sub(shape[axis], 1), stride), (shape[-1] - 1) * dilation)
    known = isinstance(last, int) and isinstance(length, int)  # intervals forget n - n // 2 * 2
    fits = not known or shape[axis] == 0 or last < length
    return None if fits else f"windows {node.arg[2:]} of {shape} do not fit a length of {length}"


# --- NumPy meanings ------------------------------------------------------------------------------


def _shrink_prepared(node: Node) -> Callable[..., Array]:
    ends = _concrete(node.arg)
    return _alone(itemgetter(tuple(map(slice, ends[::2], ends[1::2]))), node)


def _reshape_prepared(node: Node) -> Callable[..., Array]:
    return _alone(methodcaller("reshape", _concrete(node.shape)), node)


def _alone(meaning: Callable[[Array], Array], node: Node) -> Callable[..., Array]:
    """What a function makes of the first source: further ones are sizes, which are known."""
    return meaning if len(node.src) == 1 else lambda a, *_: meaning(a)


def _expand_numpy(node: Node, a: Array) -> Array:
    """np.broadcast_to, which takes five times as long as most that is done with its result."""
    shape = _concrete(node.shape)
    if not a.size or not a.flags.c_contiguous:
        return np.broadcast_to(a, shape)
    strides = [s if n == m else 0 for n, m, s in zip(a.shape, shape, a.strides, strict=True)]
    return np.ndarray(shape, a.dtype, a, 0, strides)


def _pad_prepared(node: Node) -> Callable[..., Array]:
    shape, size = _concrete(node.shape), _concrete(node.src[0].shape)
    inside = tuple([slice(low, low + n) for low, n in zip(node.arg[::2], size, strict=True)])

    def pad(a: Array, *_: Array) -> Array:
        out = np.zeros(shape, a.dtype)
        out[inside] = a
        return out

    return pad


def _window_numpy(node: Node, a: Array) -> Array:
    axis, size, stride, dilation = node.arg
    reach = (size - 1) * dilation + 1
    view = np.lib.stride_tricks.sliding_window_view(a, reach, axis=axis)
    at = [slice(None)] * view.ndim
    at[axis], at[-1] = slice(None, None, stride), slice(None, None, dilation)
    return view[tuple(at)]


def _unwindow_numpy(node: Node, a: Array) -> Array:
    axis, _, stride, dilation = shape_of(node.arg, node.src)
    assert isinstance(axis, int) and isinstance(stride, int) and isinstance(dilation, int)
    wide = np.float32 if node.dtype.is_small_float else a.dtype
    out = np.zeros(_concrete(node.shape), wide)
    count = a.shape[axis]
    for j in range(a.shape[-1] if count else 0):
        at = [slice(None)] * out.ndim
        at[axis] = slice(j * dilation, j * dilation + (count - 1) * stride + 1, stride)
        out[tuple(at)] += a[..., j]
    return out.astype(a.dtype)


# --- gradients and batching ----------------------------------------------------------------------


def _expand_grad(g: Node, y: Node, a: Node, *_: Node) -> tuple[Node, ...]:
    stretched = tuple(
        i for i, (n, m) in enumerate(zip(a.shape, y.shape, strict=True)) if n == 1 and m != 1
    )
    return (OPS["reduce"](g, arg=("add", stretched)) if stretched else g,)


def _pad_grad(g: Node, y: Node, a: Node, *_: Node) -> tuple[Node, ...]:
    inside = zip(pairs(y), a.shape, strict=True)
    return (shrink(g, [(low, sizes.add(low, n)) for (low, _), n in inside]),)


def _shrink_grad(g: Node, y: Node, a: Node, *_: Node) -> tuple[Node, ...]:
    cuts = zip(pairs(y), a.shape, strict=True)
    return (pad(g, [(start, sizes.sub(n, stop)) for (start, stop), n in cuts]),)


def _permute_grad(g: Node, y: Node, a: Node) -> tuple[Node, ...]:
    return (permute(g, tuple(sorted(range(len(y.arg)), key=y.arg.__getitem__))),)


def _window_grad(g: Node, y: Node, a: Node) -> tuple[Node, ...]:
    axis, _, stride, dilation = y.arg
    return (unwindow(g, axis, a.shape[axis], stride, dilation),)


def _unwindow_grad(g: Node, y: Node, a: Node, *_: Node) -> tuple[Node, ...]:
    axis, _, stride, dilation = y.arg
    windows = window(g, axis, a.shape[-1], stride, dilation)  # type: ignore[arg-type]
    whole = [(0, n) for n in windows.shape]
    whole[axis] = (0, a.shape[axis])
    return (shrink(windows, whole),)


def _unwindow_batch(y: Node, src: tuple[Node, ...]) -> Node:
    axis, _, stride, dilation = y.arg
    length = shape_of(y.arg, y.src)[1]
    return unwindow(src[0], axis + 1, length, stride, dilation)


def _same_bounds(node: Node, bounds: list[Bounds | None]) -> Bounds | None:
    return bounds[0]


def _with_zero(node: Node, bounds: list[Bounds | None]) -> Bounds | None:
    found = bounds[0]
    return None if found is None else (min(0, found[0]), max(0, found[1]))


RESHAPE = Op(
    name="reshape", family="movement", doc="the elements in order, in another shape", arity=1,
    numpy=lambda node, *a: _reshape_prepared(node)(*a), prepared=_reshape_prepared,
    shape=_arg_shape, grad=lambda g, y, a, *_: (reshape(g, a.shape),), check=_reshape_check,
    interval=_same_bounds,
    batch=lambda y, src: reshape(src[0], (src[0].shape[0], *y.shape)), cost=0, sizes=slice(None),
)  # fmt: skip
EXPAND = Op(
    name="expand", family="movement", doc="dimensions of size 1 repeated", arity=1,
    numpy=lambda node, a, *_: _expand_numpy(node, a), shape=_arg_shape,
    grad=_expand_grad, check=_expand_check, interval=_same_bounds,
    batch=lambda y, src: expand(src[0], (src[0].shape[0], *y.shape)), cost=0, sizes=slice(None),
)  # fmt: skip
PERMUTE = Op(
    name="permute", family="movement", doc="the dimensions in another order", arity=1,
    numpy=lambda node, a: a.transpose(node.arg), check=_permute_check, interval=_same_bounds,
    shape=lambda node: tuple([node.src[0].shape[i] for i in node.arg]), grad=_permute_grad,
    batch=lambda y, src: permute(src[0], (0, *[i + 1 for i in y.arg])), cost=0,
)  # fmt: skip
PAD = Op(
    name="pad", family="movement", doc="zeros before and after each dimension", arity=1,
    numpy=lambda node, *a: _pad_prepared(node)(*a), prepared=_pad_prepared,
    shape=_pad_shape, grad=_pad_grad,
    batch=lambda y, src: pad(src[0], [(0, 0), *pairs(y)]), check=_pad_check,
    interval=_with_zero, cost=0, sizes=slice(None),
)  # fmt: skip
SHRINK = Op(
    name="shrink", family="movement", doc="the part from start to stop of each dimension", arity=1,
    numpy=lambda node, *a: _shrink_prepared(node)(*a), prepared=_shrink_prepared,
    shape=_shrink_shape, grad=_shrink_grad,
    batch=lambda y, src: shrink(src[0], [(0, src[0].shape[0]), *pairs(y)]),
    check=_shrink_check, interval=_same_bounds, cost=0, sizes=slice(None),
)  # fmt: skip
FLIP = Op(
    name="flip", family="movement", doc="some dimensions backwards", arity=1,
    numpy=lambda node, a: np.flip(a, node.arg), grad=lambda g, y, a: (flip(g, y.arg),),
    batch=lambda y, src: flip(src[0], tuple(a + 1 for a in y.arg)), check=_flip_check,
    interval=_same_bounds, cost=0,
)  # fmt: skip
WINDOW = Op(
    name="window", family="movement", doc="sliding windows along an axis, their own axis last",
    arity=1, numpy=_window_numpy, shape=_window_shape, grad=_window_grad, check=_window_check,
    batch=lambda y, src: window(src[0], y.arg[0] + 1, *y.arg[1:]), interval=_same_bounds, cost=0,
    sizes=slice(1, None),
)  # fmt: skip
UNWINDOW = Op(
    name="unwindow", family="movement", doc="windows added up where they overlap", arity=1,
    kinds="iufc", numpy=lambda node, a, *_: _unwindow_numpy(node, a), shape=_unwindow_shape,
    grad=_unwindow_grad, batch=_unwindow_batch, check=_unwindow_check, sizes=slice(1, None),
)  # fmt: skip
