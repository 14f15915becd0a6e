"""One call of a step: its key, its arguments, its plan, and its progress.

`Step` prepares the call, a script (`steps.flow`) decides its operations, and the functions of `steps.perform`
perform them with the call as their context.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from oncemore.steps.history import find_opening

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.log.record import LoadedHead
    from oncemore.log.store import Store
    from oncemore.steps.engine import Engine
    from oncemore.steps.lease import WorkerIdentity
    from oncemore.steps.observers import CallTrace
    from oncemore.steps.ops import AttemptTerms
    from oncemore.steps.plan import StepPlan

    Arguments = tuple[tuple[Any, ...], dict[str, Any]]
    TermsFactory = Callable[["PreparedCall", str, float], AttemptTerms]


#: Stands for a field that the context of a script does not need.
_UNSET: Any = None


class PreparedCall(Struct, eq=False):
    """A call of a step, prepared and in progress.

    entity      the entity of its key in the log
    plan        the options of the step, for this engine and this provider
    input_hash  digest of the arguments; empty if the key covers all of them
    cfg_hash    digest of the step's version and config
    code_hash   the same for the code that would make the attempt, where that differs: a worker continues a
                run with the run's own `cfg_hash`
    deadline    when a run that this call begins must have ended; 0 for no deadline
    give_up     until when this caller waits for another attempt or for a time; 0 for no limit
    outer_start  when the run was created in which the call is made; 0 for a call outside of any run
    tenant      the tenant of the work; empty if there is none
    dataset     the dataset that it works on; empty if there is none
    masking     the level at which it masks the data
    head        the head of the key. It may be a guess that the key is new: a wrong guess costs one conflict
    counted     the arguments that the key or the input hash cover
    inputs      these arguments as canonical JSON
    is_plain    whether the log stores them as they are
    withheld    the names of arguments that the log does not store
    parent      the key of the run whose function made the call, where a worker continues it
    make_terms  returns the terms of an attempt that begins now, from this call, a worker's name and the time

    The fields below change while the call is in progress.

    worker           the worker of this process that makes the attempt
    has_reservation  whether that worker is reserved for an attempt that is not claimed yet
    current_attempt  entity and fence of the attempt that this call is making
    interrupt        an interruption (Ctrl-C, cancellation), until the run is in a consistent state
    last_answer      the result of an awaited operation, if its coroutine was closed meanwhile
    took_part        whether it has met the run while it was open, or begun it: if that run fails, so does the
                     call, and it begins no further one
    was_reread       whether the head was read again: the guess was wrong, or an attempt failed
    write_count      the number of entries that the call has appended
    own_arguments    the caller's arguments, while `args` and `kwargs` are those of a recorded run
    recorded         run id and recorded arguments, as they were read last
    trace            the trace of the call, from its first attempt on, if the process has tracing
    """

    entity: str
    plan: StepPlan
    engine: Engine = _UNSET
    store: Store = _UNSET
    head: LoadedHead = _UNSET
    make_terms: TermsFactory = _UNSET
    input_hash: str = ""
    cfg_hash: str = ""
    code_hash: str = ""
    deadline: float = 0.0
    give_up: float = 0.0
    outer_start: float = 0.0
    tenant: str = ""
    dataset: str = ""
    masking: int = 0
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    counted: dict[str, Any] = {}
    inputs: bytes = b""
    is_plain: bool = False
    withheld: tuple[str, ...] = ()
    parent: str = ""
    worker: WorkerIdentity | None = None
    has_reservation: bool = False
    current_attempt: tuple[str, int] | None = None
    interrupt: BaseException | None = None
    last_answer: Any = None
    took_part: bool = False
    was_reread: bool = False
    write_count: int = 0
    own_arguments: Arguments | None = None
    recorded: tuple[str, dict[str, Any]] | None = None
    trace: CallTrace | None = None

    @classmethod
    def for_decision(cls, engine: Engine) -> PreparedCall:
        """Return the context of an operator's script; it runs no step."""
        return cls("", _UNSET, engine=engine, store=engine.store)

    @property
    def key(self) -> str:
        """The key of the call."""
        return self.entity.removeprefix("run/")

    def load_arguments(self, head: LoadedHead) -> None:
        """Use the arguments that the run was opened with: an earlier attempt may have changed them here.

        After a finished run this call opens a new one, with its own arguments.
        """
        run, recall = head.record, self.plan.recall_arguments
        if recall is None:
            return
        if run.state in ("COMPLETE", "HARD_FAIL"):
            self.args, self.kwargs = self.own_arguments or (self.args, self.kwargs)
            return
        if self.recorded is None or self.recorded[0] != run.run_id:
            opening = head.body or {}
            if "arguments" not in opening:
                opening = find_opening(self.store.read_entries(head.entity), self.engine.cipher)
            self.recorded = run.run_id, opening.get("arguments", {})
        elif self.own_arguments is None:
            # A worker has decoded them for this call, and no attempt has had them yet.
            self.own_arguments = self.args, self.kwargs
            return
        self.own_arguments = self.own_arguments or (self.args, self.kwargs)
        with self.engine.artifact_store.use_store():
            self.args, self.kwargs = recall(self.recorded[1], *self.own_arguments)

    # The worker and the attempt of this call ----------------------------------------------------------

    def release_worker(self) -> None:
        """End the reservation of the worker, if no attempt was claimed with it."""
        if self.has_reservation and self.worker is not None:
            self.has_reservation = False
            self.worker.release_slot()
            if self.worker.retired:
                self.engine.leases.close_retired_worker(self.worker)

    def end_trace(self, error: BaseException | None) -> None:
        """End the trace of the call; a decision and the call after it each have their own."""
        trace, self.trace = self.trace, None
        assert trace is not None, "the caller has looked"
        trace.end_call(error)

    def keep_if_closed(self, error: BaseException | None, answer: Any) -> None:
        """Keep the result of an operation if its coroutine is being closed.

        Its awaiting coroutine gets no result any more; `run_call_async` continues the script with this one.
        """
        if isinstance(error, GeneratorExit):
            self.last_answer = answer
