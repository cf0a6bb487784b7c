"""Tests of fulgurite/core/lazy_named_tuple.py: what typing's own does, made sooner."""

from __future__ import annotations

import copy
import pickle
import typing

import pytest

from fulgurite.core.lazy_named_tuple import NamedTuple


class Ours(NamedTuple):
    """A pair."""

    first: int
    second: str = "b"

    @property
    def both(self) -> str:
        """All of it."""
        return f"{self.first}{self.second}"

    @classmethod
    def of(cls, first: int) -> Ours:
        """One with a default."""
        return cls(first)

    def __str__(self) -> str:
        return "ours"


class Theirs(typing.NamedTuple):
    """A pair."""

    first: int
    second: str = "b"


def test_it_is_what_typing_makes() -> None:
    ours, theirs = Ours(1), Theirs(1)
    assert (*ours,) == (*theirs,) and ours == (1, "b") and hash(ours) == hash(theirs)
    assert Ours._fields == Theirs._fields and Ours._field_defaults == Theirs._field_defaults
    assert Ours.__mro__[1:] == Theirs.__mro__[1:] == (tuple, object)
    assert Ours.__doc__ == Theirs.__doc__ and Ours.__module__ == Theirs.__module__
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours") and str(ours) == "ours"
    assert ours._replace(first=2) == Ours(first=2, second="b") and ours._asdict() == {
        "first": 1, "second": "b",
    }  # fmt: skip
    assert typing.get_type_hints(Ours) == typing.get_type_hints(Theirs)
    with pytest.raises(AttributeError):
        ours.first = 2  # type: ignore[misc]


def test_methods_come_with_it_and_copies_and_pickles_go_back() -> None:
    ours = Ours.of(3)
    assert ours.both == "3b" and type(ours) is Ours
    assert pickle.loads(pickle.dumps(ours)) == copy.deepcopy(ours) == ours
    assert Ours.__qualname__ == "Ours" and not hasattr(ours, "__dict__")
