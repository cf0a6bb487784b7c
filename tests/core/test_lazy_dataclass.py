"""Tests of fulgurite/core/lazy_dataclass.py: a dataclass like any other, compiled when used."""

import copy
import pickle
from dataclasses import asdict, field, fields, is_dataclass, replace
from functools import cached_property

import pytest

from fulgurite.core.lazy_dataclass import dataclass

pytestmark = pytest.mark.device("none")


@dataclass(frozen=True, slots=True)
class Point:
    """A place."""

    x: int
    y: int = 2
    tags: list[str] = field(default_factory=list, compare=False, repr=False)

    @property
    def sum(self) -> int:
        return self.x + self.y


@dataclass(frozen=True, slots=True)
class Deep(Point):
    z: int = field(default=3, kw_only=True)


@dataclass
class Counted:
    n: int = 0
    seen: list[int] = field(default_factory=list)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Named:
    name: str

    def __post_init__(self) -> None:
        assert self.name, "a name"

    @cached_property
    def length(self) -> int:
        return len(self.name)


def test_fields_are_given_by_place_by_name_or_by_default() -> None:
    assert (Point(1).x, Point(1).y, Point(1).sum) == (1, 2, 3)
    assert Point(1, 5) == Point(y=5, x=1) != Point(1)
    assert Point(1).tags == [] and Point(1).tags is not Point(1).tags
    assert (Deep(1, z=9).sum, Deep(1).z) == (3, 3)
    assert Counted(4) == Counted(4) and Counted().seen is not Counted().seen


def test_equality_hash_and_text_follow_from_the_fields_that_count() -> None:
    assert Point(1, 2, ["a"]) == Point(1, 2, ["b"]) and len({Point(1), Point(1)}) == 1
    assert Point(1) != Deep(1) and Point(1).__eq__((1, 2)) is NotImplemented
    assert repr(Point(1)) == "Point(x=1, y=2)" and repr(Deep(1)) == "Deep(x=1, y=2, z=3)"
    with pytest.raises(TypeError, match="unhashable"):
        hash(Counted())
    assert Named(name="a") != Named(name="a") and repr(Named(name="a")).startswith("<")


def test_the_standard_library_knows_its_fields() -> None:
    assert is_dataclass(Point) and [f.name for f in fields(Deep)] == ["x", "y", "tags", "z"]
    assert replace(Deep(1, z=4), y=7) == Deep(1, 7, z=4)
    assert asdict(Counted(1, [2])) == {"n": 1, "seen": [2]}
    assert copy.copy(Point(3)) == pickle.loads(pickle.dumps(Point(3))) == Point(3)
    match Point(5):
        case Point(x, y):
            assert (x, y) == (5, 2)


def test_slots_hold_the_fields_alone_and_other_classes_may_cache() -> None:
    assert not hasattr(Point(1), "__dict__") and [*Deep.__slots__] == ["z"]
    assert Named(name="abc").length == 3 and Point.__doc__ == "A place."


@pytest.mark.parametrize("arguments", [{}, {"x": 1, "w": 2}], ids=["too few", "unknown"])
def test_wrong_arguments_are_named(arguments: dict[str, int]) -> None:
    with pytest.raises(TypeError, match=r"Point\.__init__\(\) .*'[xw]'"):
        Point(**arguments)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="a name"):
        Named(name="")


def test_a_class_compiles_nothing_before_an_instance_and_a_table_of_defaults_nothing_at_all() -> (
    None
):
    @dataclass(frozen=True, slots=True)
    class Table:
        rows: int = 4
        names: dict[str, int] = field(default_factory=dict)

    before = Table.__init__
    assert (Table().rows, Table().names) == (4, {}) and Table.__init__ is before
    assert Table(5).rows == 5 and Table.__init__ is not before
