"""Switches and approvals on the bus: keys of the control bucket, which every attempt is checked against."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from oncemore.control.model import ALL_EXECUTION, Approval
from oncemore.control.nats_switches import bucket_key, parse_switch
from oncemore.errors import StaleDecision, UsageError
from oncemore.profiles.exoarmur.bus_calls import BusCalls

if TYPE_CHECKING:
    from typing import Literal, Unpack

    from oncemore.audit.recorder import OperationIds
    from oncemore.profiles.exoarmur.bus_calls import BusIds

#: How often a repeated "on" is written if other clients turn the switch off in between.
MAX_SWITCH_WRITES = 20


class BusControl(BusCalls):
    """The calls of `Bus` that read and write switches and approvals."""

    async def is_switch_on(self, name: str = ALL_EXECUTION, **ids: Unpack[BusIds]) -> bool:
        """Return whether a switch is on now; raise `ValueError` for a value that is neither on nor off."""
        value, _ = await self._load_switch(name, self._ids(**ids))
        return parse_switch(name, value) is not None

    async def set_switch(
        self,
        to: Literal["on", "off"],
        name: str = ALL_EXECUTION,
        *,
        reason: str,
        by: str,
        **ids: Unpack[BusIds],
    ) -> dict[str, Any]:
        """Turn a switch on or off; return its revision in the bucket and, as `on`, the state that holds.

        A repeated request (the same correlation id and value) writes nothing while the switch still has the
        requested value. If the switch was changed since, "on" is written again, because stopping twice is
        safe; "off" raises `StaleDecision`, because an old release must not undo a later stop.
        """
        if to not in ("on", "off"):
            raise UsageError(f"to is {to!r:.80}; it must be on or off")
        body = json.dumps({"on": to == "on", "by": by, "reason": reason}).encode()
        request: dict[str, Any] = {"switch_name": name, "value": to}
        correlation_id, operation_ids = ids.get("correlation_id"), self._ids(**ids)
        for _ in range(MAX_SWITCH_WRITES):
            # Without a correlation id every call is a new request; with one, its key identifies a repeat.
            key = None
            if correlation_id is not None:
                key = self._manager.idempotency_manager.compute_idempotency_key(
                    "kill_switch_update", self._tenant_id, correlation_id, request
                )
            reply, is_stored = await self._store_message(
                "KV_PUT",
                "Store kill switch state",
                f"$KV.{self._control}.{_switch_key(name)}",
                body,
                request=request,
                key=key,
                ids=operation_ids,
            )
            if is_stored:
                return {**reply, "on": to == "on"}
            # The reply is a recorded one: the switch may have been changed since it was written.
            value, revision = await self._load_switch(name, operation_ids)
            if _switch_state(name, value) == to:
                return {**reply, "seq": revision, "on": to == "on"}
            if to == "off":
                raise StaleDecision(_stale_message(name, value))
            # The revision makes another key, so that the next round writes instead of hitting the record.
            request["after"] = revision
        raise StaleDecision(
            f"other clients turned the switch {name} off {MAX_SWITCH_WRITES} times in between; "
            "turn it on again"
        )

    async def _load_switch(self, name: str, ids: OperationIds) -> tuple[bytes | None, int]:
        return await self._load_last_message(
            "KV_GET", "Get kill switch status", self._control, _switch_key(name), ids
        )

    async def get_approval(self, key: str, **ids: Unpack[BusIds]) -> Approval | None:
        """Return the approval of a key, or None."""
        data, _ = await self._load_last_message(
            "APPROVAL_CHECK", "Check approval", self._control, bucket_key("approval", key), self._ids(**ids)
        )
        return None if data is None else Approval(**json.loads(data))

    async def grant_approval(
        self, approval: Approval, *, idempotency_key: str | None = None, **ids: Unpack[BusIds]
    ) -> dict[str, Any]:
        """Write an approval into the bucket, where every attempt of its run is compared with it."""
        name = bucket_key("approval", approval.run_entity.removeprefix("run/"))
        # The whole approval is the request: another approval of the same run needs another idempotency key.
        fields = dict(approval._asdict())
        reply, _ = await self._store_message(
            "APPROVAL_GRANT",
            "Grant approval",
            f"$KV.{self._control}.{name}",
            json.dumps(fields).encode(),
            request=fields,
            key=idempotency_key,
            ids=self._ids(**ids),
        )
        return reply


def _switch_state(name: str, value: bytes | None) -> str:
    """Return "on" or "off" for the value of a switch; an empty text for any other value."""
    try:
        return "off" if parse_switch(name, value) is None else "on"
    except ValueError:
        return ""


def _stale_message(name: str, value: bytes | None) -> str:
    """Return why an old "off" is refused, and what to do next."""
    if not _switch_state(name, value):
        return f"the switch {name} was set since to {value!r:.60}, which is neither on nor off; correct it"
    switch = parse_switch(name, value) or {}
    return (
        f"nothing was released: since this request was made the switch {name} was turned on by "
        f"{switch.get('by', 'another client')}: {switch.get('reason', 'no reason given')}; "
        "give another correlation_id to release it"
    )


def _switch_key(switch: str) -> str:
    """Return the key of a switch by its name: all_execution, step:NAME or tenant:NAME."""
    return bucket_key(*switch.split(":", 1))
