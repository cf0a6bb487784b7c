"""Tests of fulgurite/core/text.py: what is printed is what is read."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fulgurite.core.dtype import (
    DTYPES,
    DType,
    bfloat16,
    bool_,
    complex64,
    complex128,
    float8_e5m2,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint32,
    uint64,
    void,
)
from fulgurite.core.node import SOURCES, Node, annotate, constant, constant_bits, make, remember
from fulgurite.core.op import Op
from fulgurite.core.operators import OPS
from fulgurite.core.ops import effect, elementwise, leaf, movement, reduce
from fulgurite.core.ops.elementwise import EXP, NEG
from fulgurite.core.ops.leaf import SINK, param, variable
from fulgurite.core.origin import capture, scope
from fulgurite.core.shape import add, as_node, mul
from fulgurite.core.text import parse, parse_all, show
from fulgurite.errors import ParseError
from tests.conftest import Golden
from tests.samples import HOST, N, memory, sample

DECLARED = tuple(OPS.values())  # without what tests add while they run


def softmax() -> Node:
    x = param(0, (4, 3), float32)
    top = movement.expand(reduce.reduce_node("max", x, (1,)), (4, 3))
    weights = EXP(x - top)
    return weights / movement.expand(reduce.reduce_node("add", weights, (1,)), (4, 3))


# --- printing ------------------------------------------------------------------------------------


def test_softmax_reads_well(golden: Golden) -> None:
    golden(show(softmax()), "text/softmax.txt")


def test_symbolic_sizes_read_well(golden: Golden) -> None:
    x = param(0, (N, 3), float32)
    padded = movement.pad(x, [(1, N), (0, 0)])
    windows = movement.window(padded, 0, 2, 2)
    flat = movement.reshape(x * 0.5, (mul(N, 3),))
    golden(show(windows, flat), "text/symbolic.txt")


def test_constants_read_well(golden: Golden) -> None:
    nodes = [
        constant(0.1, float32, (4, 3)),
        constant(0.1, float64),
        constant(0.1, bfloat16),
        constant(1e30, float32),
        constant(-0.0, float16),
        constant(math.inf, float8_e5m2),
        constant(math.nan, float32),
        constant_bits(0x7FC00001, float32),
        constant(True, bool_),
        constant(-7, int32),
        constant(2**64 - 1, uint64),
        constant(0.1 - 2j, complex64),
        constant(complex(-0.0, math.inf), complex128),
        constant(1, int32, (N, 3)),
    ]
    golden(show(*nodes), "text/constants.txt")


def test_state_and_host_functions_read_well(golden: Golden) -> None:
    old = memory((2, 3))
    new = effect.ASSIGN(old, effect.custom(HOST, (old,), (2, 3), float32))
    read = effect.AFTER(old, new)
    golden(show(SINK(new, effect.copy_to(read, "cpu:1"))), "text/state.txt")


def test_a_shared_node_is_printed_once() -> None:
    x = param(0, (), float32)
    for _ in range(100):
        x = x + x
    assert len(show(x).splitlines()) == 102


def test_several_roots_are_returned_in_order() -> None:
    x, y = param(0, (), float32), param(1, (), int32)
    assert show(y, x, y).splitlines()[-1] == "return %0, %1, %0"
    assert parse_all(show(y, x, y)) == [y, x, y]
    assert parse_all(show()) == []


def test_numbers_start_at_zero_whatever_was_made_before() -> None:
    assert show(softmax()) == show(softmax())
    assert show(param(0, (), float32)).startswith("%0 = ")


def test_origins_are_comments_which_the_parser_skips() -> None:
    with scope("encoder"), scope("layer 1"):
        origin = capture()
    assert origin is not None
    y = remember(-param(9, (2, 3), float32), [origin])
    text = show(y, origins=True)
    assert f"[2, 3]  # test_text.py:{origin.line} in encoder/layer 1\n" in text
    assert "#" not in show(y)
    assert parse(text) is y


def test_comments_blank_lines_and_names_are_for_hand_written_text() -> None:
    text = """
        # a comment of its own
        %x = param(0,(2,  3),"reference"):float32[2,3]   # and one behind
        %two = const 2 : float32[2, 3]

        %y = mul %x %two : float32[2, 3] # result
        return %y
    """
    assert parse(text) is param(0, (2, 3), float32) * 2.0


# --- everything comes back -----------------------------------------------------------------------


@pytest.mark.parametrize("op", DECLARED, ids=str)
def test_every_sample_of_an_op_comes_back(op: Op) -> None:
    nodes = sample(op)
    assert nodes and all(node.op is op for node in nodes)
    assert parse_all(show(*nodes)) == nodes
    for node in nodes:
        assert parse(show(node)) is node


def test_one_graph_with_all_samples_comes_back() -> None:
    root = SINK(*[node for op in DECLARED for node in sample(op)])
    assert parse(show(root)) is root


def test_an_op_that_is_added_at_run_time_comes_back() -> None:
    op = elementwise.elementwise("cube_of_text", lambda a: a * a * a, "a * a * a", arity=1)
    try:
        nodes = sample(op)
        assert parse_all(show(*nodes)) == nodes
    finally:
        del OPS["cube_of_text"]


def small_dtypes() -> list[DType]:
    return [d for d in DTYPES if d.is_small_float or d.bits <= 8]


@pytest.mark.parametrize("dtype", small_dtypes(), ids=str)
def test_every_bit_pattern_of_a_small_dtype_comes_back(dtype: DType) -> None:
    constants = [constant_bits(bits, dtype) for bits in range(1 << max(dtype.bits, 8))]
    assert parse_all(show(*constants)) == constants


HOSTILE = {
    float32: [
        0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000,
        0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FBFFFFF, 0x7FC0BEEF, 0xFFFFFFFF,
        0x3DCCCCCD, 0x3DCCCCCC, 0x4B800000, 0x4B800001,
    ],
    float64: [
        0, 1 << 63, 1, 0x000FFFFFFFFFFFFF, 0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000,
        0xFFF0000000000000, 0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001,
        0x7FF8DEADBEEF0000, 0xFFFFFFFFFFFFFFFF, 0x3FB999999999999A, 0x3FB9999999999999,
    ],
}  # fmt: skip


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_hostile_floats_come_back_alone_and_as_complex_parts(dtype: DType) -> None:
    wide = complex64 if dtype is float32 else complex128
    parts = HOSTILE[dtype]
    constants = [constant_bits(bits, dtype) for bits in parts]
    constants += [constant_bits(a | b << dtype.bits, wide) for a in parts for b in parts]
    assert parse_all(show(*constants)) == constants


@given(st.sampled_from(DTYPES), st.integers(0, 2**128 - 1))
def test_any_bits_of_any_dtype_come_back(dtype: DType, bits: int) -> None:
    node = constant_bits(bits & (1 << max(dtype.bits, 8)) - 1, dtype)
    assert parse(show(node)) is node


@given(st.floats(width=32))
def test_a_float32_is_as_short_as_numpy_prints_it(number: float) -> None:
    word = show(constant(number, float32)).split()[3]
    if not math.isnan(number):
        assert np.float32(word) == np.float32(number)
        assert len(word) <= len(repr(number))


def test_zeros_ones_and_nans_of_different_bits_have_different_texts() -> None:
    quiet, payload = struct.unpack("<II", struct.pack("<II", 0x7FC00000, 0x7FC00001))
    nodes = [
        constant(0.0, float32), constant(-0.0, float32), constant(1, int32), constant(1, int64),
        constant(True, bool_), constant(1.0, float32), constant_bits(quiet, float32),
        constant_bits(payload, float32), constant(1, uint32), constant(1 + 0j, complex64),
    ]  # fmt: skip
    assert len({show(node) for node in nodes}) == len(nodes)


def test_bits_beyond_their_dtype_come_back_too() -> None:
    broken = [
        constant_bits(bits, dtype)
        for bits in (-1, 2, 1 << 40, 1 << 200)
        for dtype in (bool_, int32, float32, bfloat16, complex64, void)
    ]
    assert parse_all(show(*broken)) == broken


TAGS = ["x", "encoder/layer-1.b", "two words", "", "True", "3", 3, True, 1.5, ("a", (1, None)), ()]


@pytest.mark.parametrize("tag", TAGS, ids=repr)
def test_tags_come_back(tag: Any) -> None:
    x = param(0, (), float32)
    node = make(NEG, float32, (x,), None, tag)
    assert parse(show(node)) is node
    assert parse(show(node)).tag == tag
    assert node is not -x


def test_metadata_is_noted_but_does_not_come_back() -> None:
    plain = -param(0, (2,), float32)
    noted = annotate(plain, ValueError("typed metadata"))
    assert "%1 = neg %0 : float32[2] !meta(ValueError)\n" in show(noted)
    assert parse(show(noted)) is plain
    assert "!meta" not in show(plain)


def test_two_sizes_of_one_name_stay_two_variables() -> None:
    a, b = variable("n", 1, 8), variable("n", 1, 9)
    x = param(0, (a, b, a), float32)
    assert show(x).endswith("float32[n, n, n]\nreturn %2")
    assert parse(show(x)) is x


def test_a_bound_size_reads_as_its_variable() -> None:
    x = constant(1, float32, (leaf.bind(N, 5), 2))
    assert "float32[n, 2]" in show(x)
    assert parse(show(x)) is x


def test_a_name_with_odd_letters_comes_back() -> None:
    names = ["größe", "a]b", "it's", 'say "n"', "line\nbreak", "\ud800", "# no comment", "%0", ""]
    nodes = [param(0, (variable(name, 1, 8), 2), float32) for name in names]
    assert parse_all(show(*nodes)) == nodes


@pytest.mark.parametrize("name", ["scale", "a.b", "my function", "it's", "<lambda>", "λ", ""])
def test_a_host_function_comes_back_by_name(name: str) -> None:
    host = effect.register_host(effect.HostFunction(name, np.negative))
    try:
        node = effect.custom(host, (param(0, (2,), float32),), (2,), float32)
        assert parse(show(node)) is node
    finally:
        del effect.HOST_FUNCTIONS[name]


def test_a_host_function_that_is_not_registered_does_not_parse() -> None:
    host = effect.HostFunction("nobody.knows", np.negative)
    node = effect.custom(host, (), (2,), float32)
    assert "custom(@nobody.knows, 0, (2,)) : float32[2]" in show(node)
    with pytest.raises(ParseError, match=r"line 1, column 13: no host function 'nobody\.knows'"):
        parse(show(node))


def test_a_host_function_whose_name_another_one_has_is_not_taken_for_it() -> None:
    node = effect.custom(effect.HostFunction(HOST.name, np.negative), (), (2,), float32)
    with pytest.raises(ParseError, match="<HostFunction> stands for a value that has no text"):
        parse(show(node))


def test_a_value_without_text_is_shown_by_its_type() -> None:
    node = make(NEG, float32, (param(0, (), float32),), (frozenset({1}), 2))
    assert "neg(<frozenset>, 2) %0" in show(node)
    with pytest.raises(ParseError, match="<frozenset> stands for a value that has no text"):
        parse(show(node))


def test_numpy_numbers_in_an_argument_come_back_as_equal_numbers() -> None:
    node = make(NEG, float32, (), (np.int64(3), np.float32(0.5), np.bool_(True)))
    assert "neg(3, 0.5, True)" in show(node)
    assert parse(show(node)) is node


def test_huge_and_tiny_arguments_come_back() -> None:
    numbers = (10**30, -(10**5000), 5e-324, 1.7976931348623157e308, -math.inf, math.nan, -0.0, 2j)
    node = make(NEG, float32, (), numbers)
    assert parse(show(node)) is node


def test_tuples_may_be_nested_but_not_without_end() -> None:
    nested: Any = 1
    for _ in range(60):
        nested = (nested,)
    node = make(NEG, float32, (), nested)
    assert parse(show(node)) is node
    for _ in range(60):
        nested = (nested,)
    assert "<tuple>" in show(make(NEG, float32, (), nested))
    with pytest.raises(ParseError):
        parse("%0 = neg" + "(" * 100_000 + ")" * 100_000 + " : float32[?]\nreturn %0")


def test_a_shape_that_cannot_be_worked_out_is_a_question_mark() -> None:
    x = param(0, (2, 3), float32)
    broken = make(movement.PERMUTE, float32, (x,), (0, 7))
    above = EXP(-broken)
    assert show(above).count("float32[?]") == 3
    assert parse(show(above)) is above


def test_a_long_size_is_cut_short() -> None:
    size = N
    for i in range(50):
        size = elementwise.MAX(as_node(add(size, i)), N * i)
    x = param(0, (size,), float32)
    assert max(map(len, show(x).splitlines())) < 200
    assert parse(show(x)) is x


# --- random graphs -------------------------------------------------------------------------------

numbers = st.one_of(st.integers(), st.floats(allow_nan=False), st.just(math.nan), st.booleans())
words = st.text(max_size=8)
atoms = st.one_of(
    numbers,
    words,
    st.none(),
    st.sampled_from([*DTYPES, void]),
    st.sampled_from(SOURCES),
    st.just(HOST),
    st.complex_numbers(allow_nan=False),
)
values = st.recursive(atoms, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=8)


@st.composite
def raw_graphs(draw: st.DrawFn) -> list[Node]:
    """Nodes of any op with any argument, most of them nonsense."""
    nodes: list[Node] = []
    for _ in range(draw(st.integers(1, 8))):
        src = draw(st.lists(st.sampled_from(nodes), max_size=3)) if nodes else []
        op, dtype = draw(st.sampled_from(DECLARED)), draw(st.sampled_from([*DTYPES, void]))
        tag = draw(st.none() | values)
        nodes.append(make(op, dtype, tuple(src), draw(values), tag))
    return nodes


@given(raw_graphs())
def test_any_graph_comes_back_even_if_it_makes_no_sense(nodes: list[Node]) -> None:
    assert parse_all(show(*nodes)) == nodes


@st.composite
def graphs(draw: st.DrawFn) -> Node:
    """Valid graphs of floats with sharing."""
    shape = draw(st.sampled_from([(2, 3), (), (0, 3), (N, 3)]))
    nodes = [param(i, shape, float32) for i in range(2)]
    unary = [op for op in DECLARED if op.family == "elementwise" and op.arity == 1]
    unary = [op for op in unary if "f" in op.kinds and op.name not in ("cast", "bitcast")]
    for _ in range(draw(st.integers(1, 20))):
        a, b = draw(st.sampled_from(nodes)), draw(st.sampled_from(nodes))
        number = draw(st.floats(width=32))
        op = draw(st.sampled_from(unary))
        arg = 1 if op.name == "polygamma" else None
        nodes.append(draw(st.sampled_from([a + b, a * number, op(a, arg=arg)])))
    return nodes[-1]


@given(graphs())
def test_valid_graphs_come_back(root: Node) -> None:
    assert parse(show(root)) is root


# --- what does not parse -------------------------------------------------------------------------

WRONG = [
    ("", "line 1: the text ends without a return"),
    ("%0 = var('n', 1, 8, ()) : int64[]", "line 1: the text ends without a return"),
    ("return %0", "line 1, column 8: %0 is not defined above"),
    ("return 5", "line 1, column 8: expected a node such as %0, found '5'"),
    ("return\nreturn", "line 2, column 1: 'return' after the return"),
    ("x = neg : float32[]", "line 1, column 1: expected a node such as %0, or return, found 'x'"),
    ("%0 neg : float32[]", "line 1, column 4: expected '=', found 'neg'"),
    ("%0 = ngeate : float32[]", "line 1, column 6: there is no op 'ngeate'"),
    ("%0 = 5", "line 1, column 6: expected the name of an op, found '5'"),
    ("%0 = neg %1 : float32[]", "line 1, column 10: %1 is not defined above"),
    ("%0 = neg", "line 1, column 9: expected ':', found 'the end of the line'"),
    ("%0 = neg : float31[]", "line 1, column 12: 'float31' is not a dtype"),
    ("%0 = neg : 'x'[]", "line 1, column 12: expected a dtype"),
    ("%0 = neg : float32", "line 1, column 19: expected a shape such as [4, 3]"),
    ("%0 = neg : float32[?] 7", "line 1, column 23: '7' does not belong here"),
    ("%0 = neg : float32[?] #", "the text ends without a return"),
    ("%0 = neg : float32[?] #+", "line 1, column 24: '+' is not part of any text"),
    ("%0 = neg : float32[?] #%0", "line 1, column 24: expected a tag, found '%0'"),
    ("%0 = neg(1 2) : float32[?]", "line 1, column 12: expected ',', found '2'"),
    ("%0 = neg(1", "line 1, column 11: expected ',', found 'the end of the line'"),
    ("%0 = neg(,) : float32[?]", "line 1, column 10: expected a value, found ','"),
    ("%0 = neg(eval) : float32[?]", "line 1, column 10: expected a value, found 'eval'"),
    ("%0 = neg($256) : float32[?]", "line 1, column 10: expected a value, found '$256'"),
    ("%0 = neg(@f) : float32[?]", "line 1, column 10: no host function 'f' is registered"),
    ("%0 = neg('\\q') : float32[?]", "line 1, column 10: \"'"),
    ("%0 = neg('\\U00110000') : float32[?]", "line 1, column 10: '\\U00110000' has an escape"),
    ("%0 = neg('open) : float32[?]", "line 1, column 10: "),
    (f"%0 = neg({'9' * 5000}) : float32[?]", "line 1, column 10: this number is too long"),
    ("%0 = const 300 : uint8[]", "line 1, column 12: 300 is not a value of uint8"),
    ("%0 = const 0.5 : int32[]", "line 1, column 12: 0.5 is not a value of int32"),
    ("%0 = const 1.0+2.0j : float32[]", "line 1, column 12: 1.0+2.0j is not a value of float32"),
    ("%0 = const 1 : void[]", "line 1, column 12: 1 is not a value of void"),
    (f"%0 = const {'9' * 5000} : int64[]", "line 1, column 12: this number is too long"),
    ("%0 = const 1 : int64[n]", "line 1, column 21: [n] is not a shape of whole numbers"),
    ("%0 = const 1 (4,) : int64[5]", "line 1, column 26: const gives shape [4], not [5]"),
    (
        "%0 = const 1 : int64[]\n%0 = const 1 : int64[]",
        "line 2, column 1: %0 is defined twice",
    ),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=[text[:40] for text, _ in WRONG])
def test_what_is_wrong_is_said_with_line_and_column(text: str, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_all(text)
    assert message in caught.value.what
    assert "test_text.py" in caught.value.where


def test_one_node_is_asked_for_and_several_are_returned() -> None:
    x = param(0, (), float32)
    with pytest.raises(ParseError, match="the text returns 2 nodes, not one"):
        parse(show(x, -x))


@functools.cache
def texts() -> tuple[str, ...]:
    return tuple([show(*sample(op)[-3:]) for op in DECLARED])


edits = st.tuples(st.integers(0, 10_000), st.integers(0, 12), st.integers(0, 60))
snippets = st.sampled_from(
    [*" ()[],:='\"%$@#!<>-.\\\n0?", "-1", "0x", "0xff", "1e999", "nan", "9" * 30, "%0", "%1", "$0",
     "$1", "((((", "))", "[]", "const ", "sink ", "reduce", "custom(", "return", "float32",
     "void[]", "'add'", "None", "True", "1.0+2.0j", "#t", "!meta(x)", "<x>", "\r", "\0", "é"]
) | st.text(max_size=3)  # fmt: skip


@given(st.data())
def test_changed_text_parses_or_is_a_parse_error(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(texts()))
    for _ in range(data.draw(st.integers(1, 4))):
        place, cut, other = data.draw(edits)
        place %= len(text) + 1
        moved = text[other : other + cut]
        patch = data.draw(st.just(moved) | st.just("") | snippets)
        text = text[:place] + patch + text[place + cut :]
    try:
        roots = parse_all(text)
    except ParseError as error:
        assert error.what.startswith("line ")
    else:
        assert parse_all(show(*roots)) == roots


@given(st.text())
@example("%0 = neg : float32[?]\x0breturn")
@example("\ufeffreturn")
def test_any_text_parses_or_is_a_parse_error(text: str) -> None:
    try:
        parse_all(text)
    except ParseError as error:
        assert error.what.startswith("line ")


# --- large graphs --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chain() -> Iterator[Node]:
    x = param(0, (4, 3), float32)
    for _ in range(50_000):
        x = -x
    yield x


def test_a_very_deep_chain_is_shown(chain: Node) -> None:
    lines = show(chain).split("\n")
    assert len(lines) == 50_002
    assert lines[-2] == "%50000 = neg %49999 : float32[4, 3]"


def test_a_deep_chain_parses() -> None:
    x = param(0, (4, 3), float32)
    for _ in range(20_000):
        x = -x
    assert parse(show(x)) is x
