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
        #: Stand-ins for statements that import nothing any more; their lines are removed by the block.
        self._emptied: set[cst.CSTNode] = set()

    def leave_Import(  # noqa: N802 - the names are libcst's
        self, original_node: cst.Import, updated_node: cst.Import
    ) -> cst.Import | cst.Pass:
        names = self._keep_names(original_node.names)
        if not names:
            return self._empty_statement()
        # The comma after the last name is the one before a removed name.
        names[-1] = names[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return updated_node.with_changes(names=names)

    def leave_ImportFrom(  # noqa: N802
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom | cst.Pass:
        if isinstance(original_node.names, cst.ImportStar):
            return updated_node
        names = self._keep_names(original_node.names)
        if not names:
            return self._empty_statement()
        if names[-1] is original_node.names[-1]:
            return updated_node.with_changes(names=names)
        return _end_names(updated_node.with_changes(names=names), original_node.names[-1].comma)

    def _keep_names(self, names: Sequence[cst.ImportAlias]) -> list[cst.ImportAlias]:
        return [alias for alias in names if alias not in self._unused]

    def _empty_statement(self) -> cst.Pass:
        # libcst would remove the whole line at once, and its comments with it.
        stand_in = cst.Pass()
        self._emptied.add(stand_in)
        return stand_in

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:  # noqa: N802
        return updated_node.with_changes(body=self._drop_lines(updated_node.body))

    def leave_IndentedBlock(  # noqa: N802
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        body = self._drop_lines(updated_node.body)
        # A block needs a statement: `try: import tenacity` may have had only this one.
        return updated_node.with_changes(body=body or [cst.SimpleStatementLine([cst.Pass()])])

    def _drop_lines(self, body: Sequence[cst.BaseStatement]) -> list[cst.BaseStatement]:
        """Return the statements without emptied lines; their comments go to the next statement."""
        kept: list[cst.BaseStatement] = []
        comments: list[cst.EmptyLine] = []
        for statement in body:
            if isinstance(statement, cst.SimpleStatementLine):
                rest = [small for small in statement.body if small not in self._emptied]
                if not rest:
                    comments += [line for line in statement.leading_lines if line.comment is not None]
                    continue
                statement = statement.with_changes(body=rest)
            if comments:
                lines = (*comments, *statement.leading_lines)  # type: ignore[attr-defined]
                statement = statement.with_changes(leading_lines=lines)
                comments = []
            kept.append(statement)
        return kept


def _end_names(statement: cst.ImportFrom, old_comma: cst.Comma | cst.MaybeSentinel) -> cst.ImportFrom:
    """Return an import whose last names were removed, with its end as before and the comments of the rest.

    old_comma  the comma after the old last name, if there was one
    """
    assert not isinstance(statement.names, cst.ImportStar)
    *names, last = statement.names
    after = last.comma.whitespace_after if isinstance(last.comma, cst.Comma) else None
    if not isinstance(after, cst.ParenthesizedWhitespace) or statement.rpar is None:
        # All on one line: no comma before the end.
        return statement.with_changes(names=[*names, last.with_changes(comma=cst.MaybeSentinel.DEFAULT)])
    # The line break before the parenthesis is after the old last comma, or before the parenthesis itself.
    before = (
        old_comma.whitespace_after if isinstance(old_comma, cst.Comma) else statement.rpar.whitespace_before
    )
    if isinstance(before, cst.ParenthesizedWhitespace):
        after = after.with_changes(last_line=before.last_line)
    last = last.with_changes(comma=cst.Comma(whitespace_after=after))
    rpar = statement.rpar.with_changes(whitespace_before=cst.SimpleWhitespace(""))
    return statement.with_changes(names=[*names, last], rpar=rpar)
