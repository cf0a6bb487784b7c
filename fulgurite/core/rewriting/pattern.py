"""Patterns, and the laws and rules made of them.

In: equations written as expressions, `RULES.law("factor", a*b + a*c, a*(b + c), when=whole)`, and
named functions, `@RULES.rule(a + b)`. Out: `Rules`, which finds what replaces a node. A law is
data: the greedy rewriter reads it left to right, the e-graph both ways, and tests evaluate both
sides. A rule is for what needs Python: it returns the replacement, or None to decline.
Each left side is compiled, on first use, to a Python function that rejects early by op and tries
both orders of commutative ops. The invariant: what a match returns has the node's shape and dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import field
from functools import cache
from inspect import signature
from math import isinf, isnan
from sys import _getframe
from typing import Any, Generic, TypeAlias, TypeVar

from ...errors import ConstantError
from ..dtype import DTYPES, DType, Number, bool_, decode, encode
from ..lazy_dataclass import dataclass
from ..node import Node, constant_bits
from ..op import Op
from ..operators import OPS, Operators

When: TypeAlias = Callable[[DType], bool]
Test: TypeAlias = Callable[[Node], bool]
Build: TypeAlias = Callable[..., Node | None]
Match: TypeAlias = Callable[[Node], Node | None]
ByDType: TypeAlias = Callable[[DType], Number | None]  # a number that depends on the dtype


class _Anything:
    def __repr__(self) -> str:
        return "anything"


ANYTHING = _Anything()  # as a pattern's argument: not looked at


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Pattern(Operators):
    """Matches a node: an op on patterns, a number, or (a variable) the same node each time."""

    op: Op | None = None
    src: tuple[Pattern, ...] = ()
    arg: Any = ANYTHING  # else the exact argument, or a predicate of it
    name: str = ""
    number: Number | ByDType | None = None
    dtype: DType | None = None  # of a variable
    constant: bool = False  # a variable that stands for constants only
    test: Test | None = None  # a variable that stands for such nodes only
    family: str = ""  # any op of this family, if all its sources are constants

    def __repr__(self) -> str:
        if self.op is None:
            return self.name or (f"constant {self.family}" if self.family else str(self.number))
        return f"{self.op}({', '.join(map(repr, self.src))})"

    def _apply(self, op: Op, operands: tuple[Any, ...]) -> Pattern:
        return p(op, *operands)


def p(op: Op, *operands: Pattern | Number, arg: Any = ANYTHING) -> Pattern:
    """The pattern of an op on patterns; `p(EXP, a)` where Python has no operator."""
    return Pattern(op, tuple([_lift(x) for x in operands]), arg)


def variables(
    names: str, dtype: DType | None = None, constant: bool = False, test: Test | None = None
) -> tuple[Pattern, ...]:
    """`a, b = variables("a b")`: a variable stands for one node, the same each time."""
    return tuple(
        Pattern(name=name, dtype=dtype, constant=constant, test=test) for name in names.split()
    )


def conditions(names: str) -> tuple[Pattern, ...]:
    """Variables of dtype bool, whatever dtype the rest of a law has."""
    return variables(names, dtype=bool_)


def constants(names: str, test: Test | None = None) -> tuple[Pattern, ...]:
    """Variables that stand for constants only."""
    return variables(names, constant=True, test=test)


def number(name: str, value: ByDType) -> Pattern:
    """A number that depends on the dtype; None where there is none, and then nothing matches."""
    return Pattern(name=name, number=value)


def constant_op(family: str) -> Pattern:
    """Any op of a family, applied to constants only."""
    return Pattern(family=family)


def _lift(x: Pattern | Number) -> Pattern:
    return x if isinstance(x, Pattern) else Pattern(number=x)


def always(dtype: DType) -> bool:
    """Accept every dtype."""
    return True


def variables_of(pattern: Pattern) -> dict[str, Pattern]:
    """The variables of a pattern by name, in the order they are written."""
    if pattern.op is None:
        return {pattern.name: pattern} if pattern.name and pattern.number is None else {}
    return {name: v for source in pattern.src for name, v in variables_of(source).items()}


# --- laws and rules ------------------------------------------------------------------------------


T = TypeVar("T")


class once(Generic[T]):
    """A property that is computed when first read; without the lock that `functools` holds."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute, self.__doc__ = compute, compute.__doc__

    def __get__(self, owner: Any, kind: type[Any]) -> T:
        value = owner.__dict__[self.compute.__name__] = self.compute(owner)
        return value


@dataclass(eq=False, repr=False)
class Rule:
    """A pattern and the function that answers its matches, or declines with None."""

    name: str
    left: Pattern
    build: Build  # (node, then the variables it names) -> replacement
    when: When = always

    def __repr__(self) -> str:
        return f"{self.name}: {self.left!r}"

    @once
    def dtypes(self) -> frozenset[DType]:
        """The dtypes that `when` accepts."""
        return frozenset(d for d in DTYPES if self.when(d))

    @once
    def subject(self) -> str:
        """The variable whose dtype `when` speaks of: the first that may have any."""
        free = [name for name, v in variables_of(self.left).items() if v.dtype is None]
        return free[0] if free else ""

    @once
    def source(self) -> str:
        """The generated text of the matcher."""
        return _Matcher(self).code.text

    @once
    def apply(self) -> Match:
        """The compiled matcher: what replaces a node, or None."""
        match: Match = _Matcher(self).code.compile(self.name)
        return match

    def order(self) -> list[str]:
        """The variables that `build` takes, as it takes them."""
        return list(signature(self.build).parameters)[1:]


@dataclass(eq=False, repr=False)
class Law(Rule):
    """`left == right` for every dtype that `when` accepts."""

    right: Pattern = field(kw_only=True)
    exact: bool = field(default=True, kw_only=True)  # bit for bit; else it reassociates
    # an equation of whole numbers: used where sound bounds show that neither side wraps around
    unwrapped: bool = field(default=False, kw_only=True)
    place: tuple[str, int] = field(default=("", 0), kw_only=True)  # the file and line of it

    def __repr__(self) -> str:
        return f"{self.name}: {self.left!r} == {self.right!r}"

    def order(self) -> list[str]:
        """Every variable of the left side."""
        return list(variables_of(self.left))


class Rules:
    """A named, ordered set of laws and rules; of those that match a node, the first one wins."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rules: list[Rule] = []
        self._tables: dict[Op, _Table] = {}

    def law(
        self,
        name: str,
        left: Pattern,
        right: Pattern | Number,
        when: When = always,
        *,
        exact: bool = True,
        unwrapped: bool = False,
    ) -> Law:
        """Declare that two patterns are equal, for the dtypes that `when` accepts."""
        lifted = _lift(right)
        names = list(variables_of(left))
        assert set(variables_of(lifted)) <= set(names), f"{name}: the right side has new variables"
        build: Build = builder(lifted, names)
        if unwrapped:
            build = _if_unwrapped(build, lifted)
        law = Law(name, left, build, when, right=lifted, exact=exact, unwrapped=unwrapped)
        declared = _getframe(1)
        law.place = declared.f_code.co_filename, declared.f_lineno
        self.add(law)
        return law

    def rule(self, *lefts: Pattern, when: When = always) -> Callable[[Build], Build]:
        """Decorate the named function that answers what any of the patterns match."""

        def register(build: Build) -> Build:
            for left in lefts:
                self.add(Rule(build.__name__, left, build, when))
            return build

        return register

    def add(self, rule: Rule) -> None:
        """Enter a law or rule after those that are there."""
        assert rule.left.op or rule.left.family, f"{rule.name}: a rule cannot match every node"
        self.rules.append(rule)
        self._tables.clear()

    def laws(self) -> list[Law]:
        """The equations among the rules, for the e-graph and the tests."""
        return [rule for rule in self.rules if isinstance(rule, Law)]

    def first(self, node: Node) -> tuple[Rule, Node] | None:
        """The first rule that fires on a node, with its replacement."""
        op, src = node.op, node.src
        table = self._tables.get(op)
        if table is None:
            table = self._tables[op] = _Table(self, op)
        if not table.rules:
            return None
        key: tuple[Any, ...]
        if len(src) == 2:
            a, b = src
            key = (a.op, a.dtype, b.op, b.dtype)
        elif len(src) == 1:
            key = (src[0].op, src[0].dtype)
        else:
            key = tuple([part for s in src[:3] for part in (s.op, s.dtype)])
        candidates = table.get(key)
        if candidates is None:
            candidates = table[key] = tuple([r for r in table.rules if _possible(r, node)])
        for rule in candidates:
            better = rule.apply(node)
            if better is not None:
                return rule, better
        return None


class _Table(dict[tuple[Any, ...], tuple[Rule, ...]]):
    """For one op: the rules that the sources' ops and dtypes do not rule out, found once."""

    def __init__(self, rules: Rules, op: Op) -> None:
        self.rules = [r for r in rules.rules if op is r.left.op or op.family == r.left.family]


# --- what can be said without looking deeper -----------------------------------------------------


def _possible(rule: Rule, node: Node) -> bool:
    left = rule.left
    if left.family:
        return node.op.family == left.family and _all_constant(node)
    if left.op is not node.op or len(node.src) < len(left.src):
        return False
    orders = [node.src, node.src[::-1]] if _both_orders(left) else [node.src]
    return any(
        all(_possible_source(rule, q, s) for q, s in zip(left.src, order, strict=False))
        for order in orders
    )


def _possible_source(rule: Rule, pattern: Pattern, source: Node) -> bool:
    if pattern.op is not None:
        return source.op is pattern.op
    if pattern.number is not None:
        return source.op is OPS["const"] and _bits(pattern)[source.dtype] is not None
    if pattern.name == rule.subject and source.dtype not in rule.dtypes:
        return False
    fits = pattern.dtype is None or pattern.dtype is source.dtype
    return fits and (not pattern.constant or source.op is OPS["const"])


def _all_constant(node: Node) -> bool:
    const = OPS["const"]
    return all([s.op is const for s in node.src])


def _both_orders(pattern: Pattern) -> bool:
    assert pattern.op is not None
    if not pattern.op.commutative or len(pattern.src) != 2:
        return False
    return pattern.src[0] is not pattern.src[1]


class _Bits(dict[DType, "int | None"]):
    """The bits of a pattern's number in every dtype requested; None where it does not have it."""

    def __init__(self, number: Any) -> None:
        self.number = number

    def __missing__(self, dtype: DType) -> int | None:
        value = self.number(dtype) if callable(self.number) else self.number
        bits = None
        if value is not None:
            with suppress(ConstantError):
                bits = encode(value, dtype)
        if bits is not None and not dtype.is_integer:
            bits = bits if _same_class(value, decode(bits, dtype)) else None
        self[dtype] = bits  # no dtype has 0.0 for -0.0
        return bits

    def made(self, dtype: DType) -> int:
        """The bits of a number that has to be written in a dtype."""
        bits = self[dtype]
        if bits is None:
            raise KeyError(dtype)
        return bits


@cache  # patterns are few and stay
def _bits(pattern: Pattern) -> _Bits:
    return _Bits(pattern.number)


def _same_class(value: Number, kept: Number) -> bool:
    """True if a number is still NaN, infinite or finite after rounding to its grid."""
    if isinstance(value, complex) or isinstance(kept, complex):
        return True
    return (isnan(value), isinf(value)) == (isnan(kept), isinf(kept))


# --- wrapping ------------------------------------------------------------------------------------


def stays_whole(node: Node) -> bool:
    """True if sound bounds show that a node's arithmetic does not overflow its dtype."""
    if not node.dtype.is_integer:
        return False
    found = node.op.interval(node, [s.bounds for s in node.src])
    low, high = node.dtype.limits
    return found is not None and low <= found[0] and found[1] <= high


def _if_unwrapped(build: Build, right: Pattern) -> Build:
    def guarded(node: Node, *found: Node) -> Node | None:
        made = build(node, *found)
        assert made is not None
        return made if _stays_whole_under(made, right) else None

    return guarded


def _stays_whole_under(node: Node, pattern: Pattern) -> bool:
    if pattern.op is None:
        return True
    below = zip(node.src, pattern.src, strict=True)
    return stays_whole(node) and all(_stays_whole_under(s, q) for s, q in below)


# --- generated functions -------------------------------------------------------------------------


class _Code:
    """The lines of one generated function, and the objects that they name."""

    def __init__(self, head: str) -> None:
        self.lines = [f"def {head}:"]
        self.objects: dict[str, object] = {}
        self._known: dict[int, str] = {}

    def name(self, value: object, hint: str) -> str:
        """A name by which the function can refer to an object."""
        if id(value) not in self._known:
            name = f"{hint}_{len(self.objects)}"
            self._known[id(value)] = name
            self.objects[name] = value
        return self._known[id(value)]

    def add(self, depth: int, line: str) -> None:
        self.lines.append("    " * depth + line)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def compile(self, title: str) -> Any:
        """The function itself."""
        scope = dict(self.objects)
        exec(compile(self.text, f"<pattern {title}>", "exec"), scope)
        return scope[self.lines[0][4:].split("(")[0]]


class _Matcher:
    """Generates `match(node)`: nested conditions, widest rejects first, the answer innermost."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.code = _Code("match(node)")
        self.ops: list[str] = []  # the nodes that the pattern's ops stand at
        left = rule.left
        if left.family:
            constant = self.code.name(_all_constant, "all_constant")
            self.code.add(1, f"if node.op.family == {left.family!r} and {constant}(node):")
            self._answer({}, 2)
        else:
            tests = self._head(left, "node", {})
            if not rule.subject and rule.when is not always:
                tests.append(f"node.dtype in {self.code.name(rule.dtypes, 'dtypes')}")
            self.code.add(1, f"if {' and '.join(tests)}:")
            self._descend([(left, "node")], {}, 2)
        self.code.add(1, "return None")

    def _descend(self, waiting: list[tuple[Pattern, str]], bound: dict[str, str], d: int) -> None:
        """Match the sources of the patterns that wait, whose own ops are known to fit."""
        if not waiting:
            self._answer(bound, d)
            return
        (pattern, at), *rest = waiting
        assert pattern.op is not None
        self.ops.append(at)
        places = [f"{'n' if at == 'node' else at}{i}" for i in range(len(pattern.src))]
        if _both_orders(pattern):
            self.code.add(d, f"for {', '.join(places)} in ({at}.src, {at}.src[::-1]):")
            d += 1
        elif places:
            exactly = len(places) == pattern.op.arity and pattern.op.family == "elementwise"
            cut = "" if exactly else f"[:{len(places)}]"
            self.code.add(d, f"{', '.join(places)}, = {at}.src{cut}")
        bound = dict(bound)
        below = list(zip(pattern.src, places, strict=True))
        tests = [test for q, place in below for test in self._head(q, place, bound)]
        if tests:
            tests.sort(key=lambda test: " is " not in test)  # identity is the cheapest test
            self.code.add(d, f"if {' and '.join(tests)}:")
            d += 1
        self._descend([*rest, *[(q, place) for q, place in below if q.op is not None]], bound, d)

    def _head(self, pattern: Pattern, at: str, bound: dict[str, str]) -> list[str]:
        """What must hold of one node, its sources aside; binds a variable."""
        name = self.code.name
        if pattern.op is not None:
            tests = [f"{at}.op is {name(pattern.op, pattern.op.name)}"]
            if callable(pattern.arg):
                tests.append(f"{name(pattern.arg, 'test')}({at}.arg)")
            elif pattern.arg is not ANYTHING:
                tests.append(f"{at}.arg == {name(pattern.arg, 'arg')}")
            return tests
        const = f"{at}.op is {name(OPS['const'], 'const')}"
        if pattern.number is not None:
            return [const, f"{at}.arg[0] == {name(_bits(pattern), 'bits')}[{at}.dtype]"]
        if pattern.name in bound:
            return [f"{at} is {bound[pattern.name]}"]
        bound[pattern.name] = at
        tests = [const] if pattern.constant else []
        if pattern.dtype is not None:
            tests.append(f"{at}.dtype is {name(pattern.dtype, 'dtype')}")
        if pattern.name == self.rule.subject and self.rule.when is not always:
            tests.append(f"{at}.dtype in {name(self.rule.dtypes, 'dtypes')}")
        if pattern.test is not None:
            tests.append(f"{name(pattern.test, 'test')}({at})")
        return tests

    def _answer(self, bound: dict[str, str], d: int) -> None:
        rule = self.rule
        if isinstance(rule, Law) and rule.unwrapped:
            whole = self.code.name(stays_whole, "stays_whole")
            self.code.add(d, f"if {' and '.join(f'{whole}({at})' for at in self.ops)}:")
            d += 1
        given = ", ".join(["node", *[bound[name] for name in rule.order()]])
        self.code.add(d, f"found = {self.code.name(rule.build, 'build')}({given})")
        self.code.add(d, "if found is not None and found is not node:")
        self.code.add(d + 1, "return found")


def builder(pattern: Pattern, names: list[str]) -> Callable[..., Node]:
    """A function `build(like, *variables)` that makes the node a pattern describes.

    A number takes the dtype of what it is combined with, else that of `like`, and the shape of
    `like`. The function is compiled when it is first called.
    """
    compiled: list[Callable[..., Node]] = []

    def build(like: Node, *found: Node) -> Node:
        if not compiled:
            compiled.append(_Builder(pattern, names).code.compile(repr(pattern)))
        return compiled[0](like, *found)

    return build


class _Builder:
    """Generates `build(like, *variables)`: one line per node of the pattern."""

    def __init__(self, pattern: Pattern, names: list[str]) -> None:
        self.code = _Code(f"build({', '.join(['like', *[f'v_{name}' for name in names]])})")
        self.count = 0
        self.code.add(1, f"return {self._make(pattern, 'like.dtype')}")

    def _line(self, text: str) -> str:
        self.count += 1
        self.code.add(1, f"t{self.count} = {text}")
        return f"t{self.count}"

    def _make(self, pattern: Pattern, dtype: str) -> str:
        name = self.code.name
        if pattern.number is not None:
            make, bits = name(constant_bits, "constant_bits"), name(_bits(pattern).made, "bits")
            return self._line(f"{make}({bits}({dtype}), {dtype}, like.shape)")
        if pattern.op is None:
            return f"v_{pattern.name}"
        op, count = pattern.op, len(pattern.src)
        chooses = op.kinds == "b"  # then the first source is a condition: WHERE
        made: dict[int, str] = {}
        for i, source in enumerate(pattern.src):
            if variables_of(source):
                made[i] = self._make(source, dtype)
        givers = [made[i] for i in range(int(chooses), count) if i in made]
        inner = f"{givers[0]}.dtype" if givers else dtype
        for i, source in enumerate(pattern.src):
            if i not in made:
                made[i] = self._make(source, name(bool_, "bool") if chooses and i == 0 else inner)
        given = [made[i] for i in range(count)]
        if pattern.arg is not ANYTHING:
            assert not callable(pattern.arg), f"{pattern!r}: which argument is to be made?"
            given.append(f"arg={name(pattern.arg, 'arg')}")
        return self._line(f"{name(op, op.name)}({', '.join(given)})")
