"""The outputs of an attempt: the events and artifacts that are stored with its result.

`RunningAttempt` has them as a base class. An artifact is checked against the log when it is attached: a name
that the key has used before keeps its content.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore.artifacts.artifact import reference_to_artifact, tag_artifact
from oncemore.errors import PolicyViolation, UsageError
from oncemore.log.record import ArtifactRecord, EventRecord

if TYPE_CHECKING:
    from oncemore.artifacts.artifact import Artifact
    from oncemore.steps.attempt_storage import AttemptBackend
    from oncemore.steps.ops import Output


class AttemptOutputs:
    """The part of a running attempt that collects events and artifacts.

    events     emitted events with their payloads
    artifacts  stored artifacts by folded name, and whether each is new in this attempt
    """

    events: tuple[tuple[EventRecord, Any], ...] = ()
    artifacts: dict[str, tuple[ArtifactRecord, bool]]

    if TYPE_CHECKING:
        # Both are those of `Attempt`.
        step: str

        @property
        def _backend(self) -> AttemptBackend: ...

    def attach_artifact(self, record: ArtifactRecord) -> Artifact:
        """Add a stored artifact to the attempt; refuse a name that has other content already."""
        held, is_new = self.artifacts.get(record.name.casefold(), (None, True))
        if held is None:
            held = self._backend.find_recorded_artifact(record)
            is_new = held is None
        if held is not None and held.name != record.name:
            raise UsageError(f"{self.step}: artifacts {held.name!r} and {record.name!r} differ in case only")
        if held is not None and held.digest != record.digest:
            raise PolicyViolation(
                "ARTIFACT_IMMUTABLE",
                f"{self.step}: {record.name!r} is {held.digest[:12]}… already, {record.digest[:12]}… is "
                "other content; what is there stays; give it another name, or the step another version",
            )
        record = held or record
        self.artifacts[record.name.casefold()] = record, is_new
        return reference_to_artifact(record)

    def adopt_outputs(self, outputs: tuple[Output, ...]) -> None:
        """Add the events and artifacts that the attempt produced in its child process."""
        for record, payload in outputs:
            if type(record) is ArtifactRecord:
                self.attach_artifact(record)
            else:
                assert type(record) is EventRecord
                self.events = (*self.events, (record, payload))

    def collect_outputs(self, operation: str = "") -> tuple[Output, ...]:
        """Return the events and the new artifact references that are stored with the result.

        operation  the operation of the step on its dataset: the gate asks about it when an event is sent
        """
        events = self.events
        if operation:
            events = tuple((event._replace(operation=operation), payload) for event, payload in events)
        return (*events, *((record, None) for record, is_new in self.artifacts.values() if is_new))

    def list_artifacts(self) -> tuple[Any, ...]:
        """Return all artifacts of the attempt in their tagged form."""
        return tuple(tag_artifact(reference_to_artifact(record)) for record, _ in self.artifacts.values())
