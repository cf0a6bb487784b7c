"""The habits of other libraries: their names and keywords for our functions, in one table.

In: `Habits`, whose lines say "this name means that function of ours", and `KEYWORDS`. Out: after
`install`, `x.view(2, 3)` is `x.reshape(2, 3)` and `fg.sum(x, dim=0, keepdim=True)` is
`fg.sum(x, axis=0, keepdims=True)`. An alias is the function itself; nothing is written twice.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from types import CodeType
from typing import TYPE_CHECKING, Any, cast

from .._hints import UnknownKeywordError, warn_off
from ..errors import ArgumentError

if TYPE_CHECKING:
    from . import Tensor

KEYWORDS: tuple[tuple[str, str], ...] = (  # theirs, ours
    ("dim", "axis"),
    ("dims", "axis"),
    ("dims", "axes"),
    ("dim", "axes"),
    ("keepdim", "keepdims"),
    ("start_dim", "start"),
    ("end_dim", "end"),
    ("split_size_or_sections", "size"),
    ("ddof", "correction"),
    ("a_min", "min"),
    ("a_max", "max"),
    ("dim0", "axis1"),
    ("dim1", "axis2"),
    ("diagonal", "k"),
    ("shifts", "shift"),
    ("reps", "repetitions"),
    ("interpolation", "method"),
)
OF_ONE: dict[str, tuple[tuple[str, str], ...]] = {  # of one function, where they mean others
    name: (("dim1", "axis1"), ("dim2", "axis2")) for name in ("diagonal", "trace")
}
_OURS = frozenset([ours for _, ours in KEYWORDS])


class _Alias:
    """A place in the table: one of our methods or functions, or a small rearrangement of them."""

    def __init__(self, target: str | Callable[..., Any]) -> None:
        self.target = target


class Places:
    """Stands for the module while it has no functions: each name is the place of one."""

    def __getattr__(self, name: str) -> _Alias:
        return _Alias(name)


def _like(target: str) -> Callable[..., Tensor]:
    """Another name for one of our functions; what is no method gets one."""
    return cast("Callable[..., Tensor]", _Alias(target))


def _as(function: Callable[..., Any]) -> Any:
    """A method said in terms of ours."""
    return _Alias(function)


class Habits:
    """The table: each line is a name that users of NumPy or torch try."""

    __slots__ = ()

    # shapes
    view = _like("reshape")
    unsqueeze = _like("expand_dims")
    permute = _like("permute_dims")
    expand = _like("broadcast_to")
    ravel = _like("flatten")
    movedim = _like("moveaxis")
    swapdims = _like("swapaxes")
    moveaxis = _like("moveaxis")
    chunk = _like("chunk")
    unbind = _like("unstack")
    unstack = _like("unstack")
    t = _like("transpose")
    view_as = _as(lambda x, other: x.reshape(other.shape))
    reshape_as = _as(lambda x, other: x.reshape(other.shape))
    expand_as = _as(lambda x, other: x.broadcast_to(other.shape))
    cat = _like("concat")
    concatenate = _like("concat")
    numel = _as(lambda x: x.size)
    dim = _as(lambda x: x.ndim)

    # dtypes
    cast = _like("astype")
    type_as = _as(lambda x, other: x.astype(other.dtype))
    float = _as(lambda x: x.astype("float32"))
    double = _as(lambda x: x.astype("float64"))
    half = _as(lambda x: x.astype("float16"))
    bfloat16 = _as(lambda x: x.astype("bfloat16"))
    int = _as(lambda x: x.astype("int32"))
    long = _as(lambda x: x.astype("int64"))
    bool = _as(lambda x: x.astype("bool"))

    # arithmetic
    add = _like("add")
    sub = _like("subtract")
    mul = _like("multiply")
    div = _like("divide")
    true_divide = _like("divide")
    remainder = _like("remainder")
    pow = _like("pow")
    power = _like("pow")
    neg = _like("negative")
    absolute = _like("abs")
    clamp = _like("clip")
    clamp_min = _as(lambda x, min: x.clip(min))
    clamp_max = _as(lambda x, max: x.clip(None, max))
    masked_fill = _as(lambda x, mask, value: _where(mask, value, x))
    rint = _like("round")

    # new values for the tensor itself, as `assign` gives them
    copy_ = _as(lambda x, other: x.assign(other))
    fill_ = _as(lambda x, value: x.assign(value))
    zero_ = _as(lambda x: x.assign(0))
    add_ = _as(lambda x, other, alpha=1: x.assign(x + other * alpha))
    sub_ = _as(lambda x, other, alpha=1: x.assign(x - other * alpha))
    mul_ = _as(lambda x, other: x.assign(x * other))
    div_ = _as(lambda x, other: x.assign(x / other))
    clamp_ = _as(lambda x, min=None, max=None: x.assign(x.clip(min, max)))
    lerp_ = _as(lambda x, end, weight: x.assign(x + (end - x) * weight))
    clone = _like("contiguous")
    lerp = _as(lambda x, end, weight: x + (end - x) * weight)
    cpu = _as(lambda x: x.to("cpu"))
    unflatten = _as(lambda x, dim, sizes: _unflattened(x, dim, sizes))
    norm = _as(lambda x, p=None, dim=None, keepdim=False: _norm(x, p, dim, keepdim))

    # functions of one number
    exp2 = _like("exp2")
    expm1 = _like("expm1")
    log1p = _like("log1p")
    log10 = _like("log10")
    cbrt = _like("cbrt")
    tan = _like("tan")
    asin = arcsin = _like("asin")
    acos = arccos = _like("acos")
    atan = arctan = _like("atan")
    atan2 = arctan2 = _like("atan2")
    sinh = _like("sinh")
    cosh = _like("cosh")
    asinh = arcsinh = _like("asinh")
    acosh = arccosh = _like("acosh")
    atanh = arctanh = _like("atanh")
    erfc = _like("erfc")
    lgamma = _like("lgamma")
    digamma = _like("digamma")
    trunc = _like("trunc")
    isinf = _like("isinf")
    isclose = _like("isclose")
    allclose = _like("allclose")
    nan_to_num = _like("nan_to_num")
    gelu = _like("gelu")
    softplus = _like("softplus")

    # comparison, truth and bits
    lt = _like("less")
    le = _like("less_equal")
    gt = _like("greater")
    ge = _like("greater_equal")
    logical_and = _like("logical_and")
    logical_or = _like("logical_or")
    logical_xor = _like("logical_xor")
    logical_not = _like("logical_not")
    bitwise_not = invert = _like("bitwise_invert")
    left_shift = _like("bitwise_left_shift")
    right_shift = _like("bitwise_right_shift")

    # reductions and products
    amax = _like("max")
    amin = _like("min")
    count_nonzero = _like("count_nonzero")
    dot = _like("dot")
    matmul = _like("matmul")
    mm = _like("matmul")
    bmm = _like("matmul")
    outer = _like("outer")
    percentile = _like("percentile")
    nanquantile = _like("nanquantile")
    nanmedian = _like("nanmedian")
    cov = _like("cov")
    corrcoef = _like("corrcoef")
    bincount = _like("bincount")
    histogram = _like("histogram")
    multinomial = _like("multinomial")

    # order, running totals and places
    cumsum = _like("cumulative_sum")
    cumprod = _like("cumulative_prod")
    cumulative_max = _like("cumulative_max")
    cumulative_min = _like("cumulative_min")
    argwhere = _like("argwhere")
    unique = _like("unique")
    unique_values = _like("unique_values")
    unique_counts = _like("unique_counts")
    unique_inverse = _like("unique_inverse")
    unique_all = _like("unique_all")
    searchsorted = _like("searchsorted")
    take_along_dim = _like("take_along_axis")
    put_along_axis = _like("put_along_axis")
    index_select = _as(lambda x, dim, index: x.take(index, dim))
    masked_select = _as(lambda x, mask: _chosen(x, mask))
    repeat_interleave = _like("repeat")
    rot90 = _like("rot90")
    fliplr = _like("fliplr")
    flipud = _like("flipud")
    kron = _like("kron")


def _where(*arguments: Any) -> Any:
    from ..functional.math.elementwise import where

    return where(*arguments)


def _norm(x: Any, p: Any, dim: Any, keepdim: bool) -> Any:
    from ..linalg import norm

    return norm(x, p, dim, keepdim)


def _unflattened(x: Any, dim: int, sizes: Any) -> Any:
    from ..nn import Unflatten

    return Unflatten(dim, sizes)(x)


def _chosen(x: Any, mask: Any) -> Any:
    from ..functional.array.movement import broadcast_arrays

    values, chosen = broadcast_arrays(x, mask)
    return values[chosen]


TEMPLATED = ("broadcast_to", "permute_dims", "reshape")  # methods that are called again and again


def install(tensor: type, namespace: dict[str, Any]) -> None:
    """Give the Tensor class and the module their aliases, and let every function take KEYWORDS."""
    from ..functional.template import inside, templated

    for name in TEMPLATED:
        setattr(tensor, name, templated(getattr(tensor, name)))
    for name, function in list(namespace.items()):
        if inspect.isfunction(function) and _takes_habits(function.__module__):
            namespace[name] = inside(function, accept_keywords)
    found = {name: member for cls in reversed(tensor.__mro__) for name, member in vars(cls).items()}
    for name, method in found.items():
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(tensor, name, inside(method, accept_keywords))
    for name, alias in found.items():
        if not isinstance(alias, _Alias):
            continue
        if callable(alias.target):
            setattr(tensor, name, alias.target)
            continue
        setattr(tensor, name, vars(tensor).get(alias.target) or namespace[alias.target])
        if alias.target in namespace:
            namespace.setdefault(name, namespace[alias.target])
    warn_off(tensor, "Tensor")


def _takes_habits(module: str) -> bool:
    """True if the functions of a module take the keywords of other libraries."""
    return ".functional." in module or module.endswith(".associative")


def accept_keywords(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which takes the keywords of other libraries for those of its own."""
    code: CodeType = inspect.unwrap(function).__code__  # a signature of each is slow to make
    stars = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + stars]
    if _OURS.isdisjoint(known):
        return function
    pairs = OF_ONE.get(function.__name__, KEYWORDS)
    renames = {theirs: ours for theirs, ours in pairs if ours in known and theirs not in known}
    if not renames:
        return function

    names, open_ended = frozenset(known), bool(code.co_flags & inspect.CO_VARKEYWORDS)

    @wraps(function)
    def renamed(*args: Any, **keywords: Any) -> Any:
        if not keywords or keywords.keys() <= names:  # our own, as most are
            return function(*args, **keywords)
        for theirs in keywords.keys() & renames.keys():
            ours = renames[theirs]
            if ours in keywords:
                raise ArgumentError(f"{theirs}= and {ours}= mean the same", "give one of them")
            keywords[ours] = keywords.pop(theirs)
        if not open_ended and not keywords.keys() <= names:
            unknown = min(keywords.keys() - names)
            shown = [*known[len(args) :], *renames]  # without what has its place
            raise UnknownKeywordError(function.__name__, unknown, shown)
        return function(*args, **keywords)

    return renamed
