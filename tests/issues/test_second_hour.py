"""What a newcomer stumbled over in the second hour, one test for each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import oncemore

if TYPE_CHECKING:
    from pathlib import Path


# Typed arguments ----------------------------------------------------------------------------------------


@dataclass
class Parcel:
    number: str
    weights: list[float] = field(default_factory=list)


def test_newcomer_passes_a_dataclass_to_a_step(tmp_path: Path) -> None:
    shipped = []

    @oncemore.step(effect="pure")
    def pack(number: str) -> Parcel:
        return Parcel(number, [1.5])

    @oncemore.step(effect="idempotent")
    def ship(parcel: Parcel) -> str:
        shipped.append(parcel)
        return f"label of {parcel.number}"

    with oncemore.open(tmp_path / "log.db") as engine:
        parcel = pack("A-17")
        ship.submit(parcel)
        oncemore.Worker(engine, [ship]).run_until_idle()
        assert shipped == [Parcel("A-17", [1.5])]
        assert ship(pack("A-17")) == "label of A-17"
        assert len(shipped) == 1
