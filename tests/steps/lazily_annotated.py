"""Functions whose annotations are texts, some of which only a type checker can resolve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import oncemore  # noqa: TC001 - here at run time

if TYPE_CHECKING:
    from decimal import Decimal

    from oncemore import Secret


@dataclass
class Receipt:
    number: int


def as_text(x: int, token: oncemore.Secret) -> int:
    return x


def optional(x: int, token: oncemore.Secret | None = None) -> int:
    return x


def only_for_the_checker(x: int, token: Secret, amount: Decimal | None = None) -> int:
    return x


def pays(amount: Decimal | None = None) -> Receipt:
    return Receipt(7)


def promises(amount: int) -> Decimal:
    return amount  # type: ignore[return-value]
