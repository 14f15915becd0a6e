"""Which store a command is about: one that is there; nothing is created by looking for it."""

from __future__ import annotations

from pathlib import Path

from oncemore.errors import UsageError
from oncemore.opening import SQLITE, engine_of, settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.engine.runtime import Engine


def there(store: str | None) -> Engine:
    """Return an engine on a store that exists: as named, or as the settings have it."""
    told = settings()
    engine = engine_of(told if store is None else told._replace(store=store))
    if engine.url.startswith(SQLITE) and not Path(engine.url.removeprefix(SQLITE)).exists():
        raise UsageError(
            f"there is no store at {engine.url.removeprefix(SQLITE)}; name one with --store or ONCEMORE_STORE"
        )
    return engine
