"""Mixed precision by the kind of op: `with fg.autocast("bfloat16"): ...`.

In: a dtype of 16 bits, for a block or as a decorator. Out: inside, products and convolutions of
float32 round their operands to that dtype, add up in float32 and give results of that dtype;
softmax, losses, layer and RMS norms give float32 whatever they are given; norms by channel
compute in float32 and keep the dtype of their input. Weights stay float32 (they are the master
weights), and so their gradients are float32. It is the option `autocast` (`config.py`), so a
jitted function has a capture for each value of it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ContextDecorator, nullcontext
from types import TracebackType

from ..config import Options, config, current
from ..core import build
from ..core.dtype import DType, bfloat16, dtype_of, float16, float32
from ..core.node import Node
from ..errors import ArgumentError
from ..tensor import Tensor, TensorLike
from .common import astype, floating

_DTYPES = {dtype.name: dtype for dtype in (bfloat16, float16)}


class autocast(ContextDecorator):
    """Products and convolutions in few bits inside a block; weights and gradients stay float32.

    With float16 gradients need `fg.optim.GradScaler`. Call `backward()` outside or inside: its
    products have the dtypes of the forward ones. `enabled=False` switches it off for a block.

    >>> w, x = fg.ones((3, 2)), fg.ones((4, 3))
    >>> with fg.autocast("bfloat16"):
    ...     y = x @ w
    ...     p = fg.softmax(y)
    >>> y.dtype, p.dtype, (x @ w).dtype
    (bfloat16, float32, float32)
    """

    def __init__(self, dtype: object = "bfloat16", enabled: bool = True) -> None:
        self.dtype = None if isinstance(dtype, str) and dtype not in _DTYPES else dtype_of(dtype)
        if self.dtype not in _DTYPES.values():
            raise ArgumentError(
                f"{dtype!r} is no dtype to compute products in",
                'fg.autocast("bfloat16"), or "float16" with fg.optim.GradScaler',
            )
        self.enabled = enabled
        self._inside: list[AbstractContextManager[Options]] = []

    def __enter__(self) -> autocast:
        name = self.dtype.name if self.enabled and self.dtype is not None else "off"
        self._inside.append(config(autocast=name))
        self._inside[-1].__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._inside.pop().__exit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"fg.autocast({self.dtype}{'' if self.enabled else ', enabled=False'})"


def product_dtype(dtype: DType) -> DType:
    """The dtype of products whose operands promote to `dtype`."""
    low = current().autocast
    return _DTYPES[low] if low != "off" and dtype is float32 else dtype


def wide_products() -> AbstractContextManager[object]:
    """A block whose products are those of their operands' dtypes."""
    return nullcontext() if current().autocast == "off" else autocast(enabled=False)


def narrowed(node: Node, dtype: DType) -> Node:
    """A float of 32 bits rounded to the dtype of products; others as they are."""
    return build.cast(node, dtype) if node.dtype is float32 and dtype is not float32 else node


def added(term: Tensor, product: Tensor) -> Tensor:
    """A term that is added to a product (a bias): under autocast in the product's dtype."""
    small = product.dtype.is_small_float and current().autocast != "off"
    return astype(term, product.dtype) if small else term


def wide_result(x: TensorLike) -> DType:
    """The dtype of functions that give float32 under autocast: else that of x, as a float."""
    dtype = floating(x).dtype
    return float32 if dtype.is_small_float and current().autocast != "off" else dtype
