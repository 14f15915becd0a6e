"""Endpoints that can be asked twice: an ASGI middleware around an application.

A request with an `Idempotency-Key` is a durable step: its key is the client's, within what `principal` says
of who asks; its work is the application; its result is the answer. So all that a step promises holds here,
with no second record of it:

    the first request      runs; its answer is kept, then sent
    the same again         gets the kept answer, byte for byte, and runs nothing
    … while the first runs 409, with Retry-After
    … with another body    422
    after a kill           by the effect: what may be repeated runs again; `once` is held, and answers 409

Which answers are kept: all below 500 that decide something. 401, 403, 407, 408, 425 and 429 do not, and what
is 500 or more says that the server itself failed; after those the same request runs again, unless the effect
is `once` and it may have happened. A client that goes away in the middle changes nothing.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from oncemore.classifiers.http_status import failed_status
from oncemore.errors import (
    Error,
    Failed,
    InProgress,
    KeyConflict,
    KeyExpired,
    Parked,
    PermanentError,
    Quarantined,
    Refused,
    ResultUnavailable,
    StoreError,
    TransientError,
    Uncertain,
    UsageError,
)
from oncemore.http import problems
from oncemore.http.key_scope import FIELD, read
from oncemore.http.stored_response import (
    OF_ONE_MESSAGE,
    Answer,
    CutOff,
    Kept,
    TooLarge,
    Wire,
    check_byte_limit,
    detached,
    drained,
    replayed,
    whole,
)
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.canonical_json import normalize_name
from oncemore.policy.model import EFFECTS
from oncemore.policy.policy import Policy
from oncemore.retries.options import as_seconds
from oncemore.steps.decorator import Step, told_of
from oncemore.steps.ops import Answer as Found
from oncemore.steps.options import Recipe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from oncemore.http.stored_response import App, Message, Receive, Scope, Send
    from oncemore.policy.model import Effect
    from oncemore.retries.options import Seconds
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import Plan

DAY_S = 86_400.0
MOST_BYTES = 1024 * 1024
#: Answers below 500 that decide nothing: who asks, or when, is wrong, not what is asked.
UNDECIDED = frozenset((401, 403, 407, 408, 425, 429))
#: How long a request that was turned away stays away, at least.
AWAY_S = 1.0
#: How long the end of the server waits for what is under way.
DRAIN_S = 10.0
_FIELD = FIELD.lower().encode()


class TurnedAway(TransientError):
    """The application's answer says that nothing was done."""


class NotDecided(PermanentError):
    """The application's answer is no result, or it gave none; it may have done something."""


def everyone(_scope: Scope) -> str:
    """Say that all clients are one: whoever knows a key may have its answer. For `principal=`."""
    return ""


class Request:
    """One request on its way through: what the step is given and the log does not keep."""

    def __init__(self, scope: Scope, kept: Kept, principal: str) -> None:
        self.scope, self.kept, self.principal = scope, kept, principal
        self.unkept = False
        self.raised: BaseException | None = None


class _Endpoint(Step[Any, Any]):
    """The step of all requests; none waits inside for a time that is not yet."""

    def _own(self, plan: Plan) -> Plan:
        return plan.replaced(inline_wait_s=0.0)


class Idempotency:
    """An ASGI middleware: requests with an `Idempotency-Key` are carried out once, and answered always alike.

    effect         what carrying out a request does to the world, as in `oncemore.step`; decides what becomes
                   of one whose process was killed in the middle:
                     once        it is held for a person, or `reconcile`; until then the answer is 409
                     any other   it runs again
    principal      a function of the ASGI scope that says who asks, so that nobody gets another's answer; None
                   leaves a request to the application as it is; `oncemore.http.everyone` tells nobody apart.
                   May be async.
    engine         where it is kept; unless given, the engine that steps use
    name           what the step is called in the log; one name for all processes of a service
    methods        which requests are meant ("POST", "PATCH")
    paths          … by patterns of their paths ("*")
    optional       patterns of paths on which a key may be missing: such a request goes through as it is;
                   elsewhere it is refused with 400
    expires_after  how long an answer is kept at least (a day); `oncemore prune` forgets it later, and a
                   request that comes then is refused with 410
    max_request    the most bytes of a request's body (1 MiB); a longer one is refused with 413
    max_answer     the most bytes of an answer that is kept (1 MiB); a longer one is sent, and not kept
    server_errors  "run-again": an answer of 500 or more is not kept; "keep": it is kept like any other
    not_applied    for `once`: statuses of 500 and more after which nothing has happened
    reconcile      for `once`: called with the key and the principal of a request whose outcome is unknown;
                   answers `oncemore.applied(oncemore.http.Answer(…))`, `not_applied()` or `unknown()`
    leave_out      names of header fields of an answer that are not kept, besides those of one message only
    fingerprint    a function of scope and body that says what makes two requests the same; unless given,
                   method, path, query and body
    attempts       how often a request may be lost with its process before it is held (10)

    Inside the application `oncemore.current()` is the attempt. Put it inside of what authenticates, and
    outside of nothing that cannot be done twice.
    """

    def __init__(
        self,
        app: App,
        *,
        effect: Effect,
        principal: Callable[[Scope], str | Awaitable[str | None] | None],
        engine: Engine | None = None,
        name: str = "http",
        methods: Sequence[str] = ("POST", "PATCH"),
        paths: str | Sequence[str] = "*",
        optional: str | Sequence[str] = (),
        expires_after: Seconds = DAY_S,
        max_request: int = MOST_BYTES,
        max_answer: int = MOST_BYTES,
        server_errors: str = "run-again",
        not_applied: Sequence[int] = (),
        reconcile: Callable[[str, str], Any] | None = None,
        leave_out: Sequence[str] = (),
        fingerprint: Callable[[Scope, bytes], str] | None = None,
        attempts: int = 10,
    ) -> None:
        if effect not in EFFECTS:
            raise UsageError(f"effect is {effect!r}; the choices are {', '.join(EFFECTS)}")
        if not callable(principal):
            raise UsageError(
                "principal takes a function of the scope; oncemore.http.everyone tells nobody apart"
            )
        if server_errors not in ("run-again", "keep"):
            raise UsageError(f"server_errors is {server_errors!r}; the choices are run-again, keep")
        if not_applied and effect != "once":
            raise UsageError(f"not_applied is for effect='once'; {effect} work may be repeated anyway")
        self._app, self._effect, self._principal = app, effect, principal
        self._methods = frozenset(method.upper() for method in methods)
        self._paths, self._optional = _patterns(paths), _patterns(optional)
        self._most = check_byte_limit("max_request", max_request)
        self._kept = check_byte_limit("max_answer", max_answer)
        self._keeps_errors = server_errors == "keep"
        self._not_applied = frozenset(not_applied)
        self._left_out = OF_ONE_MESSAGE | {field.lower().encode() for field in leave_out}
        self._fingerprint = fingerprint or _fingerprint
        self._under_way: set[Any] = set()
        once: dict[str, Any] = (
            {"not_applied": TurnedAway, "reconcile": _asks(reconcile)} if effect == "once" else {}
        )
        policy = Policy(
            "http",
            "1",
            max_attempts=attempts,
            schedule=Schedule("fixed", delays=(AWAY_S,)),
            jitter=Jitter("none"),
        )
        told = told_of(
            effect=effect, name=name, key="key", ignore="asked", tenant=_whose, policy=policy,
            if_running="raise", retain_for=as_seconds("expires_after", expires_after), **once,
        )  # fmt: skip
        recipe = Recipe(self._answer, told)
        recipe.after_failure = "new_run"
        self._step = _Endpoint(recipe, engine)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, as ASGI has it."""
        if scope["type"] == "lifespan":
            await self._app(scope, self._until_drained(receive), send)
            return
        if scope["type"] != "http" or not self._means(scope):
            await self._app(scope, receive, send)
            return
        who = self._principal(scope)
        if hasattr(type(who), "__await__"):
            who = await who  # type: ignore[misc]
        if who is None:
            await self._app(scope, receive, send)
            return
        if not isinstance(who, str):
            raise UsageError(f"principal gave {who!r}; it has to say who asks as a text, or None")
        who = normalize_name(who)
        wire = Wire(send)
        try:
            key = read([value for name, value in scope["headers"] if name.lower() == _FIELD])
        except ValueError as fault:
            await wire.answer(*problems.answer_of(problems.MALFORMED, f"{str(fault).capitalize()}."))
            return
        if key is not None:
            await self._guarded(scope, receive, wire, key, who)
        elif _fits(scope["path"], self._optional):
            await self._app(scope, receive, send)
        else:
            await wire.answer(*problems.answer_of(problems.MISSING))

    def _means(self, scope: Scope) -> bool:
        return scope["method"] in self._methods and _fits(scope["path"], self._paths)

    async def _guarded(self, scope: Scope, receive: Receive, wire: Wire, key: str, who: str) -> None:
        """Carry a request out once, and answer it."""
        try:
            body = await whole(receive, self._most)
        except TooLarge:
            await wire.answer(*problems.answer_of(problems.TOO_LARGE))
            return
        except CutOff:
            return  # there is nobody to answer, and nothing was begun
        asked = Request(scope, Kept(wire, body, self._kept, self._left_out), who)
        line = f"{scope['method']} {scope['path']}"[:500].encode("utf-8", "backslashreplace").decode()
        called = (key, line, self._fingerprint(scope, body), asked)
        try:
            stored = await detached(lambda: self._step(*called), self._under_way)
        except Error as error:
            await self._refused(error, asked, wire)
            return
        if asked.kept.ran and asked.kept.stored() == stored:  # or else another attempt was first
            await asked.kept.deliver()
        elif stored["body"] is None:
            await wire.answer(*problems.answer_of(problems.NOT_KEPT, first_status=str(stored["status"])))
        else:
            await wire.answer(*replayed(stored))

    async def _answer(self, key: str, request: str, fingerprint: str, asked: Request) -> dict[str, Any]:
        """Let the application answer; what is returned is kept, what is raised is not."""
        kept = asked.kept
        if kept.ran:
            raise TurnedAway("one request is one attempt; the next is for the next one")
        try:
            await kept.run(self._app, asked.scope)
        except Exception as error:
            asked.raised = error
            raise NotDecided(f"the application failed with {type(error).__qualname__}") from error
        if not kept.over:
            raise NotDecided("the application ended without a whole answer")
        if self._decides(kept.status):
            return kept.stored()
        asked.unkept = True
        refused = failed_status(kept.status, None, 0.0).sent == "no" or kept.status in self._not_applied
        kind = TurnedAway if self._effect == "once" and refused else NotDecided
        raise kind(f"the application answered {kept.status}")

    def _decides(self, status: int) -> bool:
        return self._keeps_errors or status in _ALWAYS_KEPT if status >= 500 else status not in UNDECIDED

    async def _refused(self, error: Error, asked: Request, wire: Wire) -> None:
        """Answer a request that came to no result that is kept."""
        if asked.raised is not None:
            raise asked.raised  # as without us: whoever is outside makes its answer
        if asked.unkept:
            await asked.kept.deliver()
        elif asked.kept.large:
            return  # what there is of it has gone to the client already
        elif asked.kept.ran and isinstance(error, Failed):
            await wire.answer(*problems.answer_of(problems.NO_ANSWER))
        else:
            await wire.answer(*_problem_of(error))

    def _until_drained(self, receive: Receive) -> Receive:
        async def drain() -> Message:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await drained(self._under_way, DRAIN_S)
            return message

        return drain


#: Of 500 and more, kept whatever was said: it will not pass.
_ALWAYS_KEPT = frozenset((501, 505))

_PROBLEMS: tuple[tuple[type[Error], problems.Problem, float | None], ...] = (
    (KeyConflict, problems.OTHER_PAYLOAD, None),
    (InProgress, problems.IN_PROGRESS, AWAY_S),
    (KeyExpired, problems.EXPIRED, None),
    (Quarantined, problems.HELD, None),
    (ResultUnavailable, problems.NOT_KEPT, None),
    (Uncertain, problems.UNKNOWN, None),
    (Parked, problems.NOT_YET, AWAY_S),
    (Failed, problems.GIVEN_UP, None),
    (StoreError, problems.NO_RECORD, AWAY_S),
    (Refused, problems.NO_RECORD, AWAY_S),
)


def _problem_of(error: Error) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Return the answer to a request that a step refused; what is our own mistake is raised."""
    for kind, problem, away in _PROBLEMS:
        if isinstance(error, kind):
            run = getattr(error.run, "run_id", "")
            members = {"run": run} if run and problem.status != 422 else {}
            return problems.answer_of(problem, retry_after_s=away, **members)
    raise error


def _fingerprint(scope: Scope, body: bytes) -> str:
    """Return what makes two requests the same: method, path, query and body."""
    method, path = (scope[name].encode("utf-8", "surrogatepass") for name in ("method", "path"))
    parts = method, path, scope.get("query_string", b""), body
    # Lengths keep the parts apart: a path may hold any character.
    return sha256(b"".join(b"%d:%b" % (len(part), part) for part in parts)).hexdigest()


def _whose(key: str, request: str, fingerprint: str, asked: Request) -> str:
    """Return whose a request is; a long name by its digest."""
    who = asked.principal
    return who if len(who) <= 200 else sha256(who.encode()).hexdigest()


def _asks(reconcile: Any) -> Any:
    """Return what asks the user's function about a lost attempt, and makes of its answer what is kept."""
    if reconcile is None:
        return None
    if not callable(reconcile):
        raise UsageError(f"reconcile is {reconcile!r}; it takes a function of a key and a principal")

    async def ask(key: str, request: str, fingerprint: str, asked: Request) -> Any:
        if asked.kept.ran:  # the next request asks: this one has had its attempt
            return Found("unknown")
        found = reconcile(key, asked.principal)
        if hasattr(type(found), "__await__"):
            found = await found
        if type(found) is not Found or found.found != "applied":
            return found
        if not isinstance(found.value, Answer):
            raise UsageError(
                f"reconcile gave {found.value!r:.80}; write applied(oncemore.http.Answer(status, body))"
            )
        return found._replace(value=found.value.stored())

    return ask


def _patterns(given: Any) -> tuple[str, ...]:
    patterns = (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise UsageError(f"paths and optional take patterns of paths, '/orders/*', and got {given!r}")
    return patterns


def _fits(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)
