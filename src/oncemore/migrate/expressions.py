"""Reads numbers, names, functions and arguments from a syntax tree of libcst."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from oncemore._values import Value
from oncemore.migrate.options import CannotMigrate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    #: Returns the imported name that an expression refers to ("tenacity.retry"), or "".
    ResolveName = Callable[[cst.CSTNode], str]

_EMPTY = cst.Module(body=[])


class CallSite(Value):
    """A call of another library, with the facts about the code around it.

    arguments    the arguments by name
    resolve      the resolver of names of this module
    is_block     whether it is the iterator of a `for` loop
    is_async     whether the function or the loop is asynchronous; None if that is not known
    numbers      names of this module that are bound once, to a number
    functions    functions of this module, by name
    used_names   names of the library that this module refers to
    """

    arguments: Mapping[str, cst.BaseExpression]
    resolve: ResolveName
    is_block: bool
    is_async: bool | None
    numbers: frozenset[str]
    functions: Mapping[str, cst.FunctionDef]
    used_names: frozenset[str]


def write_source(node: cst.CSTNode) -> str:
    """Return the source of an expression on one line, without comments."""
    flat = node.visit(_LineJoiner())
    assert isinstance(flat, cst.CSTNode)
    return _EMPTY.code_for_node(flat).strip()


class _LineJoiner(cst.CSTTransformer):
    """Replaces line breaks inside brackets by one space, so that an argument fits on its new line."""

    def leave_ParenthesizedWhitespace(  # noqa: N802 - the name is libcst's
        self, original_node: cst.ParenthesizedWhitespace, updated_node: cst.ParenthesizedWhitespace
    ) -> cst.SimpleWhitespace:
        return cst.SimpleWhitespace(" ")


def bind_arguments(call: cst.Call, parameters: Sequence[str]) -> dict[str, cst.BaseExpression]:
    """Return the arguments of a call by name; refuse `*args`, `**options` and arguments too many."""
    bound: dict[str, cst.BaseExpression] = {}
    for index, argument in enumerate(call.args):
        if argument.star:
            raise CannotMigrate(
                f"its arguments are built at run time ({argument.star}{write_source(argument.value)})"
            )
        if argument.keyword is not None:
            bound[argument.keyword.value] = argument.value
        elif index < len(parameters):
            bound[parameters[index]] = argument.value
        else:
            raise CannotMigrate("it has more positional arguments than are known")
    return bound


def read_number(node: cst.BaseExpression) -> float | None:
    """Return the value of a number that is written in place, also of a sum or product of numbers."""
    if isinstance(node, (cst.Integer, cst.Float)):
        return float(node.evaluated_value)
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        inner = read_number(node.expression)
        return None if inner is None else -inner
    if isinstance(node, cst.BinaryOperation):
        left, right = read_number(node.left), read_number(node.right)
        compute = _OPERATIONS.get(type(node.operator))
        if left is not None and right is not None and compute is not None:
            return compute(left, right)
    return None


_OPERATIONS: dict[type[cst.BaseBinaryOp], Callable[[float, float], float]] = {
    cst.Add: lambda left, right: left + right,
    cst.Subtract: lambda left, right: left - right,
    cst.Multiply: lambda left, right: left * right,
}


def read_word(node: cst.BaseExpression) -> str:
    """Return the word True, False or None if the expression is that, else ""."""
    return node.value if isinstance(node, cst.Name) and node.value in ("True", "False", "None") else ""


def read_types(node: cst.BaseExpression) -> tuple[list[str], bool]:
    """Return the sources of exception types, and whether the only one may be the name of a tuple."""
    if isinstance(node, cst.Tuple):
        if any(isinstance(element, cst.StarredElement) for element in node.elements):
            return [write_source(node)], True
        return [write_source(element.value) for element in node.elements], False
    source = write_source(node)
    last = source.rpartition(".")[2]
    # Classes are written in capitals and small letters, such as OSError; ERRORS and errors are tuples.
    return [source], not (last[:1].isupper() and any(letter.islower() for letter in last))


def inline_function(node: cst.BaseExpression, name: str) -> str:
    """Return the call of a function with one argument as an expression.

    A lambda becomes its body, with the parameter renamed to `name`; any other function is called.
    """
    if not isinstance(node, cst.Lambda):
        return f"{write_source(node)}({name})"
    return write_source(rename_parameter(node, name).body)


def read_parameter(function: cst.Lambda) -> str:
    """Return the name of the only parameter of a lambda."""
    parameters = function.params
    others = parameters.kwonly_params or parameters.star_kwarg or isinstance(parameters.star_arg, cst.Param)
    if len(parameters.params) != 1 or others:
        raise CannotMigrate("a lambda does not have exactly one parameter")
    return parameters.params[0].name.value


def rename_parameter(function: cst.Lambda, name: str) -> cst.Lambda:
    """Return a lambda with its parameter renamed; refuse one where the new name means something else."""
    old = read_parameter(function)
    # Inner scopes may use the same names for other things; renaming there would need an analysis.
    scopes = m.findall(
        function.body, m.Lambda() | m.GeneratorExp() | m.ListComp() | m.SetComp() | m.DictComp()
    )
    used = {found.value for found in m.findall(function.body, m.Name()) if isinstance(found, cst.Name)}
    if scopes or (name in used and name != old) or m.findall(function.body, m.NamedExpr()):
        raise CannotMigrate("a lambda is too involved to be joined with others: make it a function")
    renamed = function.visit(_NameChanger(old, name))
    assert isinstance(renamed, cst.Lambda)
    return renamed


class _NameChanger(cst.CSTTransformer):
    """Renames a variable; attribute names and keywords of the same spelling stay."""

    def __init__(self, old: str, new: str) -> None:
        super().__init__()
        self._old, self._new = old, new

    def leave_Attribute(  # noqa: N802 - the name is libcst's
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.Attribute:
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:  # noqa: N802
        return updated_node.with_changes(keyword=original_node.keyword)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:  # noqa: N802
        return updated_node.with_changes(value=self._new) if updated_node.value == self._old else updated_node


def rewrite_hook(node: cst.BaseExpression, fields: Mapping[str, str], option: str) -> str:
    """Return a hook of another library as a function of a `RetryReport`.

    Only a lambda can be rewritten, and only if it reads nothing but known fields of its argument.

    fields  expressions that read the argument ("{}.attempt_number") to the field of the report
    """
    if not isinstance(node, cst.Lambda):
        raise CannotMigrate(f"{option} is a function of another kind of argument: rewrite it for on_retry=")
    parameter = read_parameter(node)
    known = {pattern.format(parameter): field for pattern, field in fields.items()}
    body = node.body.visit(_FieldChanger(known))
    assert isinstance(body, cst.BaseExpression)
    names = {found.value for found in m.findall(body, m.Name()) if isinstance(found, cst.Name)}
    if parameter in names - {"report"} or ("report" in names and "report" in write_source(node.body)):
        raise CannotMigrate(f"{option} reads more than a RetryReport has: rewrite it for on_retry=")
    return f"lambda report: {write_source(body)}"


class _FieldChanger(cst.CSTTransformer):
    """Replaces expressions by fields of a report."""

    def __init__(self, known: Mapping[str, str]) -> None:
        super().__init__()
        self._known = known

    def on_leave(  # type: ignore[override] # libcst's type is wider than an expression
        self, original_node: cst.CSTNode, updated_node: cst.CSTNode
    ) -> cst.CSTNode:
        if isinstance(original_node, (cst.Attribute, cst.Call, cst.Subscript)):
            field = self._known.get(write_source(original_node).replace("'", '"'))
            if field is not None:
                return cst.Attribute(cst.Name("report"), cst.Name(field))
        return updated_node


def refuse_arguments(
    arguments: Mapping[str, object], names: Iterable[str], advice: Mapping[str, str]
) -> None:
    """Raise `CannotMigrate` for an argument that has no counterpart."""
    known = set(names)
    for name in arguments:
        if name not in known:
            raise CannotMigrate(advice.get(name, f"{name}= has no counterpart"))
