"""Mends the imports of a migrated module: adds new ones, removes those that nothing uses any more.

Done by hand and not with the visitors of libcst, because those drop the comments next to a removed name.
"""

from __future__ import annotations

import libcst as cst
from libcst.codemod import CodemodContext
from libcst.codemod.visitors import AddImportsVisitor, GatherExportsVisitor
from libcst.metadata import ImportAssignment, MetadataWrapper, ScopeProvider

from oncemore.migrate.expressions import write_source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


def mend_imports(tree: cst.Module, library: str, freed_names: set[str], needed: Iterable[str]) -> cst.Module:
    """Return the module with imports of the needed modules and without unused ones of the library.

    freed_names  full names that the rewritten calls used; other unused imports may be there on purpose
    """
    context = CodemodContext()
    for module in sorted(needed):
        AddImportsVisitor.add_needed_import(context, module)
    wrapper = MetadataWrapper(AddImportsVisitor(context).transform_module(tree))
    unused: set[cst.CSTNode] = {
        alias
        for alias, statement in _find_unused(wrapper)
        if _is_freed(alias, statement, library, freed_names)
    }
    mended = wrapper.module.visit(_ImportRemover(unused))
    assert isinstance(mended, cst.Module)
    return mended


def _find_unused(wrapper: MetadataWrapper) -> Iterator[tuple[cst.ImportAlias, cst.Import | cst.ImportFrom]]:
    """Yield imported names that no code refers to and that the module does not export."""
    exports = GatherExportsVisitor(CodemodContext())
    wrapper.module.visit(exports)
    for scope in set(wrapper.resolve(ScopeProvider).values()):
        for assignment in () if scope is None else scope.assignments:
            if not isinstance(assignment, ImportAssignment) or assignment.references:
                continue
            statement = assignment.node
            if assignment.name in exports.explicit_exported_objects:
                continue
            assert isinstance(statement, (cst.Import, cst.ImportFrom))
            for alias in () if isinstance(statement.names, cst.ImportStar) else statement.names:
                bound = alias.evaluated_alias or alias.evaluated_name
                # `import tenacity.wait` binds the name of the library.
                if bound == assignment.name or bound.split(".")[0] == assignment.name:
                    yield alias, statement


def _is_freed(
    alias: cst.ImportAlias, statement: cst.Import | cst.ImportFrom, library: str, freed_names: set[str]
) -> bool:
    if isinstance(statement, cst.Import):
        module = alias.evaluated_name
        # A call names the module itself, `tenacity.retry(...)`, and so frees it.
        return module.split(".")[0] == library and any(
            f"{name}.".startswith(f"{module}.") for name in freed_names
        )
    module = "" if statement.module is None or statement.relative else write_source(statement.module)
    return module.split(".")[0] == library and f"{module}.{alias.evaluated_name}" in freed_names


class _ImportRemover(cst.CSTTransformer):
    """Removes imported names, and statements that import nothing any more, but not their comments."""

    def __init__(self, unused: set[cst.CSTNode]) -> None:
        super().__init__()
        self._unused = unused

    def leave_Import(  # noqa: N802 - the names are libcst's
        self, original_node: cst.Import, updated_node: cst.Import
    ) -> cst.Import | cst.RemovalSentinel:
        names = self._keep_names(original_node.names)
        if not names:
            return cst.RemoveFromParent()
        # The comma after the last name is the one before a removed name.
        names[-1] = names[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return updated_node.with_changes(names=names)

    def leave_ImportFrom(  # noqa: N802
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom | cst.RemovalSentinel:
        if isinstance(original_node.names, cst.ImportStar):
            return updated_node
        names = self._keep_names(original_node.names)
        if not names:
            return cst.RemoveFromParent()
        if names[-1] is not original_node.names[-1]:
            names[-1] = _end_names(names[-1], original_node)
        return updated_node.with_changes(names=names)

    def _keep_names(self, names: Sequence[cst.ImportAlias]) -> list[cst.ImportAlias]:
        return [alias for alias in names if alias not in self._unused]

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:  # noqa: N802
        return updated_node.with_changes(body=_drop_empty_lines(updated_node.body))

    def leave_IndentedBlock(  # noqa: N802
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        body = _drop_empty_lines(updated_node.body)
        # A block needs a statement: `try: import tenacity` may have had only this one.
        return updated_node.with_changes(body=body or [cst.SimpleStatementLine([cst.Pass()])])


def _end_names(alias: cst.ImportAlias, statement: cst.ImportFrom) -> cst.ImportAlias:
    """Return the last remaining name with the line end of the old last one, and its own comment."""
    assert not isinstance(statement.names, cst.ImportStar)
    comma, old = alias.comma, statement.names[-1].comma
    if not isinstance(comma, cst.Comma) or statement.lpar is None:
        return alias.with_changes(comma=cst.MaybeSentinel.DEFAULT)
    after = comma.whitespace_after
    if not isinstance(after, cst.ParenthesizedWhitespace):
        return alias.with_changes(comma=old)
    # The closing parenthesis has the indentation that followed the old last comma.
    if isinstance(old, cst.Comma) and isinstance(old.whitespace_after, cst.ParenthesizedWhitespace):
        after = after.with_changes(last_line=old.whitespace_after.last_line)
    return alias.with_changes(comma=comma.with_changes(whitespace_after=after))


def _drop_empty_lines(body: Sequence[cst.BaseStatement]) -> list[cst.BaseStatement]:
    """Return the statements without emptied lines, whose comments go to the next statement."""
    kept: list[cst.BaseStatement] = []
    comments: list[cst.EmptyLine] = []
    for statement in body:
        if isinstance(statement, cst.SimpleStatementLine) and not statement.body:
            comments += [line for line in statement.leading_lines if line.comment is not None]
            continue
        if comments:
            lines = (*comments, *statement.leading_lines)  # type: ignore[attr-defined]
            statement = statement.with_changes(leading_lines=lines)
            comments = []
        kept.append(statement)
    return kept
