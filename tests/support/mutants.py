"""Mutants of a Python file: small faults, one at a time, that a test of behaviour ought to notice.

A mutant is a splice of the file's bytes, so everything else keeps its line. Left alone is what cannot change
behaviour or only changes prose: docstrings, annotations (but not the constraints in `Annotated`), `__all__`,
decorators, f-strings, and the texts of errors, findings and log lines; of those only a leading code is mutated.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path

_OPERATORS: dict[type[ast.AST], tuple[str, str]] = {  # what to find between the operands, what to write there
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.In: ("in", "not in"), ast.NotIn: (r"not\s+in", "in"),
    ast.Is: ("is", "is not"), ast.IsNot: (r"is\s+not", "is"), ast.And: ("and", "or"), ast.Or: ("or", "and"),
    ast.Add: (r"\+", "-"), ast.Sub: ("-", "+"), ast.Mult: (r"\*", "//"), ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"), ast.Mod: ("%", "//"), ast.Pow: (r"\*\*", "*"), ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"), ast.BitAnd: ("&", "|"), ast.BitOr: (r"\|", "&"), ast.BitXor: (r"\^", "&")}
_MESSAGE = re.compile(r"(Error|Refused|Finding|Diagnostic|malformed|_wrong|error|warning|note|add|_refuse)$|^log")
_READS = {"take", "demand", "number", "sized", "scalar", "u8", "u16", "u32", "u64", "text"}  # of what, for the error
_PROSE_KEYWORDS = {"summary", "hint", "message", "description", "detail", "fix", "help", "title", "reason", "desc"}
_PROSE = re.compile(r"\w[,:;]? \w")
_CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Mutant:
    """One fault: bytes `start` to `end` of the file become `replacement`."""

    path: str  # of the file, relative to the repository
    start: int
    end: int
    replacement: str
    kind: str
    lines: tuple[int, int] = field(compare=False)  # of the statement around it, first and last
    inside: bool = field(compare=False)  # a function: it runs in a test, not at import

    def apply(self, source: bytes) -> bytes:
        """Return the file with the fault in it."""
        return source[:self.start] + self.replacement.encode() + source[self.end:]

    def line(self, source: bytes) -> int:
        """Return the line of the fault."""
        return source.count(b"\n", 0, self.start) + 1


def mutants(root: Path, path: Path) -> list[Mutant]:
    """Return every mutant of a file, in the order of the file."""
    source = path.read_bytes()
    maker = _Maker(source, str(path.relative_to(root)))
    maker.visit(ast.parse(source))
    return sorted(set(maker.found), key=lambda mutant: (mutant.start, mutant.end, mutant.replacement))


class _Maker(ast.NodeVisitor):
    """Collects the mutants of one file."""

    def __init__(self, source: bytes, path: str) -> None:
        self.source, self.path = source, path
        self.starts = [0, *(match.end() for match in re.finditer(b"\n", source))]
        self.found: list[Mutant] = []
        self.functions = 0
        self.lines = (1, 1)

    def visit(self, node: ast.AST) -> None:
        """Note the statement and visit what may be mutated in it."""
        outside = self.lines
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if isinstance(body, list) and body else node.end_lineno
            self.lines = (node.lineno, max(node.lineno, last or 0))
        super().visit(node)
        self.lines = outside

    def _span(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset)

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self.source[start:end].decode()

    def _add(self, start: int, end: int, replacement: str, kind: str) -> None:
        self.found.append(Mutant(self.path, start, end, replacement, kind, self.lines, self.functions > 0))

    def _replace(self, node: ast.AST, replacement: str, kind: str) -> None:
        self._add(*self._span(node), replacement, kind)

    def _operator(self, left: ast.AST, operator: ast.AST, right: ast.AST, tail: str = "") -> None:
        """Swap the operator that stands between two operands."""
        pattern, swapped = _OPERATORS.get(type(operator), ("", ""))
        begin, end = self._span(left)[1], self._span(right)[0]
        found = re.search(pattern + tail, self.source[begin:end].decode()) if pattern else None
        if found:
            self._add(begin + found.start(), begin + found.end(), swapped + tail, "operator")

    def _negate(self, test: ast.AST) -> None:
        simple = isinstance(test, ast.Compare) and len(test.ops) == 1
        if not simple and not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
            self._replace(test, f"(not ({self._text(test)}))", "condition")

    # statements

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for default in (*node.args.defaults, *(one for one in node.args.kw_defaults if one)):
            self.visit(default)
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            self._annotation(argument.annotation)
        self.functions += 1
        for statement in node.body:
            self.visit(statement)
        self.functions -= 1

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def _annotation(self, node: ast.AST | None) -> None:
        """Visit the constraints of `Annotated`, which pydantic enforces; nothing else of an annotation runs."""
        for part in ast.walk(node) if node else ():
            if isinstance(part, ast.Subscript) and getattr(part.value, "id", "") == "Annotated":
                for constraint in part.slice.elts[1:] if isinstance(part.slice, ast.Tuple) else ():
                    self.visit(constraint)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._annotation(node.annotation)
        if node.value is not None:
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if not any(getattr(target, "id", "") == "__all__" for target in node.targets):
            self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._operator(node.target, node.op, node.value, "=")
        self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return  # a docstring
        if isinstance(node.value, ast.Yield):
            self._replace(node, "yield from ()", "yield")
        elif isinstance(node.value, ast.Call) and not _name(node.value).startswith("log"):
            self._replace(node, "pass", "call")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        if getattr(node.exc, "id", "") == "NotImplementedError":
            return  # an abstract method
        self._replace(node, "pass", "raise")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not isinstance(node.value, ast.Constant):
            self._replace(node.value, "None", "return")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if getattr(node.test, "id", "") != "TYPE_CHECKING":
            self._negate(node.test)
            self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_Break(self, node: ast.Break) -> None:
        self._replace(node, "continue", "loop")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace(node, "break", "loop")

    # expressions

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negate(test)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            self._operator(left, operator, right)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._operator(left, node.op, right)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self._operator(node.left, node.op, node.right)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        self._replace(node, f"({self._text(node.operand)})", "unary")
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Nothing: texts, and Python 3.11 does not know where their parts stand."""

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if getattr(node.value, "id", "") == "Annotated":
            self._annotation(node)
        elif getattr(node.value, "id", "") not in {"Literal", "ClassVar", "Mapping", "Sequence", "Callable", "dict"}:
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = _name(node)
        if name in {"min", "max"} and isinstance(node.func, ast.Name):
            self._replace(node.func, "max" if name == "min" else "min", "name")
        self.visit(node.func)
        if name in {"isinstance", "cast", "TypeVar"}:
            node.args = node.args[:1] if name == "isinstance" else node.args[1:]
        if _MESSAGE.search(name) and any(_prose(part) for part in ast.walk(node)):
            self._message(node)
            return
        for argument in node.args:
            if not (name in _READS and isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
                self.visit(argument)
        for keyword in node.keywords:
            if keyword.arg not in _PROSE_KEYWORDS and (name, keyword.arg) != ("zip", "strict"):
                self.visit(keyword.value)

    def _message(self, node: ast.Call) -> None:
        """Visit the machine-readable parts of an error, finding or log line."""
        parts = [*node.args[:1], *(one.value for one in node.keywords if one.arg in {"code", "severity", "secret"})]
        for part in parts:
            if isinstance(part, ast.Constant) and (part.value is True or _CODE.fullmatch(str(part.value))):
                self.visit(part)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._replace(node, str(not value), "constant")
        elif isinstance(value, int | float):
            self._replace(node, repr(value + 1), "constant")
        elif isinstance(value, bytes):
            self._replace(node, repr(value + b"XX"), "constant")
        elif isinstance(value, str) and not _PROSE.search(value):
            self._replace(node, repr(value + "XX"), "constant")


def _name(call: ast.Call) -> str:
    """The last word of what is called."""
    return str(getattr(call.func, "id", getattr(call.func, "attr", "")))


def _prose(node: ast.AST) -> bool:
    """Whether this is a text for people."""
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(_PROSE.search(node.value)))
