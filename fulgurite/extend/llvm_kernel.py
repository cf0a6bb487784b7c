"""`fg.native_kernel`: LLVM IR text of the user's own as a function of tensors.

In: text that defines a function with the signature of our kernels, and what it takes and gives.
Out: a function that checks its tensors against that and returns lazy ones. The text is compiled
once, when a plan first needs it, and launched by the driver like any other kernel. It comes from
the program that calls this function, never from a file of weights or a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .._lazy import FORK_LOCK
from ..config import current
from ..core import build
from ..core.dtype import DType, dtype_of
from ..core.node import Node
from ..core.ops.host import call
from ..core.shape import show
from ..errors import ArgumentError, DTypeError, ShapeError
from ..runtime.device import DeviceError, get_device
from ..tensor import TensorLike, lifted, node_of, wrap
from .host_callback import pull_of
from .index_kernel import register_kernel


def native_kernel(
    text: str,
    name: str,
    *,
    inputs: Sequence[tuple[object, int]],
    outputs: Sequence[tuple[object, Any]],
    units: int | Callable[..., int] = 1,
    fallback: Callable[..., Any] | None = None,
    grad: Callable[..., Any] | None = None,
    pattern: Callable[..., Any] | None = None,
) -> NativeKernel:
    """A function of tensors from LLVM IR.

    The text defines `void @name(ptr params, ptr values, i64 first, i64 last)`, which does units
    `first` to `last` in any order and on any thread. `params` holds the addresses of the inputs,
    then of the outputs, in row-major order and without overlap; `values[2]` and up are the sizes of
    all their dimensions, in order. `inputs` are (dtype, number of dimensions), `outputs` (dtype,
    shape), where a shape may be a function of the inputs' shapes; `units` is a number, or a
    function of all shapes. `fallback` is the same on NumPy arrays, for devices without native code;
    `grad` and `pattern` are as in `fg.custom` and `fg.kernel`.

    >>> text = '''
    ... define void @twice(ptr %params, ptr %values, i64 %first, i64 %last) {
    ... entry:
    ...   %x = load ptr, ptr %params
    ...   %at = getelementptr ptr, ptr %params, i64 1
    ...   %y = load ptr, ptr %at
    ...   br label %loop
    ... loop:
    ...   %i = phi i64 [ %first, %entry ], [ %next, %loop ]
    ...   %from = getelementptr float, ptr %x, i64 %i
    ...   %to = getelementptr float, ptr %y, i64 %i
    ...   %a = load float, ptr %from
    ...   %b = fadd float %a, %a
    ...   store float %b, ptr %to
    ...   %next = add i64 %i, 1
    ...   %more = icmp slt i64 %next, %last
    ...   br i1 %more, label %loop, label %done
    ... done:
    ...   ret void
    ... }'''
    >>> twice = fg.native_kernel(
    ...     text, "twice", inputs=[("float32", 1)], outputs=[("float32", lambda x: x)],
    ...     units=lambda x, y: x[0], fallback=lambda a: a + a)
    >>> twice(fg.Tensor([1.0, 2.5])).tolist()
    [2.0, 5.0]
    """
    if not isinstance(text, str) or not isinstance(name, str):
        raise ArgumentError(
            "a native kernel is text and the name of a function", "pass two strings"
        )
    if isinstance(units, int):
        number = units

        def constant(*shapes: Any) -> int:
            return number

        units = constant
    for given, what in ((units, "units"), (fallback, "fallback"), (grad, "grad")):
        if given is not None and not callable(given):
            raise ArgumentError(f"{what} is {type(given).__name__}", "pass a function")
    takes = [_input(kind, number) for number, kind in enumerate(inputs)]
    gives = [_output(kind, number) for number, kind in enumerate(outputs)]
    if not gives:
        raise ArgumentError(f"native kernel {name!r} has no outputs", "declare at least one")
    with FORK_LOCK:
        from ..codegen.cpu.llvm import user_kernel
    host = user_kernel.NativeFunction(name, text, units, fallback, pull_of(name, grad))
    found = NativeKernel(host, takes, gives, fallback is not None)
    register_kernel(name, found, pattern)
    return found


def _input(kind: Any, number: int) -> tuple[DType, int]:
    try:
        dtype, rank = kind
        return dtype_of(dtype), build.as_size(rank)  # type: ignore[return-value]
    except (TypeError, ValueError) as problem:
        raise ArgumentError(
            f"input {number} is declared as {kind!r}", "say its dtype and number of dimensions"
        ) from problem


def _output(kind: Any, number: int) -> tuple[DType, Any]:
    try:
        dtype, shape = kind
        return dtype_of(dtype), shape if callable(shape) else build.as_shape(shape)
    except (TypeError, ValueError) as problem:
        raise ArgumentError(
            f"output {number} is declared as {kind!r}",
            "say its dtype and its shape, or a function of the inputs' shapes",
        ) from problem


class NativeKernel:
    """A native kernel of the user, to be called with tensors."""

    def __init__(
        self, host: Any, takes: list[tuple[DType, int]], gives: list[tuple[DType, Any]],
        everywhere: bool,
    ) -> None:  # fmt: skip
        self.host, self.takes, self.gives, self.everywhere = host, takes, gives, everywhere
        self.__name__ = self.name = host.name

    def __repr__(self) -> str:
        return f"<native kernel {self.name} of {len(self.takes)} tensors>"

    def __call__(self, *tensors: TensorLike) -> Any:
        if len(tensors) != len(self.takes):
            raise ArgumentError(
                f"native kernel {self.name!r} takes {len(self.takes)} tensors, not {len(tensors)}",
                "pass what was declared as inputs",
            )
        nodes = [node_of(x) for x in lifted(*tensors)]
        for number, (node, (dtype, rank)) in enumerate(zip(nodes, self.takes, strict=True)):
            self._check(node, dtype, rank, number)
        device = build.same_device(nodes)
        codegen = get_device(device or current().device).codegen
        if not self.everywhere and (codegen is None or codegen.language != "llvm"):
            raise DeviceError(
                f"native kernel {self.name!r} does not run on the {device} device",
                'move its tensors: x.to("cpu"), or give it fallback=',
            )
        returns = self._returns([node.shape for node in nodes])
        found = [wrap(build.note(node)) for node in call(self.host, tuple(nodes), returns)]
        return found[0] if len(found) == 1 else tuple(found)

    def _returns(self, shapes: Sequence[Any]) -> list[tuple[Any, DType]]:
        """The shape and dtype of each output, all of them fixed and written by somebody."""
        returns = [(build.as_shape(self._shape(s, shapes)), d) for d, s in self.gives]
        if not all([isinstance(n, int) for shape, _ in returns for n in shape]):
            raise ShapeError(f"native kernel {self.name!r} of variable sizes", "use fixed sizes")
        whole = [*shapes, *[shape for shape, _ in returns]]
        if not self._units(whole) and any([0 not in shape for shape, _ in returns]):
            raise ArgumentError(
                f"native kernel {self.name!r} has 0 units, so nobody writes its outputs",
                "units is at least 1 unless the outputs are empty",
            )
        return returns

    def _shape(self, shape: Any, shapes: Sequence[Any]) -> Any:
        """The shape of an output, of which the user may have given a function."""
        try:
            return shape(*shapes) if callable(shape) else shape
        except TypeError as problem:
            raise ArgumentError(
                f"the shape of an output of native kernel {self.name!r} is not to be had: "
                f"{problem}",
                f"it is a function of the shapes of all {len(shapes)} inputs",
            ) from problem

    def _units(self, shapes: Sequence[Any]) -> int:
        """How many units of work there are for these shapes."""
        try:
            with FORK_LOCK:
                from ..codegen.cpu.llvm import user_kernel
            found: int = user_kernel.units_of(self.host, shapes)
        except TypeError as problem:
            raise ArgumentError(
                f"the units of native kernel {self.name!r} are not to be had: {problem}",
                f"units is a function of the shapes of all {len(shapes)} inputs and outputs",
            ) from problem
        return found

    def _check(self, node: Node, dtype: DType, rank: int, number: int) -> None:
        if node.dtype is not dtype:
            raise DTypeError(
                f"tensor {number} of native kernel {self.name!r} is {node.dtype}, not {dtype}",
                f"cast it: x.astype({dtype})",
            )
        if node.ndim != rank or not all([isinstance(n, int) for n in node.shape]):
            raise ShapeError(
                f"tensor {number} of native kernel {self.name!r} has shape {show(node.shape)}",
                f"it was declared with {rank} dimensions of fixed sizes",
            )
