"""The inputs of an attempt: the `used` edges of its lineage, and their check against recorded edges.

An attempt uses artifacts that it reads, content that it declares with `current().use()`, artifacts among its
arguments, and arguments that are large enough to be the result of another run. COMMIT stores these edges
beside the artifacts and the result that the attempt generated; the entry of a failed attempt stores them too.

An attempt that meets an input under the same name with another digest than an earlier attempt of its key, of
the same version and configuration, raises `PolicyViolation` (LINEAGE_MISMATCH), which no policy retries.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncemore.artifacts.artifact import OCTET_STREAM
from oncemore.errors import PolicyViolation, UsageError
from oncemore.policy.canonical_json import hash_bytes
from oncemore.steps.history import find_opening, fold_entries

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from oncemore.artifacts.artifact import Artifact, ArtifactLabel
    from oncemore.artifacts.store import Content
    from oncemore.log.encryption import BodyCipher
    from oncemore.log.record import RunRecord
    from oncemore.log.store import Entry
    from oncemore.steps.attempt import RunningAttempt
    from oncemore.steps.call import PreparedCall

    InputEdge = dict[str, Any]
    RecordedDigests = dict[tuple[str, ...], set[str]]

#: The most inputs of one attempt; each is part of the entry that COMMIT writes.
MAX_INPUTS: Final = 10_000
#: An argument whose JSON is shorter than this has no edge of its own: equal numbers, flags and short names
#: are no evidence that one run has used the result of another.
MIN_ARGUMENT_BYTES: Final = 32
_SMALL_TYPES = frozenset((int, float, bool, type(None)))
_PARTITION = ("date", "site", "h3")


def digest_value(plain: Any) -> str:
    """Return the digest of a value in its tagged form; equal values have equal digests."""
    return hash_bytes(_encode_value(plain)).hex()


def _encode_value(plain: Any) -> bytes:
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    # A lone surrogate of a text cannot be UTF-8; its escaped form can.
    return text.encode("utf-8", "backslashreplace")


def digest_content(content: Content) -> tuple[str, int]:
    """Return the digest and the size of content without storing it, in bounded memory."""
    # Imported here: most attempts declare no input.
    from oncemore.artifacts.store import read_chunks

    hasher, size = sha256(), 0
    for data in read_chunks(content):
        hasher.update(data)
        size += len(data)
    return hasher.hexdigest(), size


# Edges ----------------------------------------------------------------------------------------------


def make_artifact_edge(fields: dict[str, Any]) -> InputEdge:
    """Return the edge to an artifact, given the fields of its tagged form."""
    return {"kind": "artifact", **fields}


def make_content_edge(label: ArtifactLabel, digest: str, size: int) -> InputEdge:
    """Return the edge to content that the attempt has declared."""
    edge = {"kind": "content", "name": label.name, "digest": digest, "size": size}
    return edge if label.media_type == OCTET_STREAM else {**edge, "media_type": label.media_type}


def add_input(attempt: RunningAttempt, edge: InputEdge) -> None:
    """Add an edge to an attempt, once; refuse one that contradicts a recorded edge."""
    if edge in attempt.used:
        return
    if len(attempt.used) >= MAX_INPUTS:
        raise UsageError(f"{attempt.step} uses more than {MAX_INPUTS:,} inputs; pack them into fewer")
    check_input(attempt, edge)
    attempt.used = (*attempt.used, edge)


def note_read(attempt: RunningAttempt, artifact: Artifact) -> None:
    """Add the edge to an artifact that the attempt reads.

    An artifact that the attempt has stored itself is an output, not an input.
    """
    from oncemore.artifacts.artifact import tag_artifact

    own = attempt.artifacts.get(artifact.name.casefold())
    if attempt.over or attempt.is_forked or (own is not None and own[0].digest == artifact.digest):
        return
    add_input(attempt, make_artifact_edge(tag_artifact(artifact)["$artifact"]))


# The check against recorded edges -------------------------------------------------------------------


def check_input(attempt: RunningAttempt, edge: InputEdge) -> None:
    """Raise LINEAGE_MISMATCH if earlier attempts have used only other content under the name of an edge."""
    recorded = attempt.load_recorded_inputs().get(edge_label(edge))
    if recorded and edge["digest"] not in recorded:
        expected = ", ".join(sorted(f"{digest[:12]}…" for digest in recorded))
        error = PolicyViolation(
            "LINEAGE_MISMATCH",
            f"{attempt.step}: its input {describe_edge(edge)} is {edge['digest'][:12]}… now, and an earlier "
            f"attempt of this key has used {expected}; restore that input, or give the step another version",
        )
        vars(error).update(
            evidence={"input": edge["name"], "expected": sorted(recorded), "found": edge["digest"]}
        )
        raise error


def edge_label(edge: InputEdge) -> tuple[str, ...]:
    """Return the kind, name and partition of an input: together they name it over all attempts."""
    return (edge["kind"], edge["name"], *(edge.get(part, "") for part in _PARTITION))


def describe_edge(edge: InputEdge) -> str:
    """Return the name of an input with its partition."""
    parts = ", ".join(f"{part}={edge[part]}" for part in _PARTITION if edge.get(part))
    return f"{edge['name']!r} ({parts})" if parts else repr(edge["name"])


def collect_recorded(
    entries: Iterable[Entry], run: RunRecord, cipher: BodyCipher | None = None
) -> RecordedDigests:
    """Return the digests that earlier attempts of a key have used, by label.

    Attempts of another version or configuration are left out: they may use other inputs.
    """
    recorded: RecordedDigests = {}
    for _, state, body in fold_entries(entries, cipher):
        if state.cfg_hash == run.cfg_hash:
            for edge in body.get("used", ()):
                recorded.setdefault(edge_label(edge), set()).add(edge["digest"])
    return recorded


# Arguments ------------------------------------------------------------------------------------------


def list_inputs(call: PreparedCall, attempt: RunningAttempt) -> tuple[InputEdge, ...]:
    """Return all edges of an attempt that has succeeded: the inputs that it has read, and its arguments."""
    if call.inputs:
        # From the bytes of the key: the function may have changed its own arguments meanwhile.
        arguments = msgspec.json.decode(call.inputs)
    elif call.recorded is not None and not any(map(_is_large, call.recorded[1].values())):
        return attempt.used
    else:
        # A worker continues the run: only the log has its arguments as they were.
        opening = find_opening(call.store.read_entries(call.entity), call.engine.cipher)
        arguments = opening.get("arguments", {})
    edges = list(attempt.used)
    for edge in argument_edges(arguments):
        if edge not in edges:
            edges.append(edge)
    return tuple(edges)


def argument_edges(arguments: dict[str, Any]) -> Iterator[InputEdge]:
    """Yield the edges to artifacts among recorded arguments, and to arguments that may be results."""
    for name, plain in arguments.items():
        if not _is_large(plain):
            continue
        found = False
        for fields in find_artifacts(plain):
            found = True
            yield make_artifact_edge(fields)
        encoded = b"" if found else _encode_value(plain)
        if len(encoded) >= MIN_ARGUMENT_BYTES:
            digest = hash_bytes(encoded).hex()
            yield {"kind": "argument", "name": name, "digest": digest, "size": len(encoded)}


def _is_large(plain: Any) -> bool:
    """Return whether a value can be an input of its own: a container, or a long text."""
    return type(plain) not in _SMALL_TYPES and (type(plain) is not str or len(plain) >= MIN_ARGUMENT_BYTES)


def find_artifacts(plain: Any) -> Iterator[dict[str, Any]]:
    """Yield the fields of all artifacts inside a value in its tagged form."""
    if isinstance(plain, dict):
        if isinstance(artifact := plain.get("$artifact"), dict):
            yield artifact
        for part in plain.values():
            yield from find_artifacts(part)
    elif isinstance(plain, list | tuple):
        for part in plain:
            yield from find_artifacts(part)
