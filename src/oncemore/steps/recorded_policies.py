"""Record the policies of runs in the log: one entity per policy, named by its digest.

A run's head names its policy (`Run.policy`). Before the first run under a policy is claimed, the engine
writes the policy itself, once per store: every attempt of the run, in any process, decides by it, and the log
can be replayed without the policy's file. An engine caches the policies that it has written or read: a run
under a cached policy costs one lookup in a dict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.errors import PolicyError, StoreError
from oncemore.events import ExecutionRefused
from oncemore.log.entry_codec import build_write, load_head
from oncemore.log.group_commit import InterruptShield
from oncemore.log.record import NOWHERE, RecordChange, RecordedPolicy
from oncemore.log.store import Batch
from oncemore.policy.canonical_json import canonical_digest
from oncemore.policy.policy import restore_policy

if TYPE_CHECKING:
    from typing import Any

    from oncemore.log.record import RunRecord
    from oncemore.policy.files.loaded import Profile
    from oncemore.policy.policy import Policy
    from oncemore.steps.engine import Engine
    from oncemore.steps.plan import StepPlan

PREFIX = "policy/"
MARKS: tuple[Any, ...] = ("POLICY",)
#: The largest number of policies that an engine caches.
MOST_KNOWN = 1000


def entity_of(name: str) -> str:
    """Return the entity of a policy, given as runs name it: `name@version:digest`."""
    return PREFIX + name.rpartition(":")[2]


class RecordedPolicies:
    """The recorded policies that an engine has cached, by their name in runs: `name@version:digest`."""

    def __init__(self) -> None:
        self.known: dict[str, Policy] = {}
        #: The governed profiles that the store has accepted from this engine, by identity: an older file
        #: that is loaded again is another object, even if an equal one was accepted before.
        self._accepted: dict[int, Profile] = {}

    def accept_profile(self, engine: Engine, profile: Profile) -> None:
        """Compare a governed profile with the versions that the store remembers, once per engine.

        `PolicyError` refuses an older version, and a changed content under the same version.
        """
        if id(profile) not in self._accepted:
            from oncemore.governance.accepted_policies import accept_policy

            try:
                accept_policy(engine, profile)
            except PolicyError as refusal:
                # The same event as for a file whose signatures are refused when it is loaded.
                event = ExecutionRefused("policy_unverifiable", profile.source, str(refusal))
                engine.listener.notify(event)
                raise
            if len(self._accepted) >= MOST_KNOWN:
                self._accepted.clear()
            self._accepted[id(profile)] = profile

    def record_policy(self, engine: Engine, name: str, policy: Policy, source: str = "") -> None:
        """Write a policy into the log unless the log has it.

        The write does not wait for the disk: the claim that follows is written after it, and synced with it.

        source  the address of the policy's file; empty for a policy made in code
        """
        if name in self.known:
            return
        entity = entity_of(name)
        # Ctrl-C is delayed: an interrupted append would leave it unknown whether the policy is stored.
        with InterruptShield():
            if engine.store.load_head(entity) is None:
                now = engine.now()
                after = RecordedPolicy(
                    state="RECORDED",
                    name=policy.name,
                    version=policy.version,
                    digest=policy.digest,
                    created_at=now,
                    fields=policy.to_dict(),
                    source=source,
                )
                write = build_write(entity, 0, NOWHERE, RecordChange(MARKS, None, after), now, engine.cipher)
                # A conflict means that another process has just written the same policy.
                engine.store.append(Batch((write,), {}, False)).wait()
        self._remember(name, policy)

    def find_policy(self, engine: Engine, name: str) -> Policy | None:
        """Return a policy by its name in runs; None if the log does not have it."""
        known = self.known.get(name)
        if known is not None:
            return known
        record = load_head(engine.store, entity_of(name), engine.cipher, RecordedPolicy).record
        if record is None:
            return None
        # Decisions follow this record: one that was altered must not change them without notice.
        if not canonical_digest(record.fields).startswith(entity_of(name).removeprefix(PREFIX)):
            raise StoreError(f"{entity_of(name)} was altered: its digest does not match its name")
        policy = restore_policy(record.fields)
        self._remember(name, policy)
        return policy

    def _remember(self, name: str, policy: Policy) -> None:
        # All at once: so many policies are too rare for a cache that tracks their use.
        if len(self.known) >= MOST_KNOWN:
            self.known.clear()
        self.known[name] = policy


def needs_own_policy(plan: StepPlan, run: RunRecord) -> bool:
    """Return whether an open run began with another policy than the step has now."""
    # An empty name means that no policy was recorded; a finished run needs no more decisions.
    return run.policy not in (plan.policy_name, "") and run.state not in ("COMPLETE", "HARD_FAIL")


def plan_of_run(engine: Engine, plan: StepPlan, run: RunRecord) -> StepPlan:
    """Return the plan for the next attempt of a run, with the policy that the run began with."""
    if not needs_own_policy(plan, run):
        return plan
    policy = engine.policies.find_policy(engine, run.policy)
    return plan if policy is None else plan.copy_with(policy=policy, policy_name=run.policy)
