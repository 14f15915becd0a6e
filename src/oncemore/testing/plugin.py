"""The pytest plugin with the fixtures of the package.

pytest loads this module in every project that has oncemore installed, so it imports the rest of the package
only when a fixture is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.testing.clock import FakeClock


@pytest.fixture
def instant_retries() -> Iterator[FakeClock]:
    """Let every wait of oncemore end at once; `instant_retries.delays` has the planned delays."""
    # Here, so that projects that do not use the fixture do not load oncemore.
    from oncemore.testing import instant_waits

    with instant_waits() as clock:
        yield clock
