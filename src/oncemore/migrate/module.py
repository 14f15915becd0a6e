"""Rewrites one module: finds the calls of a library, replaces those that can be, and mends the imports.

Two passes over one syntax tree. The first decides about each call and keeps the new source by node; the
second replaces the nodes. Names are resolved by libcst, so that aliases and `from` imports are followed, and
a function of the same name from elsewhere is not touched.
"""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m
from libcst.metadata import (
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
    QualifiedNameProvider,
    QualifiedNameSource,
)

from oncemore._values import Value
from oncemore.migrate import from_backoff, from_stamina, from_tenacity
from oncemore.migrate.expressions import CallSite, bind_arguments, read_number, write_source
from oncemore.migrate.imports import mend_imports
from oncemore.migrate.options import CannotMigrate, RetryCall, list_warnings, render_call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

LIBRARIES: dict[str, ModuleType] = {
    "tenacity": from_tenacity,
    "backoff": from_backoff,
    "stamina": from_stamina,
}


class MigratedCall(Value):
    """One call of the other library: rewritten, or left as it is for a reason.

    differences  changes of behaviour, one sentence each
    """

    line: int
    call: str
    is_rewritten: bool
    reason: str = ""
    differences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class MigratedModule(Value):
    """The new source of a module, equal to the old one if nothing was rewritten, and all its calls."""

    source: bytes
    calls: tuple[MigratedCall, ...]


def migrate_module(source: bytes, library: str, *, exact: bool = False) -> MigratedModule:
    """Rewrite the calls of a library in the source of a module.

    exact  leave calls as they are if the rewritten one would differ in anything

    Raises `CannotMigrate` if the source is not Python that libcst can parse.
    """
    # Most files of a project do not use the library, and parsing costs a thousand times this test.
    if library.encode() not in source:
        return MigratedModule(source, ())
    try:
        tree = cst.parse_module(source)
    except (cst.ParserSyntaxError, UnicodeDecodeError, LookupError) as error:
        text = error.message if isinstance(error, cst.ParserSyntaxError) else str(error)
        raise CannotMigrate(f"it cannot be parsed: {' '.join(text.split())}") from error
    wrapper = MetadataWrapper(tree)
    scan = _CallScan(LIBRARIES[library], exact)
    wrapper.visit(scan)
    if not scan.replacements:
        return MigratedModule(source, tuple(scan.calls))
    changed = wrapper.module.visit(_CallReplacer(scan))
    mended = mend_imports(changed, library, scan.freed_names, {"oncemore", *scan.imports})
    return MigratedModule(mended.bytes, tuple(scan.calls))


class _CallScan(cst.CSTVisitor):
    """Collects the names, functions and calls of a module, then decides about each call."""

    METADATA_DEPENDENCIES = (ParentNodeProvider, PositionProvider, QualifiedNameProvider)

    def __init__(self, library: ModuleType, exact: bool) -> None:
        super().__init__()
        self.library = library
        self.exact = exact
        self.calls: list[MigratedCall] = []
        #: New source by node: of calls, and of fields of an attempt.
        self.replacements: dict[cst.CSTNode, str] = {}
        #: Comments inside replaced calls, by the statement or decorator that they will precede.
        self.comments: dict[cst.CSTNode, list[str]] = {}
        self.imports: set[str] = set()
        #: Imported names that the replaced calls used.
        self.freed_names: set[str] = set()
        self._found: list[tuple[cst.CSTNode, str]] = []
        self._used: set[str] = set()
        self._functions: dict[str, cst.FunctionDef] = {}
        self._numbers: dict[str, int] = {}
        self._attributes: set[tuple[str, str]] = set()
        self._has_own_oncemore = False

    # The first pass.

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:  # noqa: N802 - the names are libcst's
        self._functions[node.name.value] = node

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:  # noqa: N802
        if isinstance(node.target, cst.Name):
            name = node.target.value
            parent = self.get_metadata(ParentNodeProvider, node)
            is_number = isinstance(parent, cst.Assign) and read_number(parent.value) is not None
            # A second assignment makes the name a variable, whose value is not known.
            self._numbers[name] = self._numbers.get(name, 0) + (1 if is_number else 2)
            self._has_own_oncemore = self._has_own_oncemore or name == "oncemore"

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:  # noqa: N802
        module = "" if node.module is None else write_source(node.module)
        if isinstance(node.names, cst.ImportStar) and module.split(".")[0] == self.library.LIBRARY:
            self._leave_call(node, f"from {module} import *", "import the names that are used instead of *")

    def visit_Attribute(self, node: cst.Attribute) -> None:  # noqa: N802
        if isinstance(node.value, cst.Name):
            self._attributes.add((node.value.value, node.attr.value))
        self._note_name(node)

    def visit_Name(self, node: cst.Name) -> None:  # noqa: N802
        self._note_name(node)

    def _note_name(self, node: cst.CSTNode) -> None:
        name = self.resolve_name(node)
        if name.partition(".")[0] != self.library.LIBRARY or self._is_in_import(node):
            return
        self._used.add(name)
        short = name.partition(".")[2]
        if short in self.library.ENTRY_POINTS:
            self._found.append((node, short))

    def _is_in_import(self, node: cst.CSTNode) -> bool:
        parent = self.get_metadata(ParentNodeProvider, node)
        return isinstance(parent, (cst.ImportAlias, cst.ImportFrom, cst.AsName))

    def resolve_name(self, node: cst.CSTNode) -> str:
        """Return the full name of an imported thing, "" for anything else."""
        names = self.get_metadata(QualifiedNameProvider, node, set())
        # Two names mean two imports, such as in try and except: the one that holds is not known.
        imported = [name.name for name in names if name.source == QualifiedNameSource.IMPORT]
        if len(imported) != 1 or len(names) != 1:
            return ""
        library, _, rest = imported[0].partition(".")
        module, dot, name = rest.partition(".")
        return f"{library}.{name}" if dot and module in self.library.SUBMODULES else imported[0]

    # The decisions.

    def leave_Module(self, original_node: cst.Module) -> None:  # noqa: N802
        """Decide about each use of an entry point, when all names of the module are known."""
        for node, name in self._found:
            parent = self.get_metadata(ParentNodeProvider, node)
            call = parent if isinstance(parent, cst.Call) and parent.func is node else None
            shown = f"{self.library.LIBRARY}.{name}"
            try:
                if call is None:
                    raise CannotMigrate(self._explain_bare_name(parent))
                self._decide_call(call, name, shown)
            except CannotMigrate as reason:
                self._leave_call(node, shown, str(reason))
        self.calls.sort(key=lambda call: call.line)

    def _leave_call(self, node: cst.CSTNode, shown: str, reason: str) -> None:
        self.calls.append(MigratedCall(self._read_line(node), shown, False, reason))

    def _read_line(self, node: cst.CSTNode) -> int:
        line = self.get_metadata(PositionProvider, node).start.line
        assert isinstance(line, int)
        return line

    def _explain_bare_name(self, parent: cst.CSTNode) -> str:
        if isinstance(parent, cst.Decorator):
            return "it has no arguments and repeats for ever: give stop=stop_after_attempt(n) first"
        return "it is not called here"

    def _decide_call(self, call: cst.Call, name: str, shown: str) -> None:
        if self._has_own_oncemore:
            raise CannotMigrate("this module has a variable called oncemore")
        parent = self.get_metadata(ParentNodeProvider, call)
        is_block = name in self.library.BLOCKS
        fields = self._check_block(parent, call) if is_block else {}
        function = self._check_function(parent)
        is_async = self._is_async(parent, function)
        site = CallSite(
            arguments=bind_arguments(call, self.library.ENTRY_POINTS[name]),
            resolve=self.resolve_name,
            is_block=is_block,
            is_async=is_async,
            numbers=frozenset(name for name, count in self._numbers.items() if count == 1),
            functions=self._functions,
            used_names=frozenset(self._used),
        )
        new: RetryCall = self.library.translate_call(site)
        if self.exact and new.differences:
            raise CannotMigrate(f"--exact was given, and {'; '.join(new.differences)}")
        comments = _read_comments(call)
        statement = self._find_statement(call) if comments else None
        several = "\n" in cst.Module(body=[]).code_for_node(call)
        function_name = "oncemore.attempts" if is_block else "oncemore.retry"
        self.replacements[call] = render_call(function_name, new, several_lines=several)
        self.replacements.update(fields)
        if statement is not None:
            self.comments.setdefault(statement, []).extend(comments)
        self.imports.update(new.imports)
        self._free_names(call)
        notes = (*new.notes, *list_warnings(new))
        self.calls.append(MigratedCall(self._read_line(call), shown, True, "", new.differences, notes))

    def _free_names(self, call: cst.Call) -> None:
        for found in m.findall(call, m.Name()):
            for name in self.get_metadata(QualifiedNameProvider, found, set()):
                if name.source == QualifiedNameSource.IMPORT:
                    self.freed_names.add(name.name)

    def _check_function(self, parent: cst.CSTNode) -> cst.FunctionDef | None:
        """Return the decorated function; refuse functions that `oncemore.retry` refuses."""
        if not isinstance(parent, cst.Decorator):
            return None
        function = self.get_metadata(ParentNodeProvider, parent)
        if not isinstance(function, cst.FunctionDef):
            raise CannotMigrate("it decorates a class")
        if _is_generator(function):
            raise CannotMigrate("it decorates a generator function: oncemore refuses them")
        below = function.decorators[function.decorators.index(parent) + 1 :]
        for decorator in below:
            if write_source(decorator.decorator) in ("staticmethod", "classmethod"):
                raise CannotMigrate(
                    "it stands above @staticmethod or @classmethod: move it next to the function"
                )
        for attribute in self.library.FUNCTION_ATTRIBUTES:
            if (function.name.value, attribute) in self._attributes:
                raise CannotMigrate(
                    f"this module uses {function.name.value}.{attribute}, which has no counterpart"
                )
        return function

    def _is_async(self, parent: cst.CSTNode, function: cst.FunctionDef | None) -> bool | None:
        if isinstance(parent, cst.For):
            # `with attempt:` is never interrupted, also not in an asynchronous loop.
            return False
        return None if function is None else function.asynchronous is not None

    def _check_block(self, parent: cst.CSTNode, call: cst.Call) -> dict[cst.CSTNode, str]:
        """Return the replacements of attempt fields in a loop; refuse loops that do more than one block."""
        if not isinstance(parent, cst.For) or parent.iter is not call:
            raise CannotMigrate("it is not the iterator of a for loop: use oncemore.retrying(function, ...)")
        if not isinstance(parent.target, cst.Name) or parent.orelse is not None:
            raise CannotMigrate("the loop has an else, or its target is not a plain name")
        attempt = parent.target.value
        statements = parent.body.body
        block = statements[0] if len(statements) == 1 else None
        if (
            not isinstance(block, cst.With)
            or block.asynchronous is not None
            or len(block.items) != 1
            or block.items[0].asname is not None
            or write_source(block.items[0].item) != attempt
        ):
            raise CannotMigrate(f"the loop has more than one block `with {attempt}:`")
        return self._replace_fields(block, attempt)

    def _replace_fields(self, block: cst.With, attempt: str) -> dict[cst.CSTNode, str]:
        fields = {f"{attempt}.{old}": f"{attempt}.{new}" for old, new in self.library.ATTEMPT_FIELDS.items()}
        replaced: dict[cst.CSTNode, str] = {}
        for node in m.findall(block.body, m.Attribute()):
            if write_source(node) in fields:
                replaced[node] = fields[write_source(node)]
        uses = [node for node in m.findall(block.body, m.Name(attempt)) if not self._is_attribute_name(node)]
        if len(uses) > len(replaced):
            raise CannotMigrate(f"the block uses {attempt} for more than the number of the attempt")
        return replaced

    def _is_attribute_name(self, node: cst.CSTNode) -> bool:
        parent = self.get_metadata(ParentNodeProvider, node)
        return isinstance(parent, cst.Attribute) and parent.attr is node

    def _find_statement(self, call: cst.Call) -> cst.CSTNode:
        node: cst.CSTNode = call
        while not isinstance(node, (cst.Decorator, cst.BaseStatement)):
            node = self.get_metadata(ParentNodeProvider, node)
        if isinstance(node, (cst.Decorator, cst.SimpleStatementLine, cst.For)):
            return node
        raise CannotMigrate("there are comments inside of the call, and no line before it to keep them")


def _read_comments(node: cst.CSTNode) -> list[str]:
    return [one.value for one in m.findall(node, m.Comment()) if isinstance(one, cst.Comment)]


def _is_generator(function: cst.FunctionDef) -> bool:
    """Return whether a function has a `yield` of its own, not only in an inner function."""
    finder = _YieldFinder()
    function.body.visit(finder)
    return finder.has_yield


class _YieldFinder(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.has_yield = False

    def visit_Yield(self, node: cst.Yield) -> None:  # noqa: N802 - the names are libcst's
        self.has_yield = True

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:  # noqa: N802
        return False

    def visit_Lambda(self, node: cst.Lambda) -> bool:  # noqa: N802
        return False


class _CallReplacer(cst.CSTTransformer):
    """Replaces the nodes that the scan decided about."""

    def __init__(self, scan: _CallScan) -> None:
        super().__init__()
        self._replacements: Mapping[cst.CSTNode, str] = scan.replacements
        self._comments: Mapping[cst.CSTNode, list[str]] = scan.comments

    def on_leave(  # type: ignore[override] # libcst's type is wider
        self, original_node: cst.CSTNode, updated_node: cst.CSTNode
    ) -> cst.CSTNode:
        source = self._replacements.get(original_node)
        if source is not None:
            return cst.parse_expression(source)
        comments = self._comments.get(original_node, ())
        if comments:
            lines = [cst.EmptyLine(comment=cst.Comment(comment)) for comment in comments]
            return updated_node.with_changes(leading_lines=[*updated_node.leading_lines, *lines])  # type: ignore[attr-defined]
        return updated_node
