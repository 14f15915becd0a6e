"""What a flow may ask for, and what it is told.

Load(entity, kind)        read the head                              ← Seen
Begin(policy_name, …)     who begins an attempt, and with what       ← Terms
Permit(step, tenant, …)   may an attempt begin? what people have said ← Permission
Offer(policy_name, …)     what a run for somebody else begins with   ← Terms, nobody's
LoadPolicy(name)          the policy that a run began with           ← Policy, or None: not in the log
Consult(entity)           a breaker's circuit, as far as it is known ← Seen
Slot(pace)                a moment for an attempt, by a rate         ← seconds until then
Draw(purse, cost)         what a retry budget holds                  ← Drawn
Refund(purse, drawn, …)   give that back: nothing came of it         ← None
Earn(purse)               earn what a success earns                  ← None
Now()                     the store's time                           ← seconds
Holder(worker, …)         until when is that attempt held?           ← seconds; 0 when its worker is gone
Save(seen, change, …)     append, if the entity is as it was seen    ← Seen after it, or None: it is not
Read(entity, version)     the body of an entry                       ← dict
Check(entity, cfg, name)  is the step's artifact there, and valid?   ← Found
Work(seen, limit_s, …)    run the step's function                    ← Done
Finish(seen, mark, …)     commit the user's own transaction          ← Finished
Spill(seen, encoded)      keep a large result as an artifact         ← reference, or None: keep it in the log
Fetch(spilled)            the bytes of such a result, verified       ← Raw, or the error that says why not
Ask(seen)                 run the step's reconcile function          ← Answer
Sleep(seconds)            let time pass                              ← None
Watch(entity, …)          let time pass until the entity changes     ← None
Tell(what, seen)          let those who listen know                  ← None
End(value, error)         the end: return the one or raise the other
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore._values import Record
from oncemore.log.record import Run
from oncemore.policy.policy import ESCALATION, policy_name

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from oncemore.artifacts.artifact import Artifact
    from oncemore.control.model import Approval
    from oncemore.limits.breaker_rules import Rules
    from oncemore.limits.budget import Budget
    from oncemore.limits.rate_rules import Pulse
    from oncemore.log.record import Change, Kept, Outgoing
    from oncemore.log.store import Joined
    from oncemore.policy.model import Effect, Failure
    from oncemore.policy.policy import Policy
    from oncemore.steps.transactions import Mark

    Script = Generator[Any, Any, Any]
    Given = tuple[Outgoing | Kept, Any]


class Barrier(NamedTuple):
    """The breaker of a step's provider: what it is called in the log, and what opens it."""

    entity: str
    rules: Rules


class Beat(NamedTuple):
    """The rate of a step's provider: whose it is, and how many in which time."""

    name: str
    pulse: Pulse


class Purse(NamedTuple):
    """The retry budget of a step: its numbers, and where it is in the log.

    entity  empty where this process alone has it: then it is the budget itself that holds the tokens
    """

    entity: str
    budget: Budget


class Plan(Record):
    """What a step was told, checked and made ready.

    encode             value → what the body keeps of it, or raises
    decode             the other way round
    describe           error and what is known of it → what the body keeps: neutral, redacted
    not_applied        whether an error says that a `once` effect did not happen
    asks               whether there is a reconcile function
    after_failure      "raise", or "new_run": a new call of failed work begins a new run
    on_version_change  "new", "reuse", "fail", or None: by the effect
    covers             whether an error may be tried again, where the policy's own classes do not say so
    artifact           the name of the one artifact that the step's result is; empty if it is not
    large              whether an encoded result is too large for the log
    quarantines        whether a failure that is not tried again waits for a person (CLASS-3)
    escalation         the policies that escalation records name: after a permanent error, and when attempts
                       or time run out
    repeats_once       whether a `once` step is tried again after an error that says that nothing happened
    pipeline           the pipeline that it belongs to; empty if it belongs to none
    halts              whether a failure that is not tried again halts that pipeline (CLASS-3)
    approval           whether an attempt begins only where somebody has approved it
    gated              whether a switch stops it; not so what people need to turn one
    barrier            the breaker that has to let its attempts through, if there is one
    beat               the rate that gives its attempts their moments, if there is one
    purse              the budget that its retries are paid from, if there is one
    policy_source      the address that the step named its policy by; empty where it was made in code
    """

    __slots__ = (
        "after_failure", "approval", "artifact", "asks", "barrier", "beat", "classify", "covers", "decode",
        "describe", "effect", "encode", "escalation", "gated", "halts", "if_running", "inline_wait_s",
        "large", "name", "not_applied", "on_version_change", "pipeline", "policy", "policy_name",
        "policy_source", "purse", "quarantines", "repeats_once",
    )  # fmt: skip
    after_failure: str
    approval: bool
    artifact: str
    asks: bool
    barrier: Barrier | None
    beat: Beat | None
    classify: Callable[[BaseException, float], Failure]
    covers: Callable[[Exception, Failure], bool] | None
    decode: Callable[[Any], Any]
    describe: Callable[[BaseException, Failure | None], dict[str, Any]]
    effect: Effect
    encode: Callable[[Any], Any]
    escalation: tuple[str, str]
    gated: bool
    halts: bool
    if_running: str
    inline_wait_s: float
    large: Callable[[Any], bool]
    name: str
    not_applied: Callable[[Exception], bool]
    on_version_change: str | None
    pipeline: str
    policy: Policy
    policy_name: str
    policy_source: str
    purse: Purse | None
    quarantines: bool
    repeats_once: bool

    def __init__(
        self,
        name: str,
        effect: Effect,
        policy: Policy,
        classify: Callable[[BaseException, float], Failure],
        *,
        encode: Callable[[Any], Any],
        decode: Callable[[Any], Any],
        describe: Callable[[BaseException, Failure | None], dict[str, Any]],
        not_applied: Callable[[Exception], bool] = lambda error: False,
        asks: bool = False,
        if_running: str = "wait",
        inline_wait_s: float = 60.0,
        after_failure: str = "raise",
        on_version_change: str | None = None,
        covers: Callable[[Exception, Failure], bool] | None = None,
        artifact: str = "",
        large: Callable[[Any], bool] = lambda encoded: False,
        quarantines: bool = False,
        approval: bool = False,
        gated: bool = True,
        barrier: Barrier | None = None,
        beat: Beat | None = None,
        purse: Purse | None = None,
        pipeline: str = "",
        halts: bool = False,
        policy_source: str = "",
        repeats_once: bool = True,
        escalation: tuple[str, str] = ESCALATION,
    ) -> None:
        self.fill(
            after_failure, approval, artifact, asks, barrier, beat, classify, covers, decode, describe,
            effect, encode, escalation, gated, halts, if_running, inline_wait_s, large, name, not_applied,
            on_version_change, pipeline, policy, policy_name(policy), policy_source, purse, quarantines,
            repeats_once,
        )  # fmt: skip


class Call(NamedTuple):
    """One call of a step: what makes it the same work as another, and how long it may take.

    input_hash  the digest of its arguments; empty where the key covers all of them
    deadline    when a run that it begins must be over; 0 for never
    give_up     until when this caller waits for somebody else's attempt, or for a time; 0 for always
    tenant      whose work it is
    code_hash   the version and config of the code that would make the attempt, where that may be other than
                `cfg_hash`: a worker continues a run with the run's own `cfg_hash`
    """

    entity: str
    input_hash: str
    cfg_hash: str
    deadline: float = 0.0
    give_up: float = 0.0
    tenant: str = ""
    code_hash: str = ""


class Terms(NamedTuple):
    """What an attempt begins with: the worker whose it is, and what a new run would keep of the call.

    Asked for when an attempt begins and not before: most calls find that all is done.

    actor     who asked for it, where somebody else is to do it
    withheld  names of arguments that the record leaves out: only who has them can make another attempt
    """

    worker: str
    run_id: str
    arguments: Any
    input_hash: str = ""
    seed: str = ""
    tenant: str = ""
    correlation_id: str = ""
    dataset: str = ""
    priority: str = "P1"
    retain_s: float = 0.0
    provider: str = ""
    actor: str = ""
    withheld: tuple[str, ...] = ()


class Seen(NamedTuple):
    """An entity as it was read: what a change to it is made from."""

    entity: str
    version: int
    hash: bytes
    run: Any  # a Run, or None before the first entry; typed loosely because most stations know which
    body: dict[str, Any] | None = None


class Load(NamedTuple):
    """Read the head of an entity, which is of that kind."""

    entity: str
    kind: type = Run


class Begin(NamedTuple):
    """Ask who begins an attempt, and with what; from then on the log has the policy of the run.

    seen  the run that the attempt continues: it starts from that run's recorded arguments. None where the
          attempt opens a run: it gets the caller's own arguments
    """

    policy_name: str
    policy: Policy
    source: str = ""
    seen: Seen | None = None


class Offer(NamedTuple):
    """Ask what a run begins with that somebody else is to do; the log has its policy from then on."""

    policy_name: str
    policy: Policy
    source: str = ""


class LoadPolicy(NamedTuple):
    """Read a policy that the log has, by the name that runs have for it."""

    name: str


class Permit(NamedTuple):
    """Ask whether an attempt may begin: what people have said that is not in the run itself.

    steps   the names of its step
    entity  whose approval it needs; empty if it needs none
    begins  False for what only hands work in: a switch does not stop that, a log that has moved does
    """

    steps: tuple[str, ...]
    tenant: str
    entity: str = ""
    begins: bool = True
    pipeline: str = ""


class Permission(NamedTuple):
    """What people have said, and what must still be so when the attempt begins.

    guards    entities that were read, by their versions
    stop      why it may not begin: `switch`, `control_state_unknown` or `moved`; empty if it may
    name      of the switch that is on, or where the log has moved
    told      who threw it, why and when
    approval  what was approved of its key, if anything was
    error     why nothing can be known
    """

    guards: Mapping[str, int]
    stop: str = ""
    name: str = ""
    told: Mapping[str, Any] = {}
    approval: Approval | None = None
    error: Exception | None = None


class Consult(NamedTuple):
    """Read the circuit of a breaker; while it is closed, it may be as it was some time ago."""

    entity: str


class Slot(NamedTuple):
    """Take a moment for an attempt; one that has its moment only keeps its distance to those before it."""

    beat: Beat
    has_moment: bool = False


class Draw(NamedTuple):
    """Look what a retry budget holds, and take the cost where it is this process's own."""

    purse: Purse
    cost: float


class Drawn(NamedTuple):
    """What a retry budget held: with what this process had earned, which is used up with it.

    seen  the budget as it was read, if it is in the store: what is taken is written from that
    """

    tokens: float
    seen: Seen | None = None
    earned: float = 0.0


class Refund(NamedTuple):
    """Give back what was taken from a retry budget: what it was taken for was not written."""

    purse: Purse
    drawn: Drawn
    cost: float


class Earn(NamedTuple):
    """Earn for a retry budget what a success earns."""

    purse: Purse


class Now(NamedTuple):
    """Ask for the store's time."""


class Holder(NamedTuple):
    """Ask until when an attempt is held by its worker."""

    worker: str
    entity: str
    fence: int


class Save(NamedTuple):
    """Append a change to an entity, if it is still as it was seen.

    events  what is given away with it, each an entity of its own: events, references to artifacts
    beside  what else is written in the same transaction; if it cannot be, the answer is `AlsoFailed`
    also    what else is changed with it or not at all, each if it is still as it was seen
    guards  what was only read, and the version that it must still have
    late    whether that may be found out right after it is stored, where a store `looks_late`; then the
            answer may be `Void`
    """

    seen: Seen
    change: Change
    sync: bool = True
    events: tuple[Given, ...] = ()
    beside: Callable[[Joined], object] | None = None
    also: tuple[tuple[Seen, Change], ...] = ()
    guards: Mapping[str, int] = {}
    late: bool = False


class Void(NamedTuple):
    """A claim that stands in the log while what it relied on had changed: nothing may begin by it.

    seen  the run, which it has to be given back
    """

    seen: Seen


class Read(NamedTuple):
    """Read the body of an entry."""

    entity: str
    version: int


class Check(NamedTuple):
    """Ask whether the artifact of a step is there, and whether it is what was left."""

    entity: str
    cfg_hash: str
    name: str


class Found(NamedTuple):
    """What became of an artifact: "valid", "missing", or "altered", with the error that says so."""

    state: str
    ref: str = ""
    artifact: Artifact | None = None
    error: Exception | None = None


class Spill(NamedTuple):
    """Keep a large result as an artifact."""

    seen: Seen
    encoded: Any


class Fetch(NamedTuple):
    """Read a large result that was kept as an artifact."""

    spilled: dict[str, Any]


class Work(NamedTuple):
    """Run the step's function; `whole` says that its limit is the rest of the whole run's time."""

    seen: Seen
    limit_s: float | None = None
    whole: bool = False

    @property
    def number(self) -> int:
        """The attempt's number."""
        return int(self.seen.run.attempt)


class Done(NamedTuple):
    """What came of an attempt: its value or its error, and the events it gave away.

    seen       the run as the attempt left it: its checkpoints are entries of their own
    begun      False if it was cut off before the function's first line
    events     what it gave away: events, and references to artifacts that are new
    artifacts  all that it put away, in their tagged form
    mark       its transaction in the user's own database, which is not committed yet
    also       what it writes in the store's own transaction
    applied    what an earlier attempt has left to be written, whose transaction was committed: it is done
    evidence   references to what a failed attempt leaves for people to look at
    """

    seen: Seen
    value: Any = None
    error: BaseException | None = None
    begun: bool = True
    events: tuple[Given, ...] = ()
    artifacts: tuple[Any, ...] = ()
    mark: Mark | None = None
    also: Callable[[Joined], object] | None = None
    applied: tuple[dict[str, Any], tuple[Given, ...]] | None = None
    evidence: tuple[Given, ...] = ()


class Finish(NamedTuple):
    """Commit the user's own transaction, together with what the log is to say of it; if it is still ours."""

    seen: Seen
    mark: Mark
    body: dict[str, Any]
    events: tuple[Given, ...]


class Finished(NamedTuple):
    """What became of it: nothing went wrong, or everything was rolled back, or that is not known."""

    error: BaseException | None


class Ask(NamedTuple):
    """Run the step's reconcile function: did the lost attempt take effect?"""

    seen: Seen


class Answer(NamedTuple):
    """What a reconcile function, or a person, found: applied (with its value), not_applied or unknown."""

    found: str
    value: Any = None
    decided: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it


class Sleep(NamedTuple):
    """Let time pass."""

    seconds: float


class Watch(NamedTuple):
    """Let time pass until an entity has another version."""

    entity: str
    version: int
    seconds: float


class Tell(NamedTuple):
    """Let those who listen know."""

    what: str
    seen: Seen


class End(NamedTuple):
    """The end: return the value or raise the error."""

    value: Any
    error: BaseException | None
