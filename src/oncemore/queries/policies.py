"""Find a policy by its address or its recorded name, and check policy files.

An address is `profile[/policy][@provider]`, where the profile may be the path of a file. A recorded name is
`name@version:digest`, as in runs, proofs and audit events. Loading shows no Python warnings here: they are
part of the result.
"""

from __future__ import annotations

import os
import re
import warnings
from contextlib import contextmanager
from pathlib import Path

from oncemore._redact import describe_value
from oncemore._values import Value
from oncemore.errors import PolicyError, UsageError
from oncemore.queries import suggest_names
from oncemore.queries.policy_catalogue import PACKAGE_FOLDER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Final

    from oncemore.policy.canonical_json import Plain
    from oncemore.policy.files import Profile
    from oncemore.policy.policy import Policy
    from oncemore.queries.policy_schedule import DelayRange, WorstCase

DEFAULT_POLICY: Final = "default"
STDIN_NAME: Final = "<stdin>"
MAX_BYTES: Final = 1 << 20

_YAML_SUFFIX: Final = re.compile(r"\.ya?ml$")
# A path may contain slashes and dots, so a file is recognized by its suffix.
_ADDRESS_PATTERN: Final = re.compile(
    r"(?P<file>.*\.ya?ml|[^/@]+)(?:/(?P<policy>[^/@]+))?(?:@(?P<provider>[^/@]+))?", re.DOTALL
)
#: A recorded name, `name@version:digest`, or the entity of a recorded policy, `policy/digest`.
_RECORDED_PATTERN: Final = re.compile(r"(?:.+@[^@]*:|policy/)(?P<digest>[0-9a-f]{12,64})", re.DOTALL)


class FoundPolicy(Value):
    """A policy, its profile, and the provider that it is for."""

    address: str
    policy_name: str
    provider: str | None
    policy: Policy
    profile: Profile

    @property
    def quarantines(self) -> bool:
        """Whether a run that is not retried waits for a person."""
        return "quarantine" in self.profile.sections.get("on_non_retryable", ())


class FoundInLog(Value):
    """A policy from a log: its values and delays, the time of its record, and its address at that time."""

    name: str
    version: str
    digest: str
    recorded: float
    source: str
    worst: WorstCase
    delays: tuple[DelayRange, ...]
    values: dict[str, Plain]


class PolicyFault(Value):
    """One fault in a file; line and column count from 1, and 0 means the whole file."""

    file: str
    line: int
    column: int
    field: str
    message: str


class PolicyCheck(Value):
    """The result of checking one file; `good` if it has no faults.

    against  the earlier state that it was compared with, and its version; empty if there is none
    """

    file: str
    good: bool
    name: str = ""
    version: str = ""
    policies: tuple[str, ...] = ()
    faults: tuple[PolicyFault, ...] = ()
    more_faults: int = 0
    warnings: tuple[str, ...] = ()
    against: str = ""


@contextmanager
def ignore_warnings() -> Iterator[None]:
    """Suppress Python's warnings in the block; the profile lists them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def find_policy(address: str, provider: str | None = None) -> FoundPolicy:
    """Return the policy at an address; raise `UsageError` with similar names if there is none."""
    parts = _ADDRESS_PATTERN.fullmatch(address)
    if parts is None:
        shown = describe_value(address)
        raise UsageError(f"{shown} is not the address of a policy; write profile/policy@provider.")
    profile = _load_profile(parts["file"])
    name = parts["policy"] or DEFAULT_POLICY
    if name not in profile.policies:
        raise _unknown_policy_error(profile, name)
    chosen = provider or parts["provider"]
    shown = profile.name if name == DEFAULT_POLICY else f"{profile.name}/{name}"
    return FoundPolicy(shown, name, chosen, profile.policy(name, chosen), profile)


def find_recorded(name: str, store: str | None = None) -> FoundPolicy | FoundInLog | None:
    """Return the policy with a recorded name; None if the text is not a recorded name.

    store  the log to search; without it, all policy files are searched, then the log of the settings
    """
    parts = _RECORDED_PATTERN.fullmatch(name)
    if parts is None:
        return None
    digest = parts["digest"]
    found = (_find_in_files(digest) if store is None else None) or _find_in_log(digest, store)
    if found is None:
        if store is not None:
            raise UsageError(f"this log has no policy {name}; without --store the policy files are searched.")
        raise UsageError(f"no policy file and no log here has a policy {name}; name its log with --store.")
    return found


def _find_in_files(digest: str) -> FoundPolicy | None:
    from oncemore.policy.files import names

    for file in names():
        profile = _load_profile(file)
        for policy in profile.policies:
            # A provider's own values make another policy, with a digest of its own.
            for provider in (None, *profile.providers):
                if profile.policy(policy, provider).digest.startswith(digest):
                    return find_policy(f"{file}/{policy}", provider)
    return None


def _find_in_log(digest: str, store: str | None) -> FoundInLog | None:
    from oncemore.log.entry_codec import decode_head
    from oncemore.log.record import RecordedPolicy
    from oncemore.policy.policy import restore_policy
    from oncemore.queries.policy_schedule import compute_worst_case, list_delays
    from oncemore.queries.policy_sheet import policy_values
    from oncemore.queries.stores import open_read_only
    from oncemore.steps.recorded_policies import entity_of

    with open_read_only(store) as log:
        head = log.load_head(entity_of(digest[:12]))
    # The entity holds the first digits of the digest only, so the rest is compared.
    record = None if head is None else decode_head(head.head, RecordedPolicy)
    if record is None or not record.digest.startswith(digest):
        return None
    policy = restore_policy(record.fields)
    return FoundInLog(
        name=record.name,
        version=record.version,
        digest=record.digest,
        recorded=record.created_at,
        source=record.source,
        worst=compute_worst_case(policy),
        delays=list_delays(policy),
        values=policy_values(policy),
    )


def _load_profile(name: str) -> Profile:
    from oncemore.policy.files import inspect_file, names
    from oncemore.policy.files.address import find_profile_file

    with ignore_warnings():
        # A path always means that file, even if a packaged profile has the same name.
        if _YAML_SUFFIX.search(name):
            check_file_exists(name)
            return inspect_file(_resolve_packaged_path(name))
        known = names()
        if name not in known:
            raise UsageError(
                f"there is no policy {name!r}{suggest_names(name, known)}; `oncemore policy list` shows all, "
                "and a file is given as a path that ends in .yaml."
            )
        return inspect_file(find_profile_file(name))


def check_file_exists(path: str) -> None:
    """Raise `UsageError` if a file does not exist; every other fault is part of the result."""
    if not os.path.exists(path):  # noqa: PTH110 - the path as it was given
        raise UsageError(f"there is no file {path}; give the path of a policy file.")


def _resolve_packaged_path(path: str) -> str:
    """Return the absolute path of a packaged file: the loader recognizes packaged files by it."""
    real = os.path.realpath(path)
    return real if Path(real).is_relative_to(PACKAGE_FOLDER) else path


def _unknown_policy_error(profile: Profile, name: str) -> UsageError:
    known = list(profile.policies)
    missing = "default policy" if name == DEFAULT_POLICY else f"policy {name!r}{suggest_names(name, known)}"
    return UsageError(f"{profile.name} has no {missing}; name {_format_choices(profile.name, known)}.")


def _format_choices(profile: str, names: list[str]) -> str:
    shown = [profile if name == DEFAULT_POLICY else f"{profile}/{name}" for name in names[:8]]
    return ", ".join(shown[:-1]) + (" or " if len(shown) > 1 else "") + shown[-1]


# Checking -------------------------------------------------------------------------------------------


def check_file(path: str) -> PolicyCheck:
    """Return all faults and warnings of a policy file."""
    check_file_exists(path)
    return _check_path(_resolve_packaged_path(path), path)


def check_text(text: bytes) -> PolicyCheck:
    """Check the text of a policy file, which may extend packaged profiles but no files."""
    from tempfile import TemporaryDirectory

    # The loader reads files. An empty folder also keeps relative paths in `extends` from being found.
    with TemporaryDirectory() as folder:
        path = os.path.join(folder, "stdin.yaml")  # noqa: PTH118 - the loader takes texts
        with open(path, "wb") as file:  # noqa: PTH123
            file.write(text)
        return _check_path(path, STDIN_NAME)


def _check_path(path: str, shown: str) -> PolicyCheck:
    """Check the file at a path; messages name it as `shown`."""
    from oncemore.policy.files import PolicyFileError, inspect_file

    try:
        profile = inspect_file(path)
    except PolicyFileError as error:
        faults = tuple(_make_fault(fault, path, shown) for fault in error.faults)
        return PolicyCheck(file=shown, good=False, faults=faults, more_faults=error.more)
    # A fault of the file as a whole, such as a missing parent, has no line.
    except PolicyError as error:
        return PolicyCheck(file=shown, good=False, faults=(PolicyFault(shown, 0, 0, "", str(error)),))
    return PolicyCheck(
        file=shown,
        good=True,
        name=profile.name,
        version=profile.version,
        policies=tuple(profile.policies),
        warnings=tuple(text.replace(path, shown) for text in profile.warnings),
    )


def _make_fault(fault: Any, path: str, shown: str) -> PolicyFault:
    mark = fault.mark
    return PolicyFault(mark.file.replace(path, shown), mark.line, mark.column, fault.field, fault.text)
