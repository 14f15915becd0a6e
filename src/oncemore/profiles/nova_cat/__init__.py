"""`nova-cat`: finds, fetches, checks and links spectra of novae, within the limits of their providers.

    from oncemore.profiles.nova_cat import NovaCat

    cat = NovaCat(providers={"eso": search_eso}, resolve=resolve_reference)
    cat.discover({"schema_version": "1", "nova_id": …})                     # one provider after another
    cat.acquire({"schema_version": "1", "data_product_id": …, "locator": …})   # one product per execution
    cat.reconcile({"schema_version": "1", "nova_id": …, "references": […]})    # five at a time

Each call is one execution and returns a `WorkflowExecution` with its outcome, error class, reason and JobRun.
An outcome is never raised: an execution that skips a product, because it is stored already or in cooldown, is
a success (SKIPPED_DUPLICATE, SKIPPED_BACKOFF). The workflows use durable steps under the numbers of
`nova-cat.yaml`, `step.map` for many items, and a `Cooldown` per product. Every record of an execution
(JobRun, attempts, events, log lines) has its correlation id.
"""

from __future__ import annotations

from oncemore.profiles.nova_cat.fits import SpectrumFile, download, validate
from oncemore.profiles.nova_cat.input import InvalidInput, UnusableData
from oncemore.profiles.nova_cat.workflows import NovaCat, WorkflowExecution
from oncemore.stepfunctions.task import QuarantineError, RetryableError, TerminalError
from oncemore.telemetry import JsonLogFormatter

__all__ = [
    "InvalidInput",
    "JsonLogFormatter",
    "NovaCat",
    "QuarantineError",
    "RetryableError",
    "SpectrumFile",
    "TerminalError",
    "UnusableData",
    "WorkflowExecution",
    "download",
    "validate",
]
