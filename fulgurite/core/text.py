"""Graphs as text, and text as graphs: one line a node, sources first, then what is returned.

    %0 = param(0, (4, 3), 'reference') : float32[4, 3]
    %1 = const 2.0 : float32[4, 3]
    %2 = mul %0 %1 : float32[4, 3] #scaled
    return %2

A line holds the op, its argument in parentheses as Python would write it, the sources, the type
and a `#tag`. In an argument `$1` is "the size that is source 1", `@name` a host function and
`&'...'` a body: its own text in quotes. A constant is a number, or its bits in hexadecimal where no
decimal stands for exactly them. `# ` begins a comment.
The invariant: `parse(show(x)) is x`, at every level, broken nodes too. What cannot come back:
metadata (`!meta(Type)` parses as the plain node) and values in arguments that have no text
(`<Type>` does not parse). Shapes are for the reader; parsing checks them.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np

from ..errors import FulguriteError, ParseError
from .dtype import DTYPES, DType, Number, complex64, decode, encode, float32, float64, void
from .lazy_named_tuple import NamedTuple
from .node import SOURCES, Node, Shape, Source, make, toposort
from .operators import OPS
from .ops.body import Body
from .ops.effect import HOST_FUNCTIONS, HostFunction
from .ops.leaf import BIND, CONST, SINK, VAR

_DEEPEST = 64  # tuples within tuples
_LONGEST_SIZE = 60  # characters of one symbolic size
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_HOST_WORD = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)
_TAG_WORD = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)


def show(*roots: Node, origins: bool = False) -> str:
    """The graph of some roots, a line a node; `origins` adds the user's lines as comments."""
    order = toposort(roots)
    names = {node: f"%{number}" for number, node in enumerate(order)}
    shapes = _Shapes()
    lines = [_line(node, names, shapes) for node in order]
    if origins:
        lines = [line + _origins(node) for line, node in zip(lines, order, strict=True)]
    returned = ", ".join([names[root] for root in roots])
    return "\n".join([*lines, f"return {returned}".rstrip()])


# --- a node --------------------------------------------------------------------------------------


def _line(node: Node, names: Mapping[Node, str], shapes: _Shapes) -> str:
    sources = "".join([f" {names[s]}" for s in node.src])
    tag = "" if node.tag is None else f" {_tag(node.tag)}"
    kind = re.sub(r"\W", "_", type(node.meta).__name__)
    note = "" if node.meta is None else f" !meta({kind})"
    head = f"{names[node]} = {node.op.name}{_arg(node)}{sources}"
    return f"{head} : {node.dtype.name}[{shapes.of(node)}]{tag}{note}"


def _origins(node: Node) -> str:
    lines = [f"{os.path.basename(o.file)}:{o.line}{_scope(o.scopes)}" for o in node.origins]
    return " ".join(["", "", "#", *", ".join(lines).split()]) if lines else ""


def _scope(scopes: tuple[str, ...]) -> str:
    return " in " + "/".join(scopes) if scopes else ""


def _arg(node: Node) -> str:
    arg = node.arg
    if arg is None:
        return ""
    if node.op is CONST and isinstance(arg, tuple) and list(map(type, arg)) == [int, tuple]:
        bits, dims = arg
        plain = not node.src and all([type(d) is int for d in dims])
        return f" {_number(bits, node.dtype)}" + ("" if plain else f" {_value(dims)}")
    return _value(arg) if isinstance(arg, tuple) else f"({_value(arg)})"


def _tag(tag: object) -> str:
    if isinstance(tag, str) and _TAG_WORD.fullmatch(tag):
        return f"#{tag}"
    return f"#{_value(tag)}" if isinstance(tag, tuple) else f"#({_value(tag)})"


def _value(value: object, depth: int = 0) -> str:
    """A value of an argument, as Python would write it where Python can."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, tuple) and depth < _DEEPEST:
        inside = [_value(v, depth + 1) for v in value]
        return f"({inside[0]},)" if len(inside) == 1 else f"({', '.join(inside)})"
    for kind, write in _WRITERS:
        if isinstance(value, kind) and (text := write(value)) is not None:
            return text
    return f"<{re.sub(r'[^A-Za-z0-9_]', '_', type(value).__name__)}>"


def _dtype_name(value: DType) -> str | None:
    return value.name if _DTYPES.get(value.name) is value else None


def _host_name(value: HostFunction) -> str | None:
    if HOST_FUNCTIONS.get(value.name, value) is not value:
        return None
    return f"@{value.name}" if _HOST_WORD.fullmatch(value.name) else f"@{value.name!r}"


_WRITERS: tuple[tuple[type, Callable[[Any], str | None]], ...] = (
    (type(None), str),
    (bool, str),
    (int, lambda value: str(int(value)) if value.bit_length() <= 128 else hex(value)),
    (float, float.__repr__),
    (complex, lambda value: _complex(repr(float(value.real)), repr(float(value.imag)))),
    (str, str.__repr__),
    (DType, _dtype_name),
    (Source, lambda value: f"${value.index}"),
    (HostFunction, _host_name),
    (Body, lambda value: f"&{value.text!r}"),
)


# --- constants -----------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _number(bits: int, dtype: DType) -> str:
    """The shortest decimal that stands for exactly these bits, or the bits themselves."""
    try:
        with np.errstate(all="ignore"):  # a signalling NaN is a number to print like any other
            text = _decimal(bits, dtype)
            return text if encode(_parse_number(text), dtype) == bits else hex(bits)
    except (FulguriteError, AssertionError, ArithmeticError, ValueError, TypeError, KeyError):
        return hex(bits)  # bits that are beyond the dtype


def _decimal(bits: int, dtype: DType) -> str:
    if dtype.kind == "f":
        return _shortest(bits, dtype)
    if dtype.kind == "c":
        part = float32 if dtype is complex64 else float64
        real, imag = bits & (1 << part.bits) - 1, bits >> part.bits
        return _complex(_shortest(real, part), _shortest(imag, part))
    return str(decode(bits, dtype))


def _shortest(bits: int, dtype: DType) -> str:
    number = decode(bits, dtype)
    assert isinstance(number, float)
    if dtype is float64 or number == 0 or not math.isfinite(number):
        return repr(number)
    below = decode(bits - 1, dtype)  # the neighbour toward zero: no other one is nearer
    assert isinstance(below, float)
    for digits in range(1, 17):
        near = float(f"{number:.{digits}g}")
        if abs(near - number) < abs(number - below) / 2:
            return repr(near)
    return repr(number)


def _complex(real: str, imag: str) -> str:
    return f"{real}{'' if imag.startswith('-') else '+'}{imag}j"


# --- shapes --------------------------------------------------------------------------------------

_SIGNS = {"add": (" + ", 1), "sub": (" - ", 1), "mul": ("*", 2), "floordiv": ("//", 2)}
_ATOM = 3


class _Shapes:
    """The text of each node's shape, each computed once; `?` where the shape rule fails."""

    def __init__(self) -> None:
        self.unknown: set[Node] = set()
        self.texts: dict[Shape, str] = {}
        self.sizes: dict[Node, tuple[str, int]] = {}  # how tightly it binds beside its text

    def of(self, node: Node) -> str:
        """The sizes of a node, without the brackets."""
        shape = self._shape(node)
        if shape is None:
            self.unknown.add(node)
            return "?"
        text = self.texts.get(shape)
        if text is None:
            text = self.texts[shape] = ", ".join(
                [self._size(n)[0] if isinstance(n, Node) else str(int(n)) for n in shape]
            )
        return text

    def _shape(self, node: Node) -> Shape | None:
        for source in node.src:
            if source in self.unknown:
                return None
        try:
            shape = node.shape
        except Exception:  # a broken node may fail in any way
            return None
        fits = isinstance(shape, tuple) and all([isinstance(n, int | Node) for n in shape])
        return shape if fits else None

    def _size(self, size: Node) -> tuple[str, int]:
        stack = [size]
        while stack:
            missing = [s for s in stack[-1].src if s not in self.sizes]
            if missing:
                stack.extend(missing)
            else:
                node = stack.pop()
                text, binding = self._expression(node)
                short = len(text) <= _LONGEST_SIZE
                self.sizes[node] = (text, binding) if short else ("...", _ATOM)
        return self.sizes[size]

    def _expression(self, node: Node) -> tuple[str, int]:
        name = node.op.name
        if node.op is VAR and isinstance(node.arg, tuple) and node.arg:
            return re.sub(r"\W", "_", str(node.arg[0])), _ATOM
        if node.op is BIND and node.src:
            return self.sizes[node.src[0]]
        if node.op is CONST:
            return _arg(node).strip(), _ATOM
        if name not in _SIGNS or len(node.src) != 2:
            return f"{name}({', '.join([self.sizes[s][0] for s in node.src])})", _ATOM
        sign, binding = _SIGNS[name]
        (left, tight_left), (right, tight_right) = (self.sizes[s] for s in node.src)
        left = left if tight_left >= binding else f"({left})"
        right = right if tight_right > binding else f"({right})"
        return f"{left}{sign}{right}", binding


# --- parsing -------------------------------------------------------------------------------------

_DTYPES = {dtype.name: dtype for dtype in (*DTYPES, void)}
_WORDS: dict[str, Any] = {"None": None, "True": True, "False": False, **_DTYPES}
_REAL = r"(?:[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|inf|nan)"
_ESCAPE = r"\\(?:[\\'\"nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})"
_STRING = rf"'(?:[^'\\]|{_ESCAPE})*'|\"(?:[^\"\\]|{_ESCAPE})*\""
_TOKEN = (  # compiled on first use: most processes only write
    rf"""\s*(?: (?P<comment>\#(?=\s|$).*)
    | (?P<bits>-?0x[0-9a-fA-F]+(?![\w.]))
    | (?P<number>-?{_REAL}(?:[-+]{_REAL}j)?(?![\w.]))
    | (?P<word>{_WORD.pattern})
    | (?P<string>{_STRING})
    | (?P<node>%\w+)
    | (?P<source>\$[0-9]+)
    | (?P<host>@(?:{_HOST_WORD.pattern}|{_STRING}))
    | (?P<body>&(?:{_STRING}))
    | (?P<tag>\#(?:{_TAG_WORD.pattern})?)
    | (?P<shape>\[[^\]]*\])
    | (?P<note>!meta\(\w*\))
    | (?P<lost><\w*>)
    | (?P<sign>[(),=:]))"""
)
_SPACES = " \t\n\r\f\v"
_HINT = "see what show() prints"
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


def parse(text: str) -> Node:
    """The node whose text this is."""
    roots = parse_all(text)
    if len(roots) != 1:
        raise ParseError(f"the text returns {len(roots)} nodes, not one", "use parse_all")
    return roots[0]


def parse_all(text: str) -> list[Node]:
    """The nodes that a text returns, in order."""
    graph = _Graph()
    roots: list[Node] | None = None
    number = 0
    for number, content in enumerate(text.split("\n"), start=1):
        line = _Line(content, number)
        if line.at_end:
            continue
        if roots is not None:
            line.fail(f"{line.word!r} after the return", "one text is one graph")
        if line.accept("return"):
            roots = graph.returned(line)
        else:
            graph.define(line)
    if roots is None:
        raise ParseError(f"line {number}: the text ends without a return", "end with: return %0")
    return roots


class _Graph:
    """The nodes that the lines so far have named."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.shapes = _Shapes()

    def returned(self, line: _Line) -> list[Node]:
        """`return %2, %5`."""
        roots: list[Node] = []
        while not line.at_end:
            if roots:
                line.expect(",")
            roots.append(self.known(line))
        return roots

    def known(self, line: _Line) -> Node:
        """A node that was defined on an earlier line."""
        if line.kind == "node" and line.word not in self.nodes:
            line.fail(f"{line.word} is not defined above", "sources come before their users")
        return self.nodes[line.take("node", "a node such as %0")]

    def define(self, line: _Line) -> None:
        """`%2 = mul %0 %1 : float32[4, 3] #tag`."""
        if line.word in self.nodes:
            line.fail(f"{line.word} is defined twice", "give each line a name of its own")
        name = line.take("node", "a node such as %0, or return")
        line.expect("=")
        if line.kind == "word" and line.word not in OPS:
            line.fail(f"there is no op {line.word!r}", "its name may be misspelt")
        op = OPS[line.take("word", "the name of an op")]
        literal = line.next() if op is CONST and line.is_number else None
        arg = line.value() if line.word == "(" else None
        src: list[Node] = []
        while line.kind == "node":
            src.append(self.known(line))
        line.expect(":")
        dtype = line.dtype()
        shape = line.current
        sizes = line.take("shape", "a shape such as [4, 3]")[1:-1]
        if literal is not None:
            arg = line.bits(literal, dtype), line.sizes(shape) if arg is None else arg
        tag = line.tag()
        node = make(op, dtype, tuple(src), arg, tag)
        expected = self.shapes.of(node)
        if sizes != expected and _solid(sizes) != _solid(expected):
            line.fail(f"{op} gives shape [{expected}], not [{sizes}]", "correct the shape", shape)
        if line.kind == "note":
            line.next()
        if not line.at_end:
            line.fail(f"{line.word!r} does not belong here", "a line ends after the type and tag")
        self.nodes[name] = node


def _solid(text: str) -> str:
    return "".join(text.split())


@lru_cache(maxsize=1)
def _token() -> re.Pattern[str]:
    return re.compile(_TOKEN, re.VERBOSE | re.ASCII)


class _Token(NamedTuple):
    kind: str
    text: str
    column: int


class _Line:
    """The words of one line, taken from the left."""

    def __init__(self, content: str, number: int) -> None:
        self.number = number
        self.tokens: list[_Token] = []
        self.place = 0
        end, whole = 0, content.rstrip(_SPACES)
        for found in _token().finditer(whole):
            if found.start() != end:
                break
            kind: Any = found.lastgroup
            end = found.end()
            if kind != "comment":
                self.tokens.append(_Token(kind, found[kind], found.start(kind) + 1))
        if end != len(whole):
            end += len(whole) - end - len(whole[end:].lstrip(_SPACES))
            bad = _Token("bad", content[end : end + 12], end + 1)
            self.fail(f"{bad.text!r} is not part of any text", _HINT, bad)
        self.tokens.append(_Token("end", "the end of the line", len(content) + 1))
        self.current = self.tokens[0]  # the next one, which stays

    @property
    def word(self) -> str:
        """The text of the next token."""
        return self.current.text

    @property
    def kind(self) -> str:
        """The kind of the next token."""
        return self.current.kind

    @property
    def at_end(self) -> bool:
        """True if nothing is left."""
        return self.current.kind == "end"

    @property
    def is_number(self) -> bool:
        """True if the next token can be the number of a constant."""
        return self.kind in ("number", "bits") or self.word in ("True", "False")

    def fail(self, problem: str, hint: str = _HINT, token: _Token | None = None) -> NoReturn:
        """Report what is wrong at a token, the next one if none is given."""
        column = (token or self.current).column
        raise ParseError(f"line {self.number}, column {column}: {problem}", hint)

    def next(self) -> _Token:
        """Take the next token."""
        token = self.current
        if token.kind != "end":
            self.place += 1
            self.current = self.tokens[self.place]
        return token

    def take(self, kind: str, what: str) -> str:
        """Take a token of this kind."""
        if self.kind != kind:
            self.fail(f"expected {what}, found {self.word!r}")
        return self.next().text

    def accept(self, word: str) -> bool:
        """Take the next token if it is this word."""
        if self.current.text != word:
            return False
        self.next()
        return True

    def expect(self, sign: str) -> None:
        """Take this sign."""
        if not self.accept(sign):
            self.fail(f"expected {sign!r}, found {self.word!r}")

    def value(self, depth: int = 0) -> Any:
        """A value of an argument; as in Python `(1)` is 1 and `(1,)` a tuple."""
        token = self.next()
        match token.kind:
            case "number" | "bits":
                return self.number_of(token)
            case "string":
                return self.string(token, token.text)
            case "source" if len(token.text) <= 4 and int(token.text[1:]) < len(SOURCES):
                return SOURCES[int(token.text[1:])]
            case "host":
                return self.host(token)
            case "body":
                return self.body(token)
            case "word" if token.text in _WORDS:
                return _WORDS[token.text]
            case "lost":
                self.fail(f"{token.text} stands for a value that has no text", _HINT, token)
            case "sign" if token.text == "(" and depth <= _DEEPEST:
                return self.inside(depth)
            case _:
                self.fail(f"expected a value, found {token.text!r}", _HINT, token)

    def inside(self, depth: int) -> Any:
        """What stands in parentheses, the first of which is taken already."""
        values: list[Any] = []
        comma = True  # also true of `()`, which is a tuple
        while not self.accept(")"):
            if not comma:
                self.expect(",")  # says what is missing
            values.append(self.value(depth + 1))
            comma = self.accept(",")
        return values[0] if len(values) == 1 and not comma else tuple(values)

    def number_of(self, token: _Token) -> Number:
        """The number that a token says."""
        try:
            return int(token.text, 16) if token.kind == "bits" else _parse_number(token.text)
        except ValueError:  # more digits than Python converts
            self.fail("this number is too long", "write it in hexadecimal", token)

    def string(self, token: _Token, quoted: str) -> str:
        """The string that a quoted text says."""
        try:
            return re.sub(_ESCAPE, _unescape, quoted[1:-1])
        except (ValueError, OverflowError):
            self.fail(f"{quoted} has an escape beyond Unicode", _HINT, token)

    def host(self, token: _Token) -> HostFunction:
        """The registered host function of a name."""
        name = token.text[1:]
        name = self.string(token, name) if name[0] in "'\"" else name
        if name not in HOST_FUNCTIONS:
            hint = "register_host lets text refer to a function"
            self.fail(f"no host function {name!r} is registered", hint, token)
        return HOST_FUNCTIONS[name]

    def body(self, token: _Token) -> Body:
        """The body whose text is quoted."""
        try:
            sink = parse(self.string(token, token.text[1:]))
        except ParseError as problem:
            self.fail(f"in a body, {problem.what}", problem.hint, token)
        if sink.op is not SINK:
            self.fail("a body returns a sink", _HINT, token)
        return Body(sink)

    def dtype(self) -> DType:
        """A dtype by its name."""
        if self.kind == "word" and self.word not in _DTYPES:
            self.fail(f"{self.word!r} is not a dtype", f"one of {', '.join(_DTYPES)}")
        return _DTYPES[self.take("word", "a dtype")]

    def bits(self, literal: _Token, dtype: DType) -> int:
        """The bits of a constant, from its number or as they are."""
        if literal.kind == "bits":
            return int(literal.text, 16)
        number = _WORDS[literal.text] if literal.kind == "word" else self.number_of(literal)
        try:
            return encode(number, dtype)
        except (FulguriteError, AssertionError, OverflowError):
            self.fail(f"{literal.text} is not a value of {dtype}", "choose a wider dtype", literal)

    def sizes(self, shape: _Token) -> tuple[int, ...]:
        """The sizes of a constant's shape."""
        inside = shape.text[1:-1].strip()
        try:
            return tuple([int(size) for size in inside.split(",")]) if inside else ()
        except ValueError:
            hint = "say symbolic sizes by source: const 2.0 ($0, 3) %n : float32[n, 3]"
            self.fail(f"{shape.text} is not a shape of whole numbers", hint, shape)

    def tag(self) -> Any:
        """`#word` is a string; `#(...)` any value; None without a tag."""
        if self.kind != "tag":
            return None
        word = self.next().text[1:]
        if not word and self.word != "(":
            self.fail(f"expected a tag, found {self.word!r}", "#word or #('any', 'value')")
        return word or self.value()


def _unescape(escape: re.Match[str]) -> str:
    code = escape.group()[1:]
    return chr(int(code[1:], 16)) if code[0] in "xuU" else _ESCAPES.get(code, code)


def _parse_number(text: str) -> Number:
    """A whole number, a float, or `real+imagj`; bools by name."""
    if text in ("True", "False"):
        return text == "True"
    if text.endswith("j"):
        split = re.match(_COMPLEX, text)
        assert split is not None
        return complex(float(split["real"]), float(split["imag"]))
    if text == "nan":
        return math.nan  # the one object, so that an argument with NaN stays one argument
    return int(text) if text.lstrip("-").isdigit() else float(text)


_COMPLEX = rf"(?P<real>-?{_REAL})(?P<imag>[-+]{_REAL})j"
