"""Tests of fulgurite/core/verify.py: each way to break a node is found and named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fulgurite.core.dtype import WEAK_FLOAT, bool_, float16, float32, int32, int64, uint64, void
from fulgurite.core.node import SOURCES, Node, annotate, constant_bits, make, remember, toposort
from fulgurite.core.op import Op
from fulgurite.core.operators import OPS
from fulgurite.core.ops import effect, indexing, leaf, movement, random, reduce
from fulgurite.core.ops.elementwise import ADD, CAST, EXP, NEG, WHERE
from fulgurite.core.ops.leaf import SINK, param, variable
from fulgurite.core.origin import capture
from fulgurite.core.text import show
from fulgurite.core.verify import LEVELS, verify
from fulgurite.errors import ArgumentError, VerifyError
from tests.samples import N, memory, sample

DECLARED = tuple(OPS.values())  # without what tests add while they run
X = param(0, (2, 3), float32)
Y = param(1, (3, 2), float32)
Z = param(2, (2, 3), int32)
K = param(3, (), int64)


# --- what is right -------------------------------------------------------------------------------


@pytest.mark.parametrize("op", DECLARED, ids=str)
def test_every_sample_is_right(op: Op) -> None:
    level = "tensor" if "tensor" in op.levels else "index"
    for node in sample(op):
        verify(node, level)


def test_an_annotated_copy_is_right() -> None:
    verify(EXP(annotate(-X, "metadata")))


def test_a_very_deep_chain_is_verified() -> None:
    x = X
    for _ in range(50_000):
        x = -x
    verify(x)


def test_each_node_is_checked_once_however_often_it_is_used() -> None:
    checked: list[Node] = []

    def check(node: Node) -> None:
        checked.append(node)

    op = Op(name="counted", family="test", doc="", arity=2, numpy=None, check=check)
    try:
        x = X
        for _ in range(200):  # 2 ** 200 paths
            x = op(x, x)
        verify(x)
    finally:
        del OPS["counted"]
    assert len(checked) == len(set(checked)) == 200


# --- levels --------------------------------------------------------------------------------------


def test_every_level_of_an_op_is_declared_and_described() -> None:
    assert set(LEVELS) == {level for op in DECLARED for level in op.levels}
    assert all(LEVELS.values())


def test_an_index_graph_is_elementwise_over_indexed_loads_constants_and_variables() -> None:
    of_index = [op for op in DECLARED if "index" in op.levels]
    others = {op.name for op in of_index if op.family not in ("elementwise", "index")}
    assert others == {"const", "var", "param", "sink"}
    i = variable("i", 0, 7)
    verify(WHERE(i < 4, i * 2 + 1, K), "index", "lowering")


def test_an_op_of_another_level_is_refused() -> None:
    total = reduce.reduce_node("add", X, (1,))
    with pytest.raises(VerifyError, match="after lowering, at index level: reduce is no op of"):
        verify(total, "index", "lowering")


def test_a_level_that_does_not_exist_is_an_error_of_the_caller() -> None:
    with pytest.raises(ArgumentError, match="there is no level 'tensr'"):
        verify(X, "tensr")


# --- what is wrong -------------------------------------------------------------------------------


def unregistered() -> Node:
    op = Op(name="ghost", family="test", doc="", arity=1, numpy=None)
    del OPS["ghost"]
    return op(X)


BROKEN: dict[str, tuple[Callable[[], Node], str]] = {
    "an op nobody registered": (unregistered, "this ghost is not the op that is registered"),
    "a source too few": (lambda: make(ADD, float32, (X,)), "add needs 2 sources and has 1"),
    "a leaf with a source": (
        lambda: make(leaf.PARAM, float32, (X,), (0, (2,), "reference")),
        "param has 0 sources, and source 0 is no size of its",
    ),
    "a source too many": (
        lambda: make(NEG, float32, (X, X)),
        "neg has 1 sources, and source 1 is no size of its",
    ),
    "a size that no source is": (
        lambda: make(movement.RESHAPE, float32, (X,), (SOURCES[3],)),
        "the argument names source 3 of 1",
    ),
    "data taken for a size": (
        lambda: make(movement.RESHAPE, float32, (X,), (SOURCES[0],)),
        "the argument takes source 0 for a size, but it is data",
    ),
    "a size that is a float": (
        lambda: make(movement.RESHAPE, float32, (X, param(0, (), float32)), (SOURCES[1],)),
        "source 1 is a size, and float32 () is no whole number",
    ),
    "a size that is a bool": (
        lambda: make(movement.RESHAPE, float32, (X, param(0, (), bool_)), (SOURCES[1],)),
        "source 1 is a size, and bool () is no whole number",
    ),
    "a size that is a tensor": (
        lambda: make(movement.RESHAPE, float32, (X, Z), (SOURCES[1],)),
        "source 1 is a size, and int32 (2, 3) is no whole number",
    ),
    "a size of a host function that is a float": (
        lambda: make(effect.CUSTOM, float32, (X, X), (None, 1, (SOURCES[1],))),
        "source 1 is a size, and float32 (2, 3) is no whole number",
    ),
    "a kind the op does not take": (lambda: make(EXP, int32, (Z,)), "exp does not take int32"),
    "a kind a leaf does not have": (
        lambda: make(leaf.VAR, float32, (), ("n", 0, 1, ())),
        "var does not take float32",
    ),
    "another dtype than the rule's": (
        lambda: make(NEG, float16, (X,)),
        "neg gives float32, not float16",
    ),
    "a comparison that is no bool": (
        lambda: make(OPS["lt"], float32, (X, X)),
        "lt gives bool, not float32",
    ),
    "a weak dtype": (
        lambda: make(leaf.PARAM, WEAK_FLOAT, (), (0, (), "reference")),
        "weak float is not the dtype of any element",
    ),
    "a leaf without a value": (
        lambda: make(leaf.PARAM, void, (), (0, (), "reference")),
        "param does not take void",
    ),
    "a dtype rule that fails": (
        lambda: make(CAST, float32, (X,), "float32"),
        "its dtype rule fails with AssertionError",
    ),
    "a dtype rule without a source": (
        lambda: make(reduce.SCAN, float32, (), ("add", 0, False)),
        "its dtype rule fails with IndexError",
    ),
    "a shape rule that fails": (
        lambda: make(movement.PERMUTE, float32, (X,), (0, 7)),
        "its shape rule fails with IndexError",
    ),
    "a negative size": (lambda: param(0, (2, -1), float32), "-1 is not a size"),
    "a size that is no int": (lambda: param(0, (2.5,), float32), "2.5 is not a size"),  # type: ignore[arg-type]
    "a shape that is none": (
        lambda: make(leaf.BUFFER, float32, (), (1, 5, "reference")),
        "its shape rule fails with TypeError",
    ),
    "shapes that differ": (lambda: ADD(X, Y), "sources have shapes (2, 3) and (3, 2)"),
    "a condition that is no bool": (lambda: WHERE(Z, X, X), "where does not take int32"),
    "elements that do not fit": (
        lambda: make(movement.RESHAPE, float32, (X,), (7,)),
        "6 elements cannot take shape (7,)",
    ),
    "a cut outside": (
        lambda: movement.shrink(X, [(0, 2), (1, 4)]),
        "the cut 1:4 is not inside 0:3",
    ),
    "a cut that may be outside": (
        lambda: movement.shrink(param(0, (4,), float32), [(0, N)]),
        "is not inside 0:4",
    ),
    "an axis that is not there": (
        lambda: make(movement.FLIP, float32, (X,), (2,)),
        "bad axes (2,)",
    ),
    "a reduction nobody knows": (
        lambda: reduce.reduce_node("median", X, (1,)),
        "bad reduction ('median', (1,))",
    ),
    "an index that is a float": (
        lambda: indexing.gather(X, X, 0),
        "an index is a whole number, not float32",
    ),
    "an assignment to a value": (
        lambda: effect.ASSIGN(-X, X),
        "only memory can be assigned, not neg",
    ),
    "an assignment of another dtype": (
        lambda: effect.ASSIGN(memory((2, 3)), Z),
        "int32 assigned to",
    ),
    "a view outside its buffer": (
        lambda: leaf.view(memory((2, 3)), 4, (3,)),
        "is not inside (2, 3)",
    ),
    "a value outside its variable's bounds": (
        lambda: leaf.bind(variable("k", -5, 5), -6),
        "k = -6 is not in -5..5",
    ),
    "a key that is none": (
        lambda: random.random_bits(param(0, (), uint64), param(1, (), uint64), (2,)),
        "a key is uint32",
    ),
    "a check that fails": (
        lambda: make(reduce.SCAN, float32, (X,), None),
        "its check fails with TypeError",
    ),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_node_is_reported_with_its_text_the_stage_and_the_users_line(how: str) -> None:
    build, problem = BROKEN[how]
    origin = capture()
    assert origin is not None
    broken = remember(build(), [origin])
    root = SINK(X, broken)
    with pytest.raises(VerifyError) as caught:
        verify(root, stage="fusing")
    line = show(root).splitlines()[toposort([root]).index(broken)]
    assert caught.value.what.startswith("after fusing, at tensor level: ")
    assert problem in caught.value.what
    assert caught.value.what.endswith(f"\n  in: {line}")
    assert caught.value.where == f"{__file__}:{origin.line}"


def test_the_line_is_that_of_the_whole_graphs_text() -> None:
    broken = ADD(X, Y)
    root = SINK(-X, EXP(broken))
    with pytest.raises(VerifyError) as caught:
        verify(root)
    assert "  in: %3 = add %0 %2 : float32[2, 3]\n" in str(caught.value)
    assert show(root).splitlines()[3] == "%3 = add %0 %2 : float32[2, 3]"


def test_the_node_that_is_wrong_is_named_not_one_that_suffers_from_it() -> None:
    broken = make(movement.PERMUTE, float32, (X,), (0, 7))
    with pytest.raises(VerifyError, match=r"in: %1 = permute\(0, 7\) %0 : float32\[\?\]"):
        verify(EXP(-broken))


def test_a_node_of_two_lines_names_both_and_one_of_none_names_nothing() -> None:
    first, second = capture(), capture()
    assert first is not None and second is not None
    with pytest.raises(VerifyError) as caught:
        verify(remember(make(ADD, float32, (X, Y), None, "two lines"), [first, second]))
    assert caught.value.where == f"{first}, {second}"
    with pytest.raises(VerifyError) as caught:
        verify(make(NEG, int32, (Y,)))
    assert caught.value.where == ""


def test_the_bottom_of_a_deep_chain_is_found() -> None:
    x = make(NEG, float16, (X,))
    for _ in range(50_000):
        x = -x
    with pytest.raises(VerifyError, match="in: %1 = neg %0 : float16"):
        verify(x)


def test_dtypes_that_differ_are_refused() -> None:
    with pytest.raises(VerifyError, match="sources have dtypes int32 and float32"):
        verify(ADD(Z, X))


def test_bits_beyond_the_dtype_are_refused() -> None:
    with pytest.raises(VerifyError):
        verify(constant_bits(1 << 40, float32))
