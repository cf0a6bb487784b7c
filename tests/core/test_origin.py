"""Tests of fulgurite/core/origin.py: the user's line rides beside the node."""

import inspect
from types import FrameType

from fulgurite.core import build
from fulgurite.core.dtype import float32
from fulgurite.core.node import Node
from fulgurite.core.ops.elementwise import ADD, EXP, NEG
from fulgurite.core.ops.leaf import param
from fulgurite.core.origin import MAX_ORIGINS, one_line, origins, scope
from fulgurite.core.rewriting.rewrite import rewrite
from fulgurite.core.rewriting.substitute import substitute
from fulgurite.graph.passes.laws import SIMPLIFY


def x(i: int) -> Node:
    return param(i, (3,), float32)


def line() -> int:
    frame: FrameType | None = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


def test_the_users_file_and_line_are_noted() -> None:
    top, here = build.apply(EXP, x(700)), line()
    assert top.origins[0].file == __file__
    assert top.origins[0].line == here


def test_a_hit_notes_its_line_too() -> None:
    first = build.apply(EXP, x(701))
    second = build.apply(EXP, x(701))
    assert first is second
    assert len({origin.line for origin in first.origins}) == 2


def test_one_line_is_noted_once() -> None:
    made = [build.apply(EXP, x(702)) for _ in range(20)]
    assert len(made[0].origins) == 1


def test_only_the_first_few_lines_are_kept() -> None:
    text = "\n".join(["made.append(build.apply(EXP, node))"] * 40)
    made: list[Node] = []
    exec(
        compile(text, "many.py", "exec"), {"made": made, "build": build, "EXP": EXP, "node": x(703)}
    )
    assert len(made[0].origins) == MAX_ORIGINS


def test_origins_never_enter_identity() -> None:
    with origins(False):
        bare = build.apply(NEG, x(704))
    assert bare.origins == ()
    assert build.apply(NEG, x(704)) is bare


def test_named_scopes_show_in_the_origin() -> None:
    with scope("encoder"), scope("layer0"):
        top = build.apply(EXP, x(705))
    assert top.origins[0].scopes == ("encoder", "layer0")
    assert repr(top.origins[0]).endswith("in encoder/layer0")


def test_capture_can_be_switched_off() -> None:
    with origins(False):
        assert build.apply(EXP, x(706)).origins == ()


def test_rewrites_hand_origins_on() -> None:
    inner = build.apply(ADD, x(707), x(708))
    top = build.apply(NEG, build.apply(NEG, inner))
    simple = rewrite(top, SIMPLIFY)
    assert simple is inner
    assert set(top.origins) <= set(simple.origins)


def test_substitution_hands_origins_on() -> None:
    top = build.apply(EXP, x(709))
    moved = substitute(top, {x(709): x(710)})
    assert moved.origins == top.origins


def test_one_line_is_found_once_for_all_that_is_built_inside() -> None:
    x = build.buffer((2,), float32)
    with one_line():
        first = build.apply(ADD, x, 1.0)
        second = build.apply(ADD, x, 2.0)
    third = build.apply(ADD, x, 3.0)
    assert first.origins == second.origins
    assert first.origins[0].line < third.origins[0].line
    assert third.origins[0].file == first.origins[0].file == __file__
