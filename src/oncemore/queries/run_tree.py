"""The tree of runs that a run belongs to: the workflow or step that called it, and the runs that it called.

A run names the key of its caller in its first entry. Callers are found by that key; called runs are found by
reading the log from the beginning of the topmost run, within a limit.
"""

from __future__ import annotations

from itertools import islice

from oncemore._values import Value
from oncemore.queries.entries import read_body

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.log.record import RunRecord
    from oncemore.log.store import Store

#: The number of log entries that are searched for called runs, and of callers that are followed upwards.
MAX_ENTRIES, MAX_DEPTH, MAX_NODES = 20_000, 20, 500


class RunNode(Value):
    """A run in the tree; `depth` is 0 for the topmost one.

    is_subject  whether it is the run that the tree was asked for
    """

    depth: int
    key: str
    run_id: str
    step: str
    state: str
    is_subject: bool


class RunTree(Value):
    """The runs of a tree, each after its caller; `is_complete` is false if the search met its limit."""

    nodes: tuple[RunNode, ...]
    is_complete: bool = True


def load_tree(store: Store, key: str) -> RunTree:
    """Return the tree around a key; a run without caller and called runs is a tree of one."""
    top, seq = _find_top(store, key)
    children, is_complete = _find_called_keys(store, seq)
    nodes: list[RunNode] = []
    # Depth first, so that each run follows its caller; a stack, because a tree may be deep.
    stack = [(top, 0)]
    while stack and len(nodes) < MAX_NODES:
        current, depth = stack.pop()
        head = store.load_head(f"run/{current}")
        if head is None:
            continue
        from oncemore.log.entry_codec import decode_head

        run: RunRecord = decode_head(head.head)
        nodes.append(RunNode(depth, current, run.run_id, run.step, run.state, current == key))
        stack += [(child, depth + 1) for child in reversed(children.get(current, ()))]
    return RunTree(tuple(nodes), is_complete and not stack)


def _find_top(store: Store, key: str) -> tuple[str, int]:
    """Return the topmost caller of a key, and the seq before its first entry."""
    seq = 0
    for _ in range(MAX_DEPTH):
        first = next(iter(store.read_entries(f"run/{key}")), None)
        if first is None:
            break
        seq, parent = first.seq - 1, str(read_body(first).get("parent") or "")
        if not parent or store.load_head(f"run/{parent}") is None:
            break
        key = parent
    return key, seq


def _find_called_keys(store: Store, after: int) -> tuple[dict[str, list[str]], bool]:
    """Return the keys of called runs by the key of their caller, and whether the search was complete."""
    called: dict[str, list[str]] = {}
    count = 0
    for entry in islice(store.read_entries(after=after), MAX_ENTRIES):
        count += 1
        # Only the first entry of a run names its caller; the search in bytes is cheaper than decoding.
        if (
            entry.version == 1
            and entry.body
            and b'"parent"' in entry.body
            and entry.entity.startswith("run/")
        ):
            parent = str(read_body(entry).get("parent") or "")
            if parent:
                called.setdefault(parent, []).append(entry.entity.removeprefix("run/"))
    return called, count < MAX_ENTRIES
