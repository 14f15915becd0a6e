"""A store in NATS that is only looked at: no stream is made, nothing is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.log.nats.store import NatsStore
from oncemore.log.read_only import ForEyesOnly

if TYPE_CHECKING:
    from typing import NoReturn


class LookedAt(ForEyesOnly, NatsStore):
    """The store in a server, for eyes only; what is unsafe about it is a part of what one sees."""

    makes = False

    @property
    def shown(self) -> str:
        """Its address, without what is secret in it."""
        return self._where.shown

    def tidy(self) -> NoReturn:
        """Refuse."""
        self._only_looked_at()
