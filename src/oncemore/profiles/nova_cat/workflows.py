"""The workflows of `nova-cat`: discovery, acquisition and reconciliation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid5

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.log.entry_codec import new_uuid7
from oncemore.open_engine import find_engine
from oncemore.policy import files
from oncemore.profiles.nova_cat import events, names
from oncemore.profiles.nova_cat.events import log_failures, log_note
from oncemore.profiles.nova_cat.fits import download, import_readers, validate
from oncemore.profiles.nova_cat.input import (
    MAX_TEXT_LENGTH,
    InvalidInput,
    UnusableData,
    check_mapping,
    check_product,
    check_record,
    check_uuids,
    check_version,
    is_uuid,
)
from oncemore.profiles.nova_cat.steps import (
    PRODUCT_FIELDS,
    build_validation_result,
    check_consistent,
    check_resolved,
    link_reference,
    make_acquisition_step,
    make_step,
)
from oncemore.steps.attempt import current
from oncemore.steps.context import CONTEXT, context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from oncemore.limits.cooldown_rules import ResourceRecord
    from oncemore.steps.decorator import Step
    from oncemore.steps.engine import Engine
    from oncemore.steps.history import AttemptView
    from oncemore.steps.run import Run
    from oncemore.workers.job_run import JobRun

    Search = Callable[[str], Iterable[Mapping[str, Any]]]
    Resolve = Callable[[str], Any]

#: The namespace of product ids: the same product gets the same id wherever it is found.
PRODUCT_NAMESPACE = UUID("6f1f2a2e-8d4e-5d0c-9b8e-0d6a0c7e4a11")


class WorkflowExecution(Value):
    """The end of one execution of a workflow.

    outcome      SUCCESS, RETRYABLE_FAILURE, TERMINAL_FAILURE, QUARANTINE, or SKIPPED_… without a request
    error_class  RETRYABLE, TERMINAL or QUARANTINE; empty without a failure
    reason       the code of the failure: HTTP_429, CHECKSUM_MISMATCH, INVALID_UUID
    message      the failure in a sentence
    product      the record of the data product, if the execution is about one
    job          the JobRun: items, runs, and error counts by provider
    """

    workflow: str
    outcome: str
    error_class: str
    reason: str
    message: str
    correlation_id: str
    job: JobRun[Any]
    product: ResourceRecord | None = None

    @property
    def succeeded(self) -> bool:
        """Whether the execution succeeded or skipped its work."""
        return self.outcome == names.SUCCESS or self.outcome in names.SKIPS

    @property
    def run(self) -> Run[Any] | None:
        """The run of the first item; None if there is none."""
        return next(iter(self.job.runs), None)

    @property
    def attempts(self) -> tuple[AttemptView, ...]:
        """The attempts of that run, in order; empty if the execution was skipped."""
        # A skipped execution shows the run of an earlier one, whose attempts are not its own.
        skipped = self.outcome in names.SKIPS
        return () if skipped or self.run is None else self.run.attempts

    @property
    def value(self) -> Any:
        """The values of the items, in order; raises if an item has none."""
        return self.job.values


class NovaCat:
    """The workflows of `nova-cat` on an engine.

    providers        functions that list the products of a nova, by the name of the provider; each record has
                     native_id, locator, provenance and, if known, sha256
    resolve          a function that finds a reference by its id
    fetch            a function that returns the bytes behind a locator; `download` unless given
    profile          the policy file with all numbers: "nova-cat", a path, or a file that extends it
    max_concurrency  how many references are reconciled at once; the profile's 5 unless given
    engine           the engine of all calls; else the one around each call, as for every step
    """

    def __init__(
        self,
        *,
        providers: Mapping[str, Search] | None = None,
        resolve: Resolve | None = None,
        fetch: Callable[[str], bytes] | None = None,
        profile: str = names.PROFILE,
        max_concurrency: int | None = None,
        engine: Engine | None = None,
    ) -> None:
        self._providers, self._resolve = dict(providers or {}), resolve
        self._fetch, self._engine = fetch or download, engine
        policies = files.profile(profile) if "/" not in profile else files.load(profile)
        limits, idempotency = (
            policies.sections.get("concurrency", {}),
            policies.sections.get("idempotency", {}),
        )
        self._discover_concurrency = int(limits.get(names.DISCOVER, 1))
        self._reconcile_concurrency = (
            int(limits.get(names.RECONCILE, 5)) if max_concurrency is None else max_concurrency
        )
        self._acquire_wait_s = policies.policy("acquisition").max_delay_s
        self._default_wait_s = policies.policy().max_delay_s
        # A provider is polled once per bucket: a second call within the hour finds the stored answer.
        bucket = _parse_duration(idempotency.get("poll_bucket", "1h"))
        self.identity_assignment = make_step("outbox", names.IDENTITY, profile)(self._assign_identity)
        self.discover_provider = make_step(
            "outbox", names.DISCOVER, profile, bucket=bucket, provider=lambda provider, *rest: provider
        )(self._discover_products)
        self.acquire_artifact = make_acquisition_step(self._acquire_product, f"{profile}/acquisition")
        self.validation_result = make_step("pure", names.VALIDATION, profile)(build_validation_result)
        self.reconcile_reference = make_step(
            "idempotent", names.RECONCILE, profile, bucket=bucket, provider="references"
        )(self._reconcile_reference)
        self.linking = make_step("outbox", names.LINKING, profile)(link_reference)

    @property
    def steps(self) -> tuple[Step[..., Any], ...]:
        """All steps of the workflows, for a worker that should run them."""
        return (
            self.identity_assignment, self.discover_provider, self.acquire_artifact, self.validation_result,
            self.reconcile_reference, self.linking,
        )  # fmt: skip

    def discover(self, request: Mapping[str, Any]) -> WorkflowExecution:
        """Ask all providers, one after another, for the products of a nova; give each product its id.

        request  schema_version, nova_id; optionally correlation_id, and providers to ask only some

        A second call within the hour asks no provider: it returns the stored answers of this hour.
        """
        check_mapping(request)
        chosen = request.get("providers") or sorted(self._providers) or _refused_item(request)
        items = [(provider, request.get("nova_id"), request.get("schema_version")) for provider in chosen]
        return self._run_workflow(
            names.DISCOVER,
            self.discover_provider,
            request,
            items,
            max_concurrency=self._discover_concurrency,
            max_wait_s=self._default_wait_s,
        )

    def reconcile(self, request: Mapping[str, Any]) -> WorkflowExecution:
        """Find the references of a nova and link them to it, several at a time.

        request  schema_version, nova_id, references (their ids); optionally correlation_id
        """
        check_mapping(request)
        chosen = request.get("references") or _refused_item(request)
        items = [(request.get("nova_id"), reference, request.get("schema_version")) for reference in chosen]
        return self._run_workflow(
            names.RECONCILE,
            self.reconcile_reference,
            request,
            items,
            max_concurrency=self._reconcile_concurrency,
            max_wait_s=self._default_wait_s,
        )

    def acquire(self, request: Mapping[str, Any]) -> WorkflowExecution:
        """Fetch one data product and check it; skip it if its record says so.

        request  schema_version, data_product_id, nova_id, provider, locator, provenance; optionally sha256
                 and correlation_id
        """
        check_mapping(request)
        import_readers()  # raises before the provider is asked for a file that could not be read
        # The step checks the fields itself, so that a malformed request has a run that records its failure.
        item = tuple(_text_or_none(request.get(field)) for field in PRODUCT_FIELDS)
        return self._run_workflow(
            names.ACQUIRE,
            self.acquire_artifact,
            request,
            [item],
            max_concurrency=1,
            max_wait_s=self._acquire_wait_s,
            product=request.get("data_product_id"),
        )

    def _run_workflow(
        self,
        workflow: str,
        work: Step[..., Any],
        request: Mapping[str, Any],
        items: list[tuple[Any, ...]],
        *,
        max_concurrency: int,
        max_wait_s: float,
        product: Any = None,
    ) -> WorkflowExecution:
        engine = find_engine(self._engine)
        correlation_id = request.get("correlation_id") or CONTEXT.get().correlation_id
        # A malformed id is replaced, not refused: every execution has one (CORR-1).
        if not isinstance(correlation_id, str) or not 1 <= len(correlation_id) <= 200:
            correlation_id = new_uuid7(engine.now())
        with context(correlation_id=correlation_id):
            log_note("began", workflow=workflow, **_product_fields(product))
            # The log line before the map has no job id yet: the map creates the job.
            job = work.bind(engine).map(
                items, unpack="args", max_concurrency=max_concurrency, progress="off", max_wait=max_wait_s
            )
            # Read after the map: the attempt has updated the record in its own commit.
            record = engine.cooldowns.get(product.lower()) if is_uuid(product) else None
            execution = _make_execution(workflow, job, record)
            log_note(
                execution.outcome, workflow=workflow, job_id=job.job_id, outcome=execution.outcome,
                error_class=execution.error_class, reason=execution.reason, **_product_fields(product),
            )  # fmt: skip
        return execution

    def executions(self, limit: int = 100) -> tuple[WorkflowExecution, ...]:
        """Return the executions in the log, each with its JobRun; running ones first."""
        engine = find_engine(self._engine)
        flows = {
            self.discover_provider.name: names.DISCOVER, self.acquire_artifact.name: names.ACQUIRE,
            self.reconcile_reference.name: names.RECONCILE,
        }  # fmt: skip
        jobs = (job for job in engine.jobs(limit) if job.step in flows)
        return tuple(_make_execution(flows[job.step], job, None) for job in jobs)

    def _discover_products(self, provider: str, nova_id: str, schema_version: str) -> list[dict[str, Any]]:
        request = {"nova_id": nova_id, "schema_version": schema_version, "provider": provider}
        with log_failures(names.DISCOVER, provider=provider):
            check_version(request)
            check_uuids(request, "nova_id")
            if provider not in self._providers:
                raise InvalidInput(
                    names.INVALID_FIELD,
                    f"provider is {provider!r:.60}, which NovaCat(providers=…) does not have",
                )
            records = [check_record(provider, record) for record in self._providers[provider](nova_id)]
            check_consistent(provider, records)
        # Outside the block: a failure of an inner step is not one of the provider.
        return [self.identity_assignment(provider, nova_id, record) for record in records]

    def _assign_identity(self, provider: str, nova_id: str, record: dict[str, Any]) -> dict[str, Any]:
        """Return a product with its id, which is the same wherever and however often it is found."""
        product = {
            "data_product_id": str(uuid5(PRODUCT_NAMESPACE, f"{provider}\n{record['native_id']}")),
            "nova_id": nova_id, "provider": provider, "locator": record["locator"],
            "provenance": record["provenance"], "sha256": record["sha256"],
        }  # fmt: skip
        events.emit_event(events.DISCOVERED, **product)
        return {**product, "schema_version": "1"}

    def _acquire_product(
        self,
        data_product_id: str,
        nova_id: str,
        provider: str,
        locator: str,
        provenance: str,
        sha256: str | None,
        schema_version: str,
    ) -> dict[str, Any]:
        product = {
            "data_product_id": data_product_id, "nova_id": nova_id, "provider": provider, "locator": locator,
            "provenance": provenance, "sha256": sha256, "schema_version": schema_version,
        }  # fmt: skip
        with log_failures(names.ACQUIRE, provider=provider, data_product_id=data_product_id):
            check_product(product)
            data = self._fetch(locator)
            try:
                spectrum = validate(data, sha256)
            except UnusableData:
                # The bytes that failed the check are the evidence for the review.
                current().leave(data, name="spectrum.fits", media_type="application/fits")
                raise
        artifact = current().put(data, name=f"{data_product_id}.fits", media_type="application/fits")
        result = self.validation_result(data_product_id, spectrum._asdict())
        events.emit_event(
            events.VALIDATED, nova_id=nova_id, data_product_id=data_product_id, provider=provider,
            sha256=spectrum.sha256, size=spectrum.size, profile=spectrum.profile, points=spectrum.points,
            first_nm=spectrum.first_nm, last_nm=spectrum.last_nm,
        )  # fmt: skip
        return {**result, "artifact": artifact}

    def _reconcile_reference(self, nova_id: str, reference_id: str, schema_version: str) -> dict[str, Any]:
        request = {"nova_id": nova_id, "reference_id": reference_id, "schema_version": schema_version}
        with log_failures(names.RECONCILE, reference_id=str(reference_id)[:MAX_TEXT_LENGTH]):
            check_version(request)
            check_uuids(request, "nova_id", "reference_id")
            if self._resolve is None:
                raise UsageError("NovaCat(resolve=…) is missing: give the function that finds a reference")
            reference = check_resolved(reference_id, self._resolve(reference_id))
        return self.linking(nova_id, reference_id, reference)  # type: ignore[no-any-return]


def _refused_item(request: Mapping[str, Any]) -> tuple[None, ...]:
    """Return one empty item if the request is malformed, so that its failure is recorded; else none."""
    try:
        check_version(request)
        check_uuids(request, "nova_id")
    except InvalidInput:
        return (None,)
    return ()


def _text_or_none(value: Any) -> str | None:
    """Return a text of at most one character above the limit; None for another type.

    The checks of the step refuse both, so that the failure is recorded in the log.
    """
    return value[: MAX_TEXT_LENGTH + 1] if isinstance(value, str) else None


def _parse_duration(text: str) -> float:
    units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
    return float(text[:-1]) * units[text[-1]]


#: The outcome of an execution is the first of these that one of its items has.
_OUTCOMES_WORST_FIRST = (
    names.QUARANTINED, names.TERMINAL_FAILURE, names.RETRYABLE_FAILURE, "", *names.SKIPS, names.SUCCESS,
)  # fmt: skip


def _make_execution(workflow: str, job: JobRun[Any], product: ResourceRecord | None) -> WorkflowExecution:
    worst = min(job.items, key=lambda item: _OUTCOMES_WORST_FIRST.index(item.result), default=None)
    if worst is None:
        outcome = names.SUCCESS
    else:
        # An item without a result was deferred, or refused before its step began.
        is_deferred = worst.outcome == "deferred"
        outcome = worst.result or (names.RETRYABLE_FAILURE if is_deferred else names.TERMINAL_FAILURE)
    return WorkflowExecution(
        workflow=workflow,
        outcome=outcome,
        error_class=names.CLASS_OF.get(outcome, ""),
        reason="" if worst is None else worst.error_class,
        message="" if worst is None else worst.error,
        correlation_id=job.correlation_id,
        job=job,
        product=product,
    )


def _product_fields(product: Any) -> dict[str, Any]:
    return {} if product is None else {"data_product_id": str(product)[:MAX_TEXT_LENGTH]}
