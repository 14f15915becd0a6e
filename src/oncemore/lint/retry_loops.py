"""Find loops that a person wrote to try something again.

A loop is a retry loop if a `try` in it has a handler that lets the loop go on, and if success ends the loop.
Without the second condition it is a loop over different items, which only survives a bad one. Loops that try
other values (the next port, a new file name), ask a person, or wait for a queue are not retries of the same
work; the functions below recognise them and leave them alone, because a wrong finding costs more trust
than a missed one.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, NamedTuple

from oncemore.lint.facts import LOOPS, assign_tries_to_loops, enclosing_function, walk_places
from oncemore.lint.names import dotted_text, last_part
from oncemore.lint.provider_calls import is_network_exception, is_provider_call
from oncemore.lint.statements import (
    always_leaves,
    assigned_names,
    handler_types,
    list_calls,
    loaded_names,
    may_leave,
    walk_nodes,
    walk_own,
)

if TYPE_CHECKING:
    from oncemore.lint.facts import LoopNode, LoopSite, ModuleFacts, Place, TryNode

#: Names of counters of attempts.
ATTEMPT_NAME = re.compile(r"(?i)(^|_)(attempts?|retr(y|ies)|retry_?count|tries|try|trial|num_?tries)(_|$|\d)")
#: Names of functions that wait.
WAIT_NAME = re.compile(r"(?i)sleep|wait|backoff|back_off|delay|pause|throttle|cooldown")
#: Functions whose purpose is to reach something outside of the process.
_REACHING_NAME = re.compile(
    r"(?i)retry|connect|fetch|download|upload|request|send|publish|subscribe|login|sync|push|pull|http|api"
)
#: Functions that wait for something to be ready.
_POLLING_NAME = re.compile(r"(?i)wait|poll|until|ready|health|probe|alive|start\w*_server|launch")
#: Functions and variables that tell or hold a time.
_CLOCK_NAME = re.compile(
    r"(?i)^(time|monotonic|perf_counter|now|utcnow|deadline\w*|expired|timeout\w*|end_?time)$"
)
#: Names of exceptions of the same kind as those below.
_STATE_NAME = re.compile(r"(Empty|Full|NotFound|DoesNotExist|NotReady|Exists)(Error|Exception)?$")
#: Exceptions that report the state of a value, a queue or a name, and not a failure of the work.
_STATE_EXCEPTIONS = {
    "StopIteration", "StopAsyncIteration", "KeyError", "IndexError", "LookupError", "ValueError",
    "TypeError", "AttributeError", "FileExistsError", "InterruptedError", "BlockingIOError", "Empty",
    "Full", "QueueEmpty", "QueueFull", "ImportError", "ModuleNotFoundError", "UnicodeDecodeError",
    "UnicodeError", "NameError", "UnicodeEncodeError", "SyntaxError", "RecursionError", "AssertionError",
    "KeyboardInterrupt", "SystemExit", "GeneratorExit", "CancelledError", "ProcessLookupError",
    "ChildProcessError", "ZeroDivisionError", "OverflowError", "DoesNotExist", "ObjectDoesNotExist",
    "FileNotFoundError", "NotADirectoryError", "SSLWantReadError", "SSLWantWriteError", "WantReadError",
    "WantWriteError", "IntegrityError", "MemoryError", "NotImplementedError", "EOFError", "Cancelled",
    "ClosedResourceError", "EndOfStream", "InvalidOperation",
}  # fmt: skip
_TIMEOUTS = {"TimeoutError", "timeout", "Timeout", "TimeoutExpired", "WaitTimeout"}
#: Calls by which a person is asked again.
_PROMPTS = {"input", "raw_input", "getpass", "prompt", "confirm", "ask", "readline", "getch", "select"}
#: Values that make the next pass different.
_FRESH = {"next", "pop", "popleft", "choice", "randint", "uuid4", "get_nowait", "token_hex", "randrange"}
#: Calls in a handler that surely do not raise the caught exception again.
_HARMLESS = {
    "debug", "info", "warning", "warn", "error", "exception", "critical", "log", "print", "write",
    "close", "format", "str", "repr", "print_exc", "format_exc", "append", "strip", "uniform", "random",
    "min", "max", "int", "float", "echo", "secho", "flush", "join", "split", "get", "time", "monotonic",
    "type", "len", "isinstance", "getattr", "hasattr", "exc_info", "message", "add", "clear", "round",
    "pow", "msg", "perror", "disconnect", "format_exception", "_", "now", "set", "dict", "list", "bool",
    "lower", "perf_counter", "randint", "update", "inc", "incr", "increment_counter", "put", "notice",
    "trace", "verbose", "success",
}  # fmt: skip


class RetryLoop(NamedTuple):
    """A retry loop.

    attempt     the `try` that is repeated
    handlers    the handlers after which it is repeated
    is_endless  whether neither the loop nor its handlers limit the attempts
    max_tries   the number of passes of `for ... in range(N)` with a literal N; None if unknown
    waits       the calls in the loop that wait
    """

    node: LoopNode
    place: Place | None
    attempt: TryNode
    handlers: list[ast.ExceptHandler]
    is_endless: bool
    max_tries: int | None
    waits: list[ast.Call]


def find_retry_loops(facts: ModuleFacts) -> list[RetryLoop]:
    """Return the retry loops of a module; computed once per module."""
    found = facts.shared.get(find_retry_loops)
    if found is None:
        loops = assign_tries_to_loops(facts) if facts.tries and facts.loops else []
        read = [_read_loop(facts, loop, attempt) for loop in loops for attempt in loop.tries]
        found = facts.shared[find_retry_loops] = [one for one in read if one is not None]
    return found  # type: ignore[return-value]


def _read_loop(facts: ModuleFacts, loop: LoopSite, attempt: TryNode) -> RetryLoop | None:
    inside = _Inside(loop.node, attempt)
    if not _has_attempt_form(facts, loop, inside) or _is_polling(loop):
        return None
    handlers = [
        handler
        for handler in attempt.handlers
        if _goes_on(inside, handler) and _is_failure(facts, handler, loop.place) and not _tests_errno(handler)
    ]
    if not handlers or not _success_ends_loop(inside) or _tries_other_values(inside, handlers):
        return None
    waits = _find_waits(inside)
    if not _has_evidence(facts, loop, inside, handlers, waits):
        return None
    return RetryLoop(
        loop.node,
        loop.place,
        attempt,
        handlers,
        is_endless=_is_endless(loop, inside, handlers),
        max_tries=_count_passes(loop.node),
        waits=waits,
    )


class _Inside:
    """A loop and one `try` in its body, with the statements of the body outside of that `try`."""

    def __init__(self, loop: LoopNode, attempt: TryNode) -> None:
        self.loop = loop
        self.attempt = attempt
        self.rest = [
            node
            for node, _ in walk_own(loop.body)
            if node is not attempt and not _contains(node, attempt) and not _contains(attempt, node)
        ]


def _contains(outer: ast.AST, inner: ast.AST) -> bool:
    start = (inner.lineno, inner.col_offset)  # type: ignore[attr-defined]
    end = (inner.end_lineno, inner.end_col_offset)  # type: ignore[attr-defined]
    return (outer.lineno, outer.col_offset) <= start and end <= (outer.end_lineno, outer.end_col_offset)  # type: ignore[attr-defined]


def _is_failure(facts: ModuleFacts, handler: ast.ExceptHandler, place: Place | None) -> bool:
    """Return whether a handler catches failures of the work, and not only the state of a queue or a value."""
    types = handler_types(handler)
    if not types:
        return True
    for one in types:
        name = last_part(one)
        if name in _TIMEOUTS:
            # A timeout of a queue or a condition is a turn of polling; that of an HTTP client is a failure.
            if facts.resolve(one, place).partition(".")[0] in ("requests", "httpx", "urllib3", "aiohttp"):
                return True
        elif name not in _STATE_EXCEPTIONS and not _STATE_NAME.search(name):
            return True
    return False


def _tests_errno(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler looks at `errno`: a signal, a lock or a busy address of this machine."""
    return any(
        isinstance(node, ast.Attribute) and node.attr in ("errno", "winerror")
        for node in walk_nodes(handler.body)
    )


def _has_attempt_form(facts: ModuleFacts, loop: LoopSite, inside: _Inside) -> bool:
    """Return whether every pass of a loop does the same work."""
    if any(last_part(call) in _PROMPTS for call in list_calls(inside.attempt.body)):
        return False
    if isinstance(loop.node, ast.While):
        return True
    if isinstance(loop.node, ast.AsyncFor) or last_part(loop.node.iter) not in ("range", "count", "xrange"):
        return False
    target = dotted_text(loop.node.target)
    # `for port in range(...)` tries other values, `for attempt in range(...)` the same one.
    return bool(ATTEMPT_NAME.search(target)) or target not in loaded_names(inside.attempt.body)


def _is_polling(loop: LoopSite) -> bool:
    """Return whether a loop waits until something is ready, for which a fixed interval is right."""
    function = enclosing_function(loop.place)
    if function is not None and _POLLING_NAME.search(function.name):
        return True
    first = loop.node.body[0]
    if isinstance(first, ast.Expr) and last_part(_without_await(first.value)) == "sleep":
        return True
    # `while time.time() < deadline` asks again and again until the time is over.
    return isinstance(loop.node, ast.While) and any(
        _CLOCK_NAME.search(name.rpartition(".")[2]) for name in loaded_names([loop.node.test])
    )


def _without_await(node: ast.expr) -> ast.expr:
    return node.value if isinstance(node, ast.Await) else node


def _success_ends_loop(inside: _Inside) -> bool:
    """Return whether the loop ends when the attempt succeeds."""
    attempt = inside.attempt
    for block in (attempt.body, attempt.orelse):
        if always_leaves(block) and not isinstance(block[-1], ast.Raise):
            return True
    after = _statements_after(inside.loop, attempt)
    if after and always_leaves(after) and not isinstance(after[-1], ast.Raise):
        return True
    if _is_flag_loop(inside):
        return True
    return _counts_attempts(inside.loop) and _leaves_if_successful([*attempt.body, *attempt.orelse, *after])


def _goes_on(inside: _Inside, handler: ast.ExceptHandler) -> bool:
    """Return whether the loop goes on after a handler."""
    if always_leaves(handler.body):
        return False
    if any(isinstance(node, ast.Continue) and not inner for node, inner in walk_own(handler.body)):
        return True
    # The statements behind the `try` run after the handler as well.
    return not always_leaves(_statements_after(inside.loop, inside.attempt))


def _statements_after(loop: LoopNode, attempt: TryNode) -> list[ast.stmt]:
    """Return the statements of the loop body that follow the `try` on its own level."""
    blocks: list[list[ast.stmt]] = [loop.body]
    while blocks:
        block = blocks.pop()
        if attempt in block:
            return block[block.index(attempt) + 1 :]
        for node in block:
            if isinstance(node, ast.With | ast.AsyncWith | ast.If | ast.Try):
                blocks.append(node.body)
                blocks.append(getattr(node, "orelse", []))
    return []


def _leaves_if_successful(statements: list[ast.stmt]) -> bool:
    return any(
        isinstance(node, ast.Return) or (isinstance(node, ast.Break) and not in_inner_loop)
        for node, in_inner_loop in walk_own(statements)
    )


def _counts_attempts(loop: LoopNode) -> bool:
    if isinstance(loop, ast.While):
        return any(ATTEMPT_NAME.search(name) for name in loaded_names([loop.test]))
    return bool(ATTEMPT_NAME.search(dotted_text(loop.target)))


def _is_flag_loop(inside: _Inside) -> bool:
    """Return whether the loop tests a variable that the attempt sets: `while not done`, `while x is None`."""
    loop = inside.loop
    if not isinstance(loop, ast.While) or not isinstance(loop.test, ast.UnaryOp | ast.Compare):
        return False
    if isinstance(loop.test, ast.Compare) and not isinstance(loop.test.ops[0], ast.Is):
        return False
    names = loaded_names([loop.test])
    # Set in every successful pass; a flag that is set on a condition ends a loop over many items.
    plain = [
        node
        for node in (*inside.attempt.body, *inside.attempt.orelse)
        if isinstance(node, ast.Assign | ast.AnnAssign)
    ]
    return bool(names & assigned_names(plain))


def _tries_other_values(inside: _Inside, handlers: list[ast.ExceptHandler]) -> bool:
    """Return whether the next pass works on something else, such as the next host or a new file name."""
    read = loaded_names(inside.attempt.body)
    for handler in handlers:
        changed = {name for name in assigned_names(handler.body) if not ATTEMPT_NAME.search(name)}
        if changed & read:
            return True
    for node in inside.rest:
        if isinstance(node, ast.Assign | ast.AugAssign) and assigned_names([node]) & read:
            fresh = isinstance(node, ast.AugAssign) or any(
                last_part(call) in _FRESH for call in list_calls([node])
            )
            if fresh and not any(ATTEMPT_NAME.search(name) for name in assigned_names([node])):
                return True
    return False


def _find_waits(inside: _Inside) -> list[ast.Call]:
    """Return the calls that wait between attempts: outside of the attempt, or at its beginning."""
    attempt = inside.attempt
    waits = [
        call
        for call in list_calls(inside.loop.body)
        if WAIT_NAME.search(last_part(call)) and not _in_body(call, attempt)
    ]
    # `if number: sleep(...)` before the work of a later attempt; any other sleep belongs to the work.
    for number, statement in enumerate(attempt.body):
        if isinstance(statement, ast.If) or number == 0:
            waits += [call for call in list_calls([statement]) if last_part(call) == "sleep"]
    return waits


def _in_body(node: ast.AST, attempt: TryNode) -> bool:
    return any(_contains(statement, node) for statement in attempt.body)


def _has_evidence(
    facts: ModuleFacts,
    loop: LoopSite,
    inside: _Inside,
    handlers: list[ast.ExceptHandler],
    waits: list[ast.Call],
) -> bool:
    """Return whether the loop repeats work that reaches outside of the process, or clearly is a retry."""
    if _counts_attempts(loop.node) or any(last_part(call) == "sleep" for call in waits):
        return True
    if any(ATTEMPT_NAME.search(name) for handler in handlers for name in assigned_names(handler.body)):
        return True
    if any(is_network_exception(facts, one, loop.place) for h in handlers for one in handler_types(h)):
        return True
    if any(is_provider_call(facts, call, loop.place) for call in list_calls(inside.attempt.body)):
        return True
    function = enclosing_function(loop.place)
    return function is not None and bool(_REACHING_NAME.search(function.name))


def _is_endless(loop: LoopSite, inside: _Inside, handlers: list[ast.ExceptHandler]) -> bool:
    """Return whether nothing in sight limits the attempts."""
    if not _never_ends_by_itself(loop.node, inside) or _has_timeout_around(loop.place):
        return False
    for handler in handlers:
        if may_leave(handler.body) or not all(map(is_harmless, list_calls(handler.body))):
            return False
    # A counter or a deadline may be checked anywhere else in the loop.
    for node in inside.rest:
        if isinstance(node, ast.Raise) or (isinstance(node, ast.If) and may_leave(node.body + node.orelse)):
            return False
    return not any(
        isinstance(node, ast.Raise) or _is_timed_break(node) for node, _ in walk_own(inside.attempt.body)
    )


def _is_timed_break(node: ast.AST) -> bool:
    """Return whether a statement is `if count > limit: break` or the like."""
    if not isinstance(node, ast.If) or not may_leave(node.body):
        return False
    operators = [one for test in walk_nodes([node.test]) if isinstance(test, ast.Compare) for one in test.ops]
    return any(isinstance(one, ast.Gt | ast.GtE | ast.Lt | ast.LtE) for one in operators)


def _never_ends_by_itself(loop: LoopNode, inside: _Inside) -> bool:
    if isinstance(loop, ast.While):
        return (isinstance(loop.test, ast.Constant) and bool(loop.test.value)) or _is_flag_loop(inside)
    return last_part(loop.iter) == "count"


def _has_timeout_around(place: Place | None) -> bool:
    for outer in walk_places(place):
        if isinstance(outer.node, ast.With | ast.AsyncWith):
            names = [last_part(item.context_expr).lower() for item in outer.node.items]
            if any("timeout" in name or "after" in name or "deadline" in name for name in names):
                return True
    return False


def is_harmless(call: ast.Call) -> bool:
    """Return whether a call only logs, formats, closes or waits."""
    name = last_part(call)
    return (
        name.lower() in _HARMLESS or bool(WAIT_NAME.search(name)) or "log" in dotted_text(call.func).lower()
    )


def has_only_harmless_calls(loop: RetryLoop) -> bool:
    """Return whether a loop only logs, closes and waits between attempts, and repairs nothing."""
    calls = [call for call in list_calls(loop.node.body) if not _contains(loop.attempt, call)]
    calls += [call for handler in loop.handlers for call in list_calls(handler.body)]
    return all(map(is_harmless, calls))


def _count_passes(loop: LoopNode) -> int | None:
    if isinstance(loop, LOOPS[1]) and isinstance(loop.iter, ast.Call) and len(loop.iter.args) == 1:
        limit = loop.iter.args[0]
        if isinstance(limit, ast.Constant) and isinstance(limit.value, int):
            return limit.value
    return None
