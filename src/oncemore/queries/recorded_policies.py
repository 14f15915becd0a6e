"""Read the policies that a store has recorded, and find a policy by the name of a file or of a record."""

from __future__ import annotations

from oncemore._values import Value
from oncemore.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.log.record import AcceptedPolicy
    from oncemore.log.store import Store
    from oncemore.policy.policy import Policy

MAX_LISTED = 10_000


class RecordedPolicyRow(Value):
    """A policy that runs of a store began with; `address` finds it again."""

    name: str
    version: str
    digest: str
    recorded_at: float
    source: str
    address: str


def list_recorded_policies(store: Store) -> list[RecordedPolicyRow]:
    """Return the policies of a store, the newest first."""
    from oncemore.log.entry_codec import decode_head
    from oncemore.log.record import RecordedPolicy
    from oncemore.log.store import HeadQuery

    records = [
        decode_head(head.head, RecordedPolicy)
        for head in store.list_heads(HeadQuery("policy", limit=MAX_LISTED))
    ]
    rows = [
        RecordedPolicyRow(
            name=record.name,
            version=record.version,
            digest=record.digest,
            recorded_at=record.created_at,
            source=record.source,
            address=f"policy/{record.digest[:12]}",
        )
        for record in records
    ]
    return sorted(rows, key=lambda row: -row.recorded_at)


def list_accepted_policies(store: Store) -> list[AcceptedPolicy]:
    """Return the highest accepted version of each governed policy of a store, by name."""
    from oncemore.log.entry_codec import decode_head
    from oncemore.log.record import AcceptedPolicy
    from oncemore.log.store import HeadQuery

    heads = store.list_heads(HeadQuery("accepted", limit=MAX_LISTED))
    return sorted((decode_head(head.head, AcceptedPolicy) for head in heads), key=lambda each: each.name)


def find_policy_or_recorded(store: Store, address: str) -> Policy:
    """Return the policy at an address: that of a file, or `policy/DIGEST` for a record of the store."""
    from oncemore.queries.policies import find_policy

    kind, _, digest = address.partition("/")
    if kind != "policy":
        # An address may be the path of a file; only the names of profiles are served here.
        if "." in address or address.startswith("/"):
            raise UsageError(f"{address!r:.80} is not the name of a profile or of a recorded policy")
        return find_policy(address).policy
    from oncemore.log.entry_codec import decode_head
    from oncemore.log.record import RecordedPolicy
    from oncemore.policy.policy import restore_policy
    from oncemore.steps.recorded_policies import entity_of

    head = store.load_head(entity_of(digest[:12]))
    record = None if head is None else decode_head(head.head, RecordedPolicy)
    # The entity has the first digits of the digest only, so that the given ones are compared.
    if record is None or not record.digest.startswith(digest):
        raise UsageError(f"this store has no policy {address!r:.80}")
    return restore_policy(record.fields)
