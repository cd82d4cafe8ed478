"""Mutation operators: small changes of one function, addressed by the function and not by its text.

An operator names a place as "the k-th comparison of the function", so that it stays valid if locals are renamed, lines
move or docstrings change. It also states the present contents of the place: another one is an error. Only the source of
the changed node is rewritten, so that all other lines keep their numbers. Docstrings, annotations, decorators, default
values and f-strings are never changed, and their parts are not counted.
"""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

COMPARISONS: dict[str, type[ast.cmpop]] = {
    "<": ast.Lt, "<=": ast.LtE, ">": ast.Gt, ">=": ast.GtE, "==": ast.Eq, "!=": ast.NotEq,
    "in": ast.In, "not in": ast.NotIn, "is": ast.Is, "is not": ast.IsNot,
}  # fmt: skip
ARITHMETIC: dict[str, type[ast.operator]] = {
    "+": ast.Add, "-": ast.Sub, "*": ast.Mult, "/": ast.Div, "//": ast.FloorDiv, "%": ast.Mod, "**": ast.Pow,
    "@": ast.MatMult, "&": ast.BitAnd, "|": ast.BitOr, "^": ast.BitXor, "<<": ast.LShift, ">>": ast.RShift,
}  # fmt: skip
UNARY: dict[str, type[ast.unaryop]] = {"not": ast.Not, "-": ast.USub, "+": ast.UAdd, "~": ast.Invert}
LOGICAL: dict[str, type[ast.boolop]] = {"and": ast.And, "or": ast.Or}
TESTS: dict[type[ast.AST], str] = {ast.If: "if", ast.While: "while", ast.IfExp: "if-else", ast.Assert: "assert"}
STATEMENTS: dict[str, type[ast.stmt]] = {
    "call": ast.Expr, "assign": ast.Assign, "augmented": ast.AugAssign, "return": ast.Return, "raise": ast.Raise,
    "continue": ast.Continue, "break": ast.Break, "delete": ast.Delete, "if": ast.If, "for": ast.For, "with": ast.With,
}  # fmt: skip


BYPASSED_BUILTINS = ("sorted", "abs", "max", "min", "reversed", "round")
"""Builtins that may return their argument; others return another type, so that leaving them out only crashes."""


class MutationError(Exception):
    """A function or a place in it is missing, or contains something else than the operator states."""


@dataclass(frozen=True)
class Function:
    """One function of a module.

    Attributes:
        path: file of the module.
        name: qualified name in the module, as in `Class.method` or `outer.inner`.
    """

    path: Path
    name: str

    @classmethod
    def find(cls, address: str, root: Path) -> Function:
        """Find a function by an address such as `workbench.core.rejection:walk`.

        Raises:
            MutationError: there is no such module or function.
        """
        module, _, name = address.partition(":")
        base = root.joinpath(*module.split("."))
        paths = [path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()]
        if not paths:
            raise MutationError(f"there is no module {module}")
        function = cls(paths[0], name)
        if function.node is None:
            raise MutationError(f"there is no function {name or 'without a name'} in {module}")
        return function

    @cached_property
    def source(self) -> bytes:
        """Contents of the file in UTF-8, the unit of the positions in `ast`."""
        return self.path.read_bytes()

    @cached_property
    def tree(self) -> ast.Module:
        """Parsed module."""
        return ast.parse(self.source)

    @cached_property
    def node(self) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """Definition of the function; the last one of that name, as in Python. None if there is none."""
        found: ast.AST | None = self.tree
        for part in self.name.split("."):
            below = [] if found is None else [node for node in _statements(found) if getattr(node, "name", "") == part]
            found = below[-1] if below else None
        return found if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef) else None

    @property
    def body(self) -> list[ast.stmt]:
        """Return the statements after the docstring."""
        assert self.node is not None
        body = self.node.body
        return body[1:] if ast.get_docstring(self.node) is not None else body

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Return all nodes of the body that may be changed, in the order of the source, outer ones first."""
        found = [node for statement in self.body for node in _below(statement) if hasattr(node, "lineno")]
        return sorted(found, key=lambda node: (*_start(node), *(-x for x in _end(node))))

    @property
    def available_names(self) -> set[str]:
        """Return the names that an expression may use instead of the body: parameters, module names, builtins."""
        assert self.node is not None
        args = self.node.args
        known = {arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)} | set(dir(builtins))
        known |= {arg.arg for arg in (args.vararg, args.kwarg) if arg is not None}
        for node in _statements(self.tree):
            known |= {getattr(node, "name", "")} | {alias.asname or alias.name for alias in getattr(node, "names", [])}
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                known |= {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and _is_stored(name)}
        return known

    def replace_nodes(self, first: ast.AST, last: ast.AST, text: str) -> str:
        """Return the file with the nodes from `first` to `last` replaced by a text of as many lines.

        Raises:
            MutationError: the file is the same, or no Python any more.
        """
        lines = self.source.splitlines(keepends=True)
        begin, end = (
            sum(map(len, lines[: row - 1])) + column for row, column in (_start(first), _end(last))
        )  # fmt: skip
        missing = self.source[begin:end].count(b"\n") - text.count("\n")
        padding = "\n" * max(0, missing)
        text = f"({text}{padding})" if isinstance(first, ast.expr) else text + padding
        changed = (self.source[:begin] + text.encode() + self.source[end:]).decode()
        try:
            is_same = ast.dump(ast.parse(changed)) == ast.dump(self.tree)
        except SyntaxError as error:
            raise MutationError(f"the change {text!r} is no Python here: {error}") from error
        if is_same:
            raise MutationError("the change has no effect")
        return changed


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of a module, class or function, including those inside `if`, `try` and `with`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
            if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _statements(child)
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            yield from _statements(child)


def _below(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all nodes below it that may be changed."""
    if isinstance(node, ast.JoinedStr):
        return
    yield node
    skipped: list[object] = [getattr(node, "annotation", None), getattr(node, "returns", None)]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        skipped += [node.args, *getattr(node, "decorator_list", [])]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node) is not None:
        skipped.append(node.body[0])
    for child in ast.iter_child_nodes(node):
        if not any(child is other for other in skipped):
            yield from _below(child)


def _is_stored(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _start(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno"), getattr(node, "col_offset")  # noqa: B009  (`ast.AST` declares neither)


def _end(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "end_lineno"), getattr(node, "end_col_offset")  # noqa: B009


def _symbol(table: dict[str, type], node: ast.AST) -> str:
    return next(symbol for symbol, kind in table.items() if type(node) is kind)


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


@dataclass(frozen=True)
class Operator:
    """A change of the k-th place of one kind, counted from 0 in the order of the source.

    Subclasses define their places (`places`) and how one of them is changed (`change`).
    """

    k: int

    PLACE: ClassVar[str] = ""
    """Name of the counted nodes, for messages."""

    def places(self, function: Function) -> list[tuple[ast.AST, int]]:
        """Return all places of this kind: a node, and which part of it."""
        raise NotImplementedError

    def change(self, node: ast.AST, part: int) -> ast.AST:
        """Return the replacement of a node; `node` is a copy.

        Raises:
            MutationError: the place contains something else than the operator states.
        """
        raise NotImplementedError

    @classmethod
    def all_in(cls, function: Function) -> list[Operator]:
        """Return one operator of this class for each place of a function that it can change."""
        return []

    def place(self, function: Function) -> tuple[ast.AST, int]:
        """Return the place.

        Raises:
            MutationError: there are fewer places.
        """
        places = self.places(function)
        if self.k >= len(places):
            raise MutationError(f"{function.name} has {len(places)} {self.PLACE}, so there is no number {self.k}")
        return places[self.k]

    def apply(self, function: Function) -> str:
        """Return the changed text of the file.

        Raises:
            MutationError: the place is missing or contains something else.
        """
        node, part = self.place(function)
        return function.replace_nodes(node, node, ast.unparse(self.change(copy.deepcopy(node), part)))

    def line(self, function: Function) -> int:
        """Return the number of the line where the place begins, from 1."""
        return _start(self.place(function)[0])[0]

    def expect(self, old: object, found: object) -> None:
        """Raise a `MutationError` if a place contains something else than is stated."""
        if old != found:
            raise MutationError(f"number {self.k} of the {self.PLACE} is {found!r} and not {old!r}")


@dataclass(frozen=True)
class Compare(Operator):
    """Replace the k-th comparison operator; `a < b < c` has two."""

    old: str
    new: str
    PLACE: ClassVar[str] = "comparisons"
    OTHER: ClassVar[dict[str, str]] = {
        "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==",
        "in": "not in", "not in": "in", "is": "is not", "is not": "is",
    }  # fmt: skip

    def places(self, function: Function) -> list[tuple[ast.AST, int]]:
        """Return the operators of all comparisons."""
        nodes = [node for node in function.nodes if isinstance(node, ast.Compare)]
        return [(node, part) for node in nodes for part in range(len(node.ops))]

    def change(self, node: ast.AST, part: int) -> ast.AST:
        """Return the node with the new operator."""
        assert isinstance(node, ast.Compare)
        self.expect(self.old, _symbol(COMPARISONS, node.ops[part]))
        node.ops[part] = COMPARISONS[self.new]()
        return node

    @classmethod
    def all_in(cls, function: Function) -> list[Operator]:
        """Shift each bound by its equal case, and negate all others."""
        found = list[Operator]()
        for k, (node, part) in enumerate(cls(0, "", "").places(function)):
            assert isinstance(node, ast.Compare)
            old = _symbol(COMPARISONS, node.ops[part])
            found.append(cls(k, old, cls.OTHER[old]))
        return found


@dataclass(frozen=True)
class BinOp(Operator):
    """Replace the k-th arithmetic or bit operator; `x += y` counts as one."""

    old: str
    new: str
    PLACE: ClassVar[str] = "arithmetic operators"
    OTHER: ClassVar[dict[str, str]] = {
        "+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "%": "//", "**": "*", "@": "*",
        "&": "|", "|": "&", "^": "&", "<<": ">>", ">>": "<<",
    }  # fmt: skip

    def places(self, function: Function) -> list[tuple[ast.AST, int]]:
        """Return all operations."""
        return [(node, 0) for node in function.nodes if isinstance(node, ast.BinOp | ast.AugAssign)]

    def change(self, node: ast.AST, part: int) -> ast.AST:
        """Return the node with the new operator."""
        assert isinstance(node, ast.BinOp | ast.AugAssign)
        self.expect(self.old, _symbol(ARITHMETIC, node.op))
        node.op = ARITHMETIC[self.new]()
        return node

    @classmethod
    def all_in(cls, function: Function) -> list[Operator]:
        """Replace each by a related one."""
        found = list[Operator]()
        for k, (node, _) in enumerate(cls(0, "", "").places(function)):
            assert isinstance(node, ast.BinOp | ast.AugAssign)
            old = _symbol(ARITHMETIC, node.op)
            found.append(cls(k, old, cls.OTHER[old]))
        return found


@dataclass(frozen=True)
class SwapOperands(BinOp):
    """Exchange the operands of the k-th arithmetic operator, counted as in `BinOp`."""

    new: str = ""

    def change(self, node: ast.AST, part: int) -> ast.AST:
        """Exchange left and right."""
        if not isinstance(node, ast.BinOp):
            raise MutationError(f"number {self.k} of the {self.PLACE} has no operands to exchange")
        self.expect(self.old, _symbol(ARITHMETIC, node.op))
        node.left, node.right = node.right, node.left
        return node

    @classmethod
    def all_in(cls, function: Function) -> list[Operator]:
        """Exchange the operands of operators for which their order matters."""
        found = list[Operator]()
        for k, (node, _) in enumerate(cls(0, "").places(function)):
            if isinstance(node, ast.BinOp) and (old := _symbol(ARITHMETIC, node.op)) in ("-", "/", "//", "%", "**"):
                found.append(cls(k, old))
        return found


@dataclass(frozen=True)
class BoolOp(Operator):
    """Replace the k-th `and` or `or`; `a and b and c` is one."""

    old: str
    new: str
    PLACE: ClassVar[str] = "logical operators"

    def places(self, function: Function) -> list[tuple[ast.AST, int]]:
        """Return all of them."""
        return [(node, 0) for node in function.nodes if isinstance(node, ast.BoolOp)]

    def change(self, node: ast.AST, part: int) -> ast.AST:
        """Return the node with the new operator."""
        assert isinstance(node, ast.BoolOp)
        self.expect(self.old, _symbol(LOGICAL, node.op))
        node.op = LOGICAL[self.new]()
        return node

    @classmethod
    def all_in(cls, function: Function) -> list[Operator]:
        """Exchange `and` and `or`."""
        nodes = [node for node, _ in cls(0, "", "").places(function)]
        olds = [_symbol(LOGICAL, node.op) for node in nodes if isinstance(node, ast.BoolOp)]
        return [cls(k, old, "or" if old == "and" else "and") for k, old in enumerate(olds)]


@dataclass(frozen=True)
class DropUnary(Operator):
    """Leave out the k-th `not`, `-` or `~`."""

    old: str
    PLACE: ClassVar[str] = "unary operators"

    def places(self, function: Function) -> list[tuple[ast.AST, int]]:
        """Return all of them."""
        return [(node, 0) for node in function.nodes if isinstance(node, ast.UnaryOp)]

    def change(self, node: ast.AST, part: int) -> ast.AST:
        """Keep the operand."""
        assert isinstance(node, ast.UnaryOp)
        self.expect(self.old, _symbol(UNARY, node.op))
        return node.operand

    @classmethod
    def all_in(cls, function: Function) -> list[Operator]:
        """Leave out each."""
        nodes = [node for node, _ in cls(0, "").places(function)]
        return [cls(k, _symbol(UNARY, node.op)) for k, node in enumerate(nodes) if isinstance(node, ast.UnaryOp)]


@dataclass(frozen=True)
class Constant(Operator):
    """Replace the k-th number or boolean; if `old` is a text or None, the k-th of its type."""

    old: object
    new: object
    PLACE: ClassVar[str] = "constants of that type"

    def places(self, function: Function) -> list[tuple[ast.AST, int]]:
        """Return all constants of the type of `old`."""
        types = (int, float) if isinstance(self.old, int | float) else type(self.old)
        nodes = [node for node in function.nodes if isinstance(node, ast.Constant)]
        return [(node, 0) for node in nodes if isinstance(node.value, types)]

    def change(self, node: ast.AST, part: int) -> ast.AST:
        """Return the node with the new value."""
        assert isinstance(node, ast.Constant)
        self.expect((type(self.old), self.old), (type(node.value), node.value))
        return _expression(repr(self.new))

    @classmethod
    def all_in(cls, function: Function) -> list[Operator]:
        """Add 1 to each number, and negate each boolean."""
        values = [node.value for node, _ in cls(0, 0, 0).places(function) if isinstance(node, ast.Constant)]
        return [cls(k, old, not old if isinstance(old, bool) else old + 1) for k, old in enumerate(values)]  # type: ignore[operator]


@dataclass(frozen=True)
class Negate(Operator):
    """Negate the k-th condition.

    Attributes:
        old: its kind: "if", "while", "if-else" (the expression), "assert", or "filter" (of a comprehension).
    """

    old: str
    PLACE: ClassVar[str] = "conditions"

    def places(self, function: Function) -> list[tuple[ast.AST, int]]:
        """Return all conditions. The part is the index in `_kinds`."""
        found = [(node, list(_kinds()).index(kind)) for node, kind in _conditions(function)]
        return sorted(found, key=lambda place: _start(place[0]))

    def change(self, node: ast.AST, part: int) -> ast.AST:
        """Return the negated condition."""
        self.expect(self.old, list(_kinds())[part])
        assert isinstance(node, ast.expr)
        return ast.UnaryOp(ast.Not(), node)

    @classmethod
    def all_in(cls, function: Function) -> list[Operator]:
        """Negate each."""
        return [cls(k, list(_kinds())[part]) for k, (_, part) in enumerate(cls(0, "").places(function))]


@dataclass(frozen=True)
class Force(Negate):
    """Replace the k-th condition, counted as in `Negate`, by True or False."""

    new: bool

    def change(self, node: ast.AST, part: int) -> ast.AST:
        """Return the node with the value."""
        self.expect(self.old, list(_kinds())[part])
        return ast.Constant(self.new)

    @classmethod
    def all_in(cls, function: Function) -> list[Operator]:
        """Never take an `if`: `Negate` tries the opposite already."""
        places = enumerate(cls(0, "", new=False).places(function))
        return [cls(k, kind, new=False) for k, (_, part) in places if (kind := list(_kinds())[part]) == "if"]


def _kinds() -> tuple[str, ...]:
    return (*TESTS.values(), "filter")


def _conditions(function: Function) -> Iterator[tuple[ast.expr, str]]:
    for node in function.nodes:
        if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
            yield node.test, TESTS[type(node)]
        for comprehension in getattr(node, "generators", []):
            yield from ((test, "filter") for test in comprehension.ifs)


@dataclass(frozen=True)
class DropStatement(Operator):
    """Leave out the k-th statement of a kind of `STATEMENTS`; an `if` or a loop with all of its contents."""

    old: str
    PLACE: ClassVar[str] = "statements of that kind"

    def places(self, function: Function) -> list[tuple[ast.AST, int]]:
        """Return all statements of that kind."""
        return [(node, 0) for node in function.nodes if type(node) is STATEMENTS[self.old]]

    def change(self, node: ast.AST, part: int) -> ast.AST:
        """Return `pass`."""
        return ast.Pass()

    @classmethod
    def all_in(cls, function: Function) -> list[Operator]:
        """Leave out calls, augmented assignments, deletions, errors, `continue`, and assignments to attributes."""
        found = list[Operator]()
        for kind in ("call", "augmented", "delete", "raise", "continue", "assign"):
            for k, (node, _) in enumerate(cls(0, kind).places(function)):
                targets = node.targets if isinstance(node, ast.Assign) else []
                if all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets):
                    found.append(cls(k, kind))
        return found


@dataclass(frozen=True)
class Bypass(Operator):
    """Replace the k-th call of a name by what it is applied to: `x.clamp(0)` or `sorted(x)` becomes `x`.

    Attributes:
        old: last part of the name that is called.
    """

    old: str
    PLACE: ClassVar[str] = "calls of that name"

    def places(self, function: Function) -> list[tuple[ast.AST, int]]:
        """Return all calls of that name."""
        calls = [node for node in function.nodes if isinstance(node, ast.Call)]
        return [(call, _receives(function, call)) for call in calls if _called(call) == self.old]

    def change(self, node: ast.AST, part: int) -> ast.AST:
        """Keep the receiver of a method, or the first argument."""
        assert isinstance(node, ast.Call)
        if part:
            assert isinstance(node.func, ast.Attribute)
            return node.func.value
        if not node.args or isinstance(node.args[0], ast.Starred):
            raise MutationError(f"number {self.k} of the {self.PLACE} {self.old} has no first argument")
        return node.args[0]

    @classmethod
    def all_in(cls, function: Function) -> list[Operator]:
        """Leave out each call inside an expression that is applied to something."""
        whole = {id(node.value) for node in function.nodes if isinstance(node, ast.Expr)}
        names = dict.fromkeys(_called(node) for node in function.nodes if isinstance(node, ast.Call))
        found = list[Operator]()
        for name in names:
            if not name or name[0].isupper() or (hasattr(builtins, name) and name not in BYPASSED_BUILTINS):
                continue
            for k, (call, part) in enumerate(cls(0, name).places(function)):
                assert isinstance(call, ast.Call)
                if id(call) not in whole and (part or (call.args and not isinstance(call.args[0], ast.Starred))):
                    found.append(cls(k, name))
        return found


def _called(call: ast.Call) -> str:
    """Return the last part of the name that is called, or ""."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _receives(function: Function, call: ast.Call) -> int:
    """Return 1 if a method of an object is called, 0 for a function, be it one of a module."""
    if not isinstance(call.func, ast.Attribute):
        return 0
    root = call.func
    while isinstance(root, ast.Attribute):
        root = root.value
    imports = [node for node in _statements(function.tree) if isinstance(node, ast.Import)]
    modules = {(alias.asname or alias.name).partition(".")[0] for node in imports for alias in node.names}
    return int(not (isinstance(root, ast.Name) and root.id in modules))


@dataclass(frozen=True)
class Argument(Operator):
    """Replace an argument of the k-th call of a name.

    Attributes:
        old: last part of the name that is called.
        argument: position, or keyword.
        new: expression; `{}` in it stands for the present argument, which may contain names of locals.
    """

    old: str
    argument: int | str
    new: str
    PLACE: ClassVar[str] = "calls of that name"

    def places(self, function: Function) -> list[tuple[ast.AST, int]]:
        """Return all calls of that name."""
        return Bypass(0, self.old).places(function)

    def change(self, node: ast.AST, part: int) -> ast.AST:
        """Return the call with the new argument."""
        assert isinstance(node, ast.Call)
        if isinstance(self.argument, int) and self.argument < len(node.args):
            node.args[self.argument] = self._argument(node.args[self.argument])
            return node
        for keyword in node.keywords:
            if keyword.arg == self.argument:
                keyword.value = self._argument(keyword.value)
                return node
        raise MutationError(f"number {self.k} of the {self.PLACE} {self.old} has no argument {self.argument}")

    def _argument(self, old: ast.expr) -> ast.expr:
        return _expression(self.new.replace("{}", f"({ast.unparse(old)})"))


@dataclass(frozen=True)
class Callee(Operator):
    """Call another function or method in the k-th call of a name, with the same arguments.

    Attributes:
        old: last part of the name that is called.
        new: name to be called instead.
    """

    old: str
    new: str
    PLACE: ClassVar[str] = "calls of that name"
    OTHER: ClassVar[dict[str, str]] = {
        "min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum",
        "amin": "amax", "amax": "amin", "argmax": "argmin", "argmin": "argmax", "tril": "triu", "triu": "tril",
    }  # fmt: skip

    def places(self, function: Function) -> list[tuple[ast.AST, int]]:
        """Return all calls of that name."""
        return Bypass(0, self.old).places(function)

    def change(self, node: ast.AST, part: int) -> ast.AST:
        """Return the call with the other name."""
        assert isinstance(node, ast.Call)
        if isinstance(node.func, ast.Attribute):
            node.func.attr = self.new
        else:
            node.func = ast.Name(self.new)
        return node

    @classmethod
    def all_in(cls, function: Function) -> list[Operator]:
        """Take the minimum for the maximum, and the like."""
        calls = [(old, new, cls(0, old, new).places(function)) for old, new in cls.OTHER.items()]
        return [cls(k, old, new) for old, new, places in calls for k in range(len(places))]


@dataclass(frozen=True)
class Return:
    """Replace the whole body by `return new`, an expression of the parameters and of names of the module."""

    new: str

    def apply(self, function: Function) -> str:
        """Return the changed text of the file.

        Raises:
            MutationError: the expression uses a name that is not known there.
        """
        expression = _expression(self.new)
        names = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name) and not _is_stored(node)}
        own = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name) and _is_stored(node)}
        if unknown := names - own - function.available_names:
            raise MutationError(f"{function.name} has no name {', '.join(sorted(unknown))}")
        return function.replace_nodes(function.body[0], function.body[-1], f"return {ast.unparse(expression)}")

    def line(self, function: Function) -> int:
        """Return the number of the line where the body begins, from 1."""
        return function.body[0].lineno

    @classmethod
    def all_in(cls, function: Function) -> list[Operator | Return]:
        """Return nothing."""
        return [cls("None")]


Change = Operator | Return
OPERATORS: Sequence[type[Change]] = (
    Compare, BinOp, SwapOperands, BoolOp, DropUnary, Constant, Negate, Force, DropStatement, Bypass, Callee, Return,
)  # fmt: skip
"""Operators that are tried on a whole function. `Argument` is not among them: it needs a replacement."""


def all_changes(function: Function) -> list[Change]:
    """Return each applicable operator for each place of a function, in the order of the lines."""
    found = list[Change]()
    for operator in OPERATORS:
        for change in operator.all_in(function):
            try:
                change.apply(function)
            except MutationError:
                continue
            found.append(change)
    return sorted(found, key=lambda change: change.line(function))
