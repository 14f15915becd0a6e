"""The names of `nova-cat`: workflows, error classes, outcomes, reasons, and exception names.

The workflows, the generated state machine, the command line and the readers of records all use these. The
module imports nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

PROFILE: Final = "nova-cat"

# Workflows ------------------------------------------------------------------------------------------

DISCOVER: Final = "DiscoverSpectraProducts"
RECONCILE: Final = "ReferenceReconciliation"
ACQUIRE: Final = "AcquireAndValidateSpectra"
WORKFLOWS: Final = (DISCOVER, RECONCILE, ACQUIRE)

#: The steps inside the workflows that have a key of their own (IDEM-14).
IDENTITY: Final = "identity_assignment"
ACQUIRE_ARTIFACT: Final = "AcquireArtifact"
VALIDATION: Final = "validation_result"
LINKING: Final = "linking"
STEP_KEYS: Final = (IDENTITY, ACQUIRE_ARTIFACT, VALIDATION, LINKING)

# Classes of errors (CLASS-5), and the exception name of each -----------------------------------------

RETRYABLE: Final = "RETRYABLE"
TERMINAL: Final = "TERMINAL"
QUARANTINE: Final = "QUARANTINE"
CLASSES: Final = (RETRYABLE, TERMINAL, QUARANTINE)

#: The error names of a failed state machine task, by class; the exceptions in `nova_cat` have the same names.
RETRYABLE_ERROR: Final = "RetryableError"
TERMINAL_ERROR: Final = "TerminalError"
QUARANTINE_ERROR: Final = "QuarantineError"
ERROR_NAMES: Final = {
    RETRYABLE: RETRYABLE_ERROR,
    TERMINAL: TERMINAL_ERROR,
    QUARANTINE: QUARANTINE_ERROR,
}

# How an execution ends ------------------------------------------------------------------------------

SUCCESS: Final = "SUCCESS"
RETRYABLE_FAILURE: Final = "RETRYABLE_FAILURE"
TERMINAL_FAILURE: Final = "TERMINAL_FAILURE"
QUARANTINED: Final = "QUARANTINE"
SKIPPED_DUPLICATE: Final = "SKIPPED_DUPLICATE"
SKIPPED_BACKOFF: Final = "SKIPPED_BACKOFF"
SKIPPED_QUARANTINED: Final = "SKIPPED_QUARANTINED"
SKIPPED_TERMINAL: Final = "SKIPPED_TERMINAL"
SKIPS: Final = (SKIPPED_DUPLICATE, SKIPPED_QUARANTINED, SKIPPED_TERMINAL, SKIPPED_BACKOFF)
OUTCOMES: Final = (SUCCESS, RETRYABLE_FAILURE, TERMINAL_FAILURE, QUARANTINED, *SKIPS)
#: The class of a failed execution.
CLASS_OF: Final = {
    RETRYABLE_FAILURE: RETRYABLE,
    TERMINAL_FAILURE: TERMINAL,
    QUARANTINED: QUARANTINE,
}

# Reasons of TERMINAL (CLASS-6): the input itself is wrong --------------------------------------------

UNSUPPORTED_SCHEMA_VERSION: Final = "UNSUPPORTED_SCHEMA_VERSION"
INVALID_UUID: Final = "INVALID_UUID"
INVALID_FIELD: Final = "INVALID_FIELD"
NOT_A_CLASSICAL_NOVA: Final = "NOT_A_CLASSICAL_NOVA"
TERMINAL_REASONS: Final = (UNSUPPORTED_SCHEMA_VERSION, INVALID_UUID, INVALID_FIELD, NOT_A_CLASSICAL_NOVA)

# Reasons of QUARANTINE (CLASS-7, COOL-12): integrity, format, domain, and records of providers --------

CHECKSUM_MISMATCH: Final = "CHECKSUM_MISMATCH"
FITS_CHECKSUM_MISMATCH: Final = "FITS_CHECKSUM_MISMATCH"
FITS_UNREADABLE: Final = "FITS_UNREADABLE"
UNKNOWN_FITS_PROFILE: Final = "UNKNOWN_FITS_PROFILE"
WAVELENGTH_NOT_RISING: Final = "WAVELENGTH_NOT_RISING"
WAVELENGTH_OUT_OF_RANGE: Final = "WAVELENGTH_OUT_OF_RANGE"
FLUX_NOT_FINITE: Final = "FLUX_NOT_FINITE"
FLUX_OUT_OF_RANGE: Final = "FLUX_OUT_OF_RANGE"
AMBIGUOUS_NAME: Final = "AMBIGUOUS_NAME"
MALFORMED_PROVIDER_RECORD: Final = "MALFORMED_PROVIDER_RECORD"
INTEGRITY_REASONS: Final = (CHECKSUM_MISMATCH, FITS_CHECKSUM_MISMATCH)
FORMAT_REASONS: Final = (FITS_UNREADABLE, UNKNOWN_FITS_PROFILE)
DOMAIN_REASONS: Final = (
    WAVELENGTH_NOT_RISING, WAVELENGTH_OUT_OF_RANGE, FLUX_NOT_FINITE, FLUX_OUT_OF_RANGE,
)  # fmt: skip
QUARANTINE_REASONS: Final = (
    *INTEGRITY_REASONS, *FORMAT_REASONS, *DOMAIN_REASONS, AMBIGUOUS_NAME, MALFORMED_PROVIDER_RECORD,
)  # fmt: skip
