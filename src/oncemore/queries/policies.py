"""One policy by its name or file, and what is wrong with a file.

A policy is asked for by its address, `profile[/policy][@provider]`, where a path to a file may stand
for the profile; or by the name that runs, proofs and audit events have for it, `name@version:digest`.
Loading warns nobody here: what is unwise about a policy is part of the answer.
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
from oncemore.queries.names import nearest
from oncemore.queries.policy_catalogue import PACKAGE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Final

    from oncemore.policy.canonical_json import Plain
    from oncemore.policy.files import Profile
    from oncemore.policy.policy import Policy
    from oncemore.queries.policy_schedule import Delay, Worst

DEFAULT: Final = "default"
STDIN: Final = "<stdin>"
MOST_BYTES: Final = 1 << 20

_FILE: Final = re.compile(r"\.ya?ml$")
_ADDRESS: Final = re.compile(
    r"(?P<file>.*\.ya?ml|[^/@]+)(?:/(?P<policy>[^/@]+))?(?:@(?P<provider>[^/@]+))?", re.DOTALL
)
#: A policy as the log names it: `name@version:digest`, or `policy/digest`.
_RECORDED: Final = re.compile(r"(?:.+@[^@]*:|policy/)(?P<digest>[0-9a-f]{12,64})", re.DOTALL)


class Found(Value):
    """A policy, the profile it stands in, and whose it is."""

    address: str
    policy_name: str
    provider: str | None
    policy: Policy
    profile: Profile

    @property
    def quarantines(self) -> bool:
        """Whether work that is not tried again waits for a person, as the engine has it."""
        return "quarantine" in self.profile.sections.get("on_non_retryable", ())


class FoundInLog(Value):
    """A policy that a log has recorded: its values and delays, when it was recorded, and its address then."""

    name: str
    version: str
    digest: str
    recorded: float
    source: str
    worst: Worst
    delays: tuple[Delay, ...]
    values: dict[str, Plain]


class Fault(Value):
    """One thing that is wrong with a file; line and column count from 1, and 0 is the file as a whole."""

    file: str
    line: int
    column: int
    field: str
    message: str


class Checked(Value):
    """What a check of one file found; it is good when there are no faults."""

    file: str
    good: bool
    name: str
    version: str
    policies: tuple[str, ...]
    faults: tuple[Fault, ...]
    more_faults: int
    warnings: tuple[str, ...]


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Python's warnings off the screen; they are part of the answer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def find(address: str, provider: str | None = None) -> Found:
    """Return the policy at an address, or say which one may have been meant."""
    parts = _ADDRESS.fullmatch(address)
    if parts is None:
        shown = describe_value(address)
        raise UsageError(f"{shown} is not the address of a policy; write profile/policy@provider.")
    profile = _profile(parts["file"])
    name = parts["policy"] or DEFAULT
    if name not in profile.policies:
        raise _no_policy(profile, name)
    whose = provider or parts["provider"]
    shown = profile.name if name == DEFAULT else f"{profile.name}/{name}"
    return Found(shown, name, whose, profile.policy(name, whose), profile)


def find_recorded(name: str, store: str | None = None) -> Found | FoundInLog | None:
    """Return the policy that runs and audit events name so; None if the text is not such a name.

    It is looked for in the named log; or else in all policy files, and then in the log of the settings.
    """
    parts = _RECORDED.fullmatch(name)
    if parts is None:
        return None
    digest = parts["digest"]
    found = (_in_files(digest) if store is None else None) or _in_log(digest, store)
    if found is None:
        if store is not None:
            raise UsageError(f"this log has no policy {name}; without --store the policy files are searched.")
        raise UsageError(f"no policy file and no log here has a policy {name}; name its log with --store.")
    return found


def _in_files(digest: str) -> Found | None:
    from oncemore.policy.files import names

    for file in names():
        profile = _profile(file)
        for policy in profile.policies:
            for provider in (None, *profile.providers):
                if profile.policy(policy, provider).digest.startswith(digest):
                    return find(f"{file}/{policy}", provider)
    return None


def _in_log(digest: str, store: str | None) -> FoundInLog | None:
    from oncemore.log.entry_codec import head_of
    from oncemore.log.record import RecordedPolicy
    from oncemore.policy.policy import restore_policy
    from oncemore.queries import open_engine
    from oncemore.queries.policy_fields import values
    from oncemore.queries.policy_schedule import delays, worst
    from oncemore.steps.recorded_policies import entity_of

    with open_engine.looked_at(store) as log:
        head = log.head(entity_of(digest[:12]))
    record = None if head is None else head_of(head.head, RecordedPolicy)
    if record is None or not record.digest.startswith(digest):
        return None
    policy = restore_policy(record.fields)
    return FoundInLog(
        record.name, record.version, record.digest, record.created, record.source, worst(policy),
        delays(policy), values(policy),
    )  # fmt: skip


def _profile(name: str) -> Profile:
    from oncemore.policy.files import load, names
    from oncemore.policy.files import profile as by_name

    with quiet():
        if _FILE.search(name):
            _check_there(name)
            return load(_whole(name))
        known = names()
        if name not in known:
            raise UsageError(
                f"there is no policy {name!r}{nearest(name, known)}; `oncemore policy list` shows all, "
                "and a file is given as a path that ends in .yaml."
            )
        return by_name(name)


def _check_there(path: str) -> None:
    """Refuse a path that leads nowhere as a wrong question; everything else about a file is an answer."""
    if not os.path.exists(path):  # noqa: PTH110 - the path as it was given
        raise UsageError(f"there is no file {path}; give the path of a policy file.")


def _whole(path: str) -> str:
    """Return the whole path of a packaged file, however it was given: the loader knows it by that."""
    real = os.path.realpath(path)
    return real if Path(real).is_relative_to(PACKAGE) else path


def _no_policy(profile: Profile, name: str) -> UsageError:
    known = list(profile.policies)
    what = "default" if name == DEFAULT else f"policy {name!r}{nearest(name, known)}"
    return UsageError(f"{profile.name} has no {what}; ask for {_either(profile.name, known)}.")


def _either(profile: str, names: list[str]) -> str:
    shown = [profile if name == DEFAULT else f"{profile}/{name}" for name in names[:8]]
    return ", ".join(shown[:-1]) + (" or " if len(shown) > 1 else "") + shown[-1]


# What is wrong.


def check(path: str) -> Checked:
    """Return everything that is wrong with a policy file, and what is unwise in it."""
    _check_there(path)
    return _checked(_whole(path), path)


def check_text(text: bytes) -> Checked:
    """Check what a policy file would hold; what it extends by path is looked for in vain."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = os.path.join(folder, "stdin.yaml")  # noqa: PTH118 - the loader speaks in texts
        with open(path, "wb") as file:  # noqa: PTH123
            file.write(text)
        return _checked(path, STDIN)


def _checked(path: str, shown: str) -> Checked:
    from oncemore.policy.files import PolicyFileError, load

    try:
        with quiet():
            made = load(path)
    except PolicyFileError as error:
        faults = tuple(_fault(fault, path, shown) for fault in error.faults)
        return Checked(shown, False, "", "", (), faults, error.more, ())
    except PolicyError as error:
        return Checked(shown, False, "", "", (), (Fault(shown, 0, 0, "", str(error)),), 0, ())
    told = tuple(text.replace(path, shown) for text in made.warnings)
    return Checked(shown, True, made.name, made.version, tuple(made.policies), (), 0, told)


def _fault(fault: Any, path: str, shown: str) -> Fault:
    mark = fault.mark
    return Fault(mark.file.replace(path, shown), mark.line, mark.column, fault.field, fault.text)
