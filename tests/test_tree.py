"""Tests of fulgurite/tree.py: taking trees apart and putting them together again."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite import tree
from fulgurite.errors import ArgumentError
from tests.functional.helpers import raises

pytestmark = pytest.mark.device("none")


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Layer:
    weight: Any
    bias: Any = None
    name: str = "layer"

    def __post_init__(self) -> None:
        if self.weight is None:
            raise ValueError("a layer has a weight")


@dataclasses.dataclass(slots=True)
class Slotted:
    a: Any
    b: list[Any]


class Module:
    """A type of one's own, registered below."""

    def __init__(self, children: dict[str, Any], training: bool) -> None:
        self.children, self.training = children, training


tree.register(
    Module,
    lambda m: (list(m.children.values()), (tuple(m.children), m.training)),
    lambda extra, children: Module(dict(zip(extra[0], children, strict=True)), extra[1]),
)

TREES = st.recursive(
    st.integers() | st.none() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.builds(Point, inner, inner)
        | st.builds(Slotted, inner, st.lists(inner, max_size=2))
    ),
    max_leaves=12,
)


@given(TREES)
def test_any_tree_comes_back_from_its_leaves_and_form(value: Any) -> None:
    leaves, form = tree.flatten(value)
    assert form.count == len(leaves)
    back = tree.unflatten(form, leaves)
    assert back == value and type(back) is type(value)
    assert tree.structure(back) == form and hash(tree.structure(back)) == hash(form)


@given(TREES)
def test_mapping_the_identity_changes_nothing_and_calls_once_a_leaf(value: Any) -> None:
    seen: list[Any] = []

    def look(leaf: Any) -> Any:
        seen.append(leaf)
        return leaf

    assert tree.map(look, value) == value
    assert seen == tree.leaves(value)


def test_a_tree_that_is_a_leaf_is_its_own_leaf() -> None:
    assert tree.flatten(3) == ([3], tree.LEAF)
    assert tree.leaves(None) == [None] and tree.leaves([]) == []
    assert tree.unflatten(tree.LEAF, ["x"]) == "x"


def test_named_tuples_ordered_and_default_dicts_keep_their_type() -> None:
    counts: defaultdict[str, Any] = defaultdict(list, b=4)
    value = (Point(1, 2), OrderedDict(a=3), counts)
    back = tree.map(lambda x: x * 10, value)
    assert back == (Point(10, 20), {"a": 30}, {"b": 40})
    assert isinstance(back[1], OrderedDict) and back[2].default_factory is list


def test_a_dataclass_is_put_together_without_its_own_checks() -> None:
    layer = Layer([1, 2], name="first")
    nothing = tree.map(lambda leaf: None, layer)
    assert isinstance(nothing, Layer) and nothing.weight == [None, None]
    assert tree.map(lambda leaf: leaf, layer) == layer
    assert tree.leaves(Slotted(1, [2])) == [1, 2]


def test_a_registered_type_is_a_container_and_its_extra_is_part_of_the_form() -> None:
    model = Module({"w": 1, "b": [2]}, training=True)
    doubled = tree.map(lambda x: 2 * x, {"m": model})["m"]
    assert doubled.children == {"w": 2, "b": [4]} and doubled.training
    still = Module({"w": 1, "b": [2]}, training=False)
    assert tree.structure(model) != tree.structure(still)
    with raises(ArgumentError, "container already"):
        tree.register(Module, lambda x: ([], None), lambda extra, children: None)
    with raises(ArgumentError, "not a type"):
        tree.register("Module", lambda x: ([], None), lambda extra, children: None)  # type: ignore[arg-type]


def test_a_subclass_that_is_met_before_it_is_registered_is_a_leaf_until_then() -> None:
    class Late:
        pass

    assert len(tree.leaves([Late()])) == 1
    tree.register(Late, lambda x: ([1, 2], None), lambda extra, children: Late())
    assert tree.leaves([Late()]) == [1, 2]


def test_several_trees_are_matched_by_key_whatever_the_order_of_their_dicts() -> None:
    first, second = {"a": 1, "b": [2, 3]}, {"b": [20, 30], "a": 10}
    assert tree.map(lambda x, y: x + y, first, second) == {"a": 11, "b": [22, 33]}


@pytest.mark.parametrize("other", [[1], {"a": 1}, (1, 2, 3), [1, [2]], 5], ids=str)
def test_trees_of_another_form_are_refused(other: Any) -> None:
    with raises(ArgumentError, "give trees of one form"):
        tree.map(lambda x, y: x, [1, 2], other)


def test_too_few_leaves_are_refused() -> None:
    with raises(ArgumentError, "1 leaves for a tree of 2"):
        tree.unflatten(tree.structure([1, 2]), [1])


def test_forms_differ_by_type_keys_and_depth() -> None:
    forms = [tree.structure(t) for t in ([1], (1,), [[1]], {"a": 1}, {"b": 1}, Point(1, 2), 1)]
    assert len(set(forms)) == len(forms)
    assert str(tree.structure({"a": [1, Point(1, 2)]})) == "{'a': [*, Point(x=*, y=*)]}"
    assert tree.structure([1]) != "[*]"


def test_paths_name_the_way_to_every_leaf() -> None:
    value = {"a": [1, Point(2, 3)], "b": Layer(4), "c": Module({"w": 5}, True)}
    ways = dict((leaf, way) for way, leaf in tree.paths(value) if isinstance(leaf, int))
    assert ways == {
        1: ("a", 0), 2: ("a", 1, "x"), 3: ("a", 1, "y"), 4: ("b", "weight"), 5: ("c", 0),
    }  # fmt: skip


def test_all_asks_every_leaf() -> None:
    assert tree.all(lambda x: x > 0, [1, {"a": 2}]) and tree.all(lambda x: False, [])
    assert not tree.all(lambda x: x > 1, [1, {"a": 2}])


def test_a_prefix_stands_for_all_below_it() -> None:
    value = ([1, 2], {"a": 3, "b": (4,)})
    assert tree.spread(0, value, "axes") == [0, 0, 0, 0]
    assert tree.spread((0, None), value, "axes") == [0, 0, None, None]
    assert tree.spread(((1, 2), {"a": 3, "b": 4}), value, "axes") == [1, 2, 3, 4]
    for wrong in ((0,), ([0], 0), (0, {"a": 1}), (0, [1, 2]), ((0, (1,)), 2)):
        with raises(ArgumentError, "axes is"):
            tree.spread(wrong, value, "axes")


def test_gradients_follow_dataclasses_and_registered_types() -> None:
    layer = Layer(fg.Tensor([2.0]), fg.Tensor([1.0]))
    slopes = fg.grad(lambda p: (p.weight * 3 + p.bias).sum())(layer)
    assert isinstance(slopes, Layer)
    assert slopes.weight.tolist() == [3.0] and slopes.bias.tolist() == [1.0]
    assert slopes.name is None
    model = Module({"w": fg.Tensor([2.0])}, training=True)
    assert fg.grad(lambda m: (m.children["w"] ** 2).sum())(model).children["w"].tolist() == [4.0]


def test_a_registered_type_may_name_its_children() -> None:
    class Named:
        def __init__(self, parts: dict[str, int]) -> None:
            self.parts = parts

    tree.register(
        Named,
        lambda x: (list(x.parts.values()), tuple(x.parts)),
        lambda names, children: Named(dict(zip(names, children, strict=True))),
        lambda names: names,
    )
    assert tree.paths(Named({"w": 1, "b": 2})) == [(("w",), 1), (("b",), 2)]


def test_the_epoch_grows_with_every_binding_that_is_noted() -> None:
    before = tree.epoch()
    tree.rebound()
    assert tree.epoch() == before + 1


def test_a_dtype_is_a_leaf_and_stays_the_same_object() -> None:
    assert fg.tree.leaves({"dtype": fg.float32}) == [fg.float32]
    assert fg.tree.map(lambda x: x, fg.bfloat16) is fg.bfloat16
    kind = fg.jit(lambda x: (x.dtype, x * 2))
    for _ in range(2):
        assert kind(fg.ones(2))[0] is fg.float32
