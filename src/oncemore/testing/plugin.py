"""The pytest plugin: fixtures that come with the package.

pytest loads this in every project that has oncemore installed, so it imports nothing of ours until a
fixture is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.testing.clock import FakeClock


@pytest.fixture
def instant_retries() -> Iterator[FakeClock]:
    """Every wait of oncemore ends at once; `instant_retries.delays` holds what would have been waited."""
    from oncemore.testing import instant

    with instant() as clock:
        yield clock
