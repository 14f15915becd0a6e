"""`nova-cat`: spectra of novae found, fetched, checked and linked, without hammering those who have them.

    from oncemore.profiles.nova_cat import NovaCat

    cat = NovaCat(providers={"eso": search_eso}, resolve=resolve_reference)
    cat.discover({"schema_version": "1", "nova_id": …})                     # one provider after another
    cat.acquire({"schema_version": "1", "data_product_id": …, "locator": …})   # one product per execution
    cat.reconcile({"schema_version": "1", "nova_id": …, "references": […]})    # five at a time

Each is one *execution* and gives an `Execution`: its outcome, its class, why, and its JobRun. Nothing here
raises for an outcome: a product that is left alone, or there already, is a success that says so
(SKIPPED_BACKOFF, SKIPPED_DUPLICATE). It is a front for the one mechanism: durable steps under the numbers of
`nova-cat.yaml`, `step.map` for what is done for many, a `Cooldown` for what is asked for.

Every record of an execution bears its correlation id: its JobRun, its attempts, its events, its log lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid5

from oncemore._ids import uuid7
from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.limits.cooldown_rules import Cooldown, Resource
from oncemore.open_engine import chosen
from oncemore.policy import files
from oncemore.profiles.nova_cat import events, names
from oncemore.profiles.nova_cat.fetch import download
from oncemore.profiles.nova_cat.fits import Spectrum, readers, validate
from oncemore.profiles.nova_cat.input import (
    LONGEST,
    QuarantineError,
    RetryableError,
    TerminalError,
    check_mapping,
    check_product,
    check_record,
    check_uuids,
    check_version,
    is_uuid,
)
from oncemore.profiles.nova_cat.log import JsonLines, note, told
from oncemore.steps.attempt import current
from oncemore.steps.context import CONTEXT, context
from oncemore.steps.decorator import Step, step, told_of
from oncemore.steps.options import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from oncemore.steps.engine import Engine
    from oncemore.steps.run import Attempted, Run
    from oncemore.workers.job_run import JobRun

    Search = Callable[[str], Iterable[Mapping[str, Any]]]
    Resolve = Callable[[str], Any]

__all__ = [
    "Execution",
    "JsonLines",
    "NovaCat",
    "QuarantineError",
    "RetryableError",
    "Spectrum",
    "TerminalError",
    "download",
    "validate",
]

#: Whose ids data products get: the same product gets the same one wherever it is found.
PRODUCTS = UUID("6f1f2a2e-8d4e-5d0c-9b8e-0d6a0c7e4a11")
PRODUCT = ("data_product_id", "nova_id", "provider", "locator", "provenance", "sha256", "schema_version")


class Execution(Value):
    """How an execution of a workflow ended.

    outcome      SUCCESS, RETRYABLE_FAILURE, TERMINAL_FAILURE, QUARANTINE, or why nobody was asked: SKIPPED_…
    error_class  RETRYABLE, TERMINAL or QUARANTINE; empty where nothing failed
    reason       what the failure is counted as: HTTP_429, CHECKSUM_MISMATCH, INVALID_UUID
    message      why, in a sentence
    product      the record of the data product, where the execution is about one
    job          its JobRun: items, runs, what was met at each provider
    """

    workflow: str
    outcome: str
    error_class: str
    reason: str
    message: str
    correlation_id: str
    job: JobRun
    product: Resource | None = None

    @property
    def succeeded(self) -> bool:
        """Whether it is a success: done, or skipped."""
        return self.outcome == names.SUCCESS or self.outcome in names.SKIPS

    @property
    def run(self) -> Run | None:
        """The run of its first item; None if there is none."""
        return next(iter(self.job.runs), None)

    @property
    def attempts(self) -> tuple[Attempted, ...]:
        """The tries of that run, in order; none where nobody was asked."""
        skipped = self.outcome in names.SKIPS
        return () if skipped or self.run is None else self.run.attempts

    @property
    def value(self) -> Any:
        """What its items came to, in order; refused where one has no value."""
        return self.job.values


class NovaCat:
    """The workflows of `nova-cat` on an engine.

    providers        for discovery: what lists the products of a nova, by the provider's name; each record has
                     native_id, locator, provenance and, if it is known, sha256
    resolve          for references: what finds a reference by its id
    fetch            what gets the bytes behind a locator; `download` unless given
    profile          the policy file that all numbers come from: "nova-cat", its path, or one that extends it
    max_concurrency  how many references are reconciled at once; the profile's 5 unless given
    engine           where; else the one around the call, as for every step
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
        made = files.profile(profile) if "/" not in profile else files.load(profile)
        limits, idempotency = made.sections.get("concurrency", {}), made.sections.get("idempotency", {})
        self._one_by_one = int(limits.get(names.DISCOVER, 1))
        self._at_once = int(limits.get(names.RECONCILE, 5)) if max_concurrency is None else max_concurrency
        self._patience_s = made.policy("acquisition").max_delay_s
        self._short_s = made.policy().max_delay_s
        usual, slow, bucket = profile, f"{profile}/acquisition", _hours(idempotency.get("poll_bucket", "1h"))
        self.identity_assignment = _step("outbox", names.IDENTITY, usual)(self._assign)
        self.discover_provider = _step(
            "outbox", names.DISCOVER, usual, bucket=bucket, provider=lambda provider, *others: provider
        )(self._discover)
        self.acquire_artifact = _acquisition_step(self._acquire, slow)
        self.validation_result = _step("pure", names.VALIDATION, usual)(_result)
        self.reconcile_reference = _step(
            "idempotent", names.RECONCILE, usual, bucket=bucket, provider="references"
        )(self._reconcile)
        self.linking = _step("outbox", names.LINKING, usual)(_link)

    @property
    def steps(self) -> tuple[Step[..., Any], ...]:
        """All of its steps, for a worker that shall know them."""
        return (
            self.identity_assignment, self.discover_provider, self.acquire_artifact, self.validation_result,
            self.reconcile_reference, self.linking,
        )  # fmt: skip

    # Workflows --------------------------------------------------------------------------------------

    def discover(self, given: Mapping[str, Any]) -> Execution:
        """Ask all providers, one after another, what they have of a nova; give each product its id.

        given  schema_version, nova_id, correlation_id if there is one, and providers if not all are meant

        Asked again within the hour, nobody is asked: the answer of this hour is there.
        """
        check_mapping(given)
        wanted = given.get("providers") or sorted(self._providers) or _refused_item(given)
        items = [(one, given.get("nova_id"), given.get("schema_version")) for one in wanted]
        return self._execute(
            names.DISCOVER, self.discover_provider, given, items, self._one_by_one, self._short_s
        )

    def reconcile(self, given: Mapping[str, Any]) -> Execution:
        """Find the references of a nova and link them to it, some at a time.

        given  schema_version, nova_id, references (their ids), and correlation_id if there is one
        """
        check_mapping(given)
        wanted = given.get("references") or _refused_item(given)
        items = [(given.get("nova_id"), one, given.get("schema_version")) for one in wanted]
        return self._execute(
            names.RECONCILE, self.reconcile_reference, given, items, self._at_once, self._short_s
        )

    def acquire(self, given: Mapping[str, Any]) -> Execution:
        """Fetch one data product and check it; or leave it alone, where that is what its record says.

        given  schema_version, data_product_id, nova_id, provider, locator, provenance, and, if they are
               known, sha256 and correlation_id
        """
        check_mapping(given)
        readers()  # before anybody is asked: what cannot be read need not be fetched
        item = tuple(_plain(given.get(field)) for field in PRODUCT)
        about = given.get("data_product_id")
        return self._execute(names.ACQUIRE, self.acquire_artifact, given, [item], 1, self._patience_s, about)

    def _execute(
        self,
        workflow: str,
        work: Step[..., Any],
        given: Mapping[str, Any],
        items: list[tuple[Any, ...]],
        at_once: int,
        patience_s: float,
        product: Any = None,
    ) -> Execution:
        engine = chosen(self._engine)
        asked = given.get("correlation_id") or CONTEXT.get().correlation_id
        kept = asked if isinstance(asked, str) and 1 <= len(asked) <= 200 else uuid7(engine.now())
        with context(correlation_id=kept):
            note("began", workflow=workflow, **_about(product))
            job = work.on(engine).map(
                items, each="args", max_concurrency=at_once, progress="off", patience=patience_s
            )
            record = engine.cooldowns.get(product.lower()) if is_uuid(product) else None
            made = _execution(workflow, job, record)
            note(
                made.outcome, workflow=workflow, job_id=job.job_id, outcome=made.outcome,
                error_class=made.error_class, reason=made.reason, **_about(product),
            )  # fmt: skip
        return made

    def executions(self, limit: int = 100) -> tuple[Execution, ...]:
        """Return the executions that the log knows, each with its JobRun; those under way first."""
        engine = chosen(self._engine)
        flows = {
            self.discover_provider.name: names.DISCOVER, self.acquire_artifact.name: names.ACQUIRE,
            self.reconcile_reference.name: names.RECONCILE,
        }  # fmt: skip
        found = (job for job in engine.jobs(limit) if job.step in flows)
        return tuple(_execution(flows[job.step], job, None) for job in found)

    # Steps ------------------------------------------------------------------------------------------

    def _discover(self, provider: str, nova_id: str, schema_version: str) -> list[dict[str, Any]]:
        given = {"nova_id": nova_id, "schema_version": schema_version, "provider": provider}
        with told(names.DISCOVER, provider=provider):
            check_version(given)
            check_uuids(given, "nova_id")
            if provider not in self._providers:
                raise TerminalError(names.INVALID_FIELD, f"provider is {provider!r:.60}, and nobody knows it")
            records = [check_record(provider, one) for one in self._providers[provider](nova_id)]
            _check_consistent(provider, records)
        return [self.identity_assignment(provider, nova_id, record) for record in records]

    def _assign(self, provider: str, nova_id: str, record: dict[str, Any]) -> dict[str, Any]:
        """Give a product its id, once: the same wherever and however often it is found."""
        product = {
            "data_product_id": str(uuid5(PRODUCTS, f"{provider}\n{record['native_id']}")),
            "nova_id": nova_id, "provider": provider, "locator": record["locator"],
            "provenance": record["provenance"], "sha256": record["sha256"],
        }  # fmt: skip
        events.emit(events.DISCOVERED, **product)
        return {**product, "schema_version": "1"}

    def _acquire(
        self,
        data_product_id: str,
        nova_id: str,
        provider: str,
        locator: str,
        provenance: str,
        sha256: str | None,
        schema_version: str,
    ) -> dict[str, Any]:
        product = dict(zip(PRODUCT, (data_product_id, nova_id, provider, locator, provenance, sha256,
                                     schema_version), strict=True))  # fmt: skip
        with told(names.ACQUIRE, provider=provider, data_product_id=data_product_id):
            check_product(product)
            data = self._fetch(locator)
            try:
                found = validate(data, sha256)
            except QuarantineError:
                current().leave(data, name="spectrum.fits", media_type="application/fits")
                raise
        kept = current().put(data, name=f"{data_product_id}.fits", media_type="application/fits")
        result = self.validation_result(data_product_id, found._asdict())
        events.emit(
            events.VALIDATED, nova_id=nova_id, data_product_id=data_product_id, provider=provider,
            sha256=found.sha256, size=found.size, profile=found.profile, points=found.points,
            first_nm=found.first_nm, last_nm=found.last_nm,
        )  # fmt: skip
        return {**result, "artifact": kept}

    def _reconcile(self, nova_id: str, reference_id: str, schema_version: str) -> dict[str, Any]:
        given = {"nova_id": nova_id, "reference_id": reference_id, "schema_version": schema_version}
        with told(names.RECONCILE, reference_id=str(reference_id)[:LONGEST]):
            check_version(given)
            check_uuids(given, "nova_id", "reference_id")
            if self._resolve is None:
                raise UsageError("NovaCat(resolve=…) is missing: nobody can find a reference")
            found = _resolved(reference_id, self._resolve(reference_id))
        return self.linking(nova_id, reference_id, found)  # type: ignore[no-any-return]


# What steps are made of -----------------------------------------------------------------------------


def _step(effect: Any, name: str, policy: str, **more: Any) -> Any:
    return step(effect=effect, name=f"{names.PROFILE}.{name}", policy=policy, **more)


def _acquisition_step(work: Callable[..., Any], policy: str) -> Step[..., Any]:
    """Return the step that acquires a product: its key is the product, whatever the other fields say.

    A call through another locator is therefore the same work, and not a conflict. The log still has the
    fields of each run, so that a worker can go on with it.
    """
    options = told_of(
        effect="outbox", name=f"{names.PROFILE}.{names.ACQUIRE_ARTIFACT}", policy=policy,
        key=lambda *fields: _product_id(fields) or {"malformed": list(fields)},
        provider=lambda data_product_id, nova_id, provider, *others: _named(provider),
        cooldown=Cooldown(lambda *fields: _product_id(fields)),
    )  # fmt: skip
    recipe = Recipe(work, options)
    recipe.covers_all = True
    return Step(recipe)


def _product_id(fields: tuple[Any, ...]) -> str | None:
    """Return the product that an acquisition is about; None for malformed input, which is about none.

    So a malformed input has a key of its own, and the record of the product is neither read nor written.
    """
    try:
        check_product(dict(zip(PRODUCT, fields, strict=True)))
    except TerminalError:
        return None
    return str(fields[0]).lower()


def _result(data_product_id: str, found: dict[str, Any]) -> dict[str, Any]:
    """Write down what a file was found to be, once for its bytes."""
    return {"data_product_id": data_product_id, "validation_status": "VALID", **found}


def _link(nova_id: str, reference_id: str, found: dict[str, Any]) -> dict[str, Any]:
    """Link a reference to a nova, once."""
    events.emit(
        events.LINKED, nova_id=nova_id, reference_id=reference_id, title=str(found.get("title", ""))[:LONGEST]
    )
    return {"nova_id": nova_id, "reference_id": reference_id, **found}


def _resolved(reference_id: str, found: Any) -> dict[str, Any]:
    """Return the one thing that a reference is; several are ambiguous, and another kind is none of ours."""
    many = list(found) if isinstance(found, list | tuple) else [found]
    if len(many) != 1:
        raise QuarantineError(
            names.AMBIGUOUS_NAME, f"{reference_id} stands for {len(many)} things; a person has to choose"
        )
    if not isinstance(many[0], dict):
        raise QuarantineError(
            names.MALFORMED_PROVIDER_RECORD, f"{reference_id} is {many[0]!r:.60}, which is no record"
        )
    kind = many[0].get("object_type", "classical nova")
    if kind != "classical nova":
        raise TerminalError(names.NOT_A_CLASSICAL_NOVA, f"{reference_id} is about a {kind!s:.60}")
    return many[0]


def _check_consistent(provider: str, records: list[dict[str, Any]]) -> None:
    """Refuse a list in which one product is two things."""
    seen: dict[str, Any] = {}
    for record in records:
        if seen.setdefault(record["native_id"], record) != record:
            raise QuarantineError(
                names.MALFORMED_PROVIDER_RECORD, f"{provider} says two things of {record['native_id']}"
            )


def _refused_item(given: Mapping[str, Any]) -> tuple[None, ...]:
    """Return the one item that a malformed input without items fails with; none where the input is right."""
    try:
        check_version(given)
        check_uuids(given, "nova_id")
    except TerminalError:
        return (None,)
    return ()


def _named(provider: Any) -> str:
    return provider if isinstance(provider, str) and len(provider) <= 200 else ""


def _plain(value: Any) -> str | None:
    """Return a field as a text, or None: what is no text is none of ours, and is refused as missing."""
    return value[: LONGEST + 1] if isinstance(value, str) else None


def _hours(text: str) -> float:
    units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
    return float(text[:-1]) * units[text[-1]]


# How it ended, and the log --------------------------------------------------------------------------

#: What counts for an execution of several items: the first that any of them came to.
_WORST = (
    names.QUARANTINED, names.TERMINAL_FAILURE, names.RETRYABLE_FAILURE, "", *names.SKIPS, names.SUCCESS,
)  # fmt: skip


def _execution(workflow: str, job: JobRun, product: Resource | None) -> Execution:
    worst = min(job.items, key=lambda item: _WORST.index(item.result), default=None)
    if worst is None:
        return Execution(workflow, names.SUCCESS, "", "", "", job.correlation_id, job, product)
    later = worst.outcome == "later"
    outcome = worst.result or (names.RETRYABLE_FAILURE if later else names.TERMINAL_FAILURE)
    return Execution(
        workflow, outcome, names.CLASS_OF.get(outcome, ""), worst.error_class, worst.error,
        job.correlation_id, job, product,
    )  # fmt: skip


def _about(product: Any) -> dict[str, Any]:
    return {} if product is None else {"data_product_id": str(product)[:LONGEST]}
