"""All pages, and the navigation between them."""

from __future__ import annotations

from oncemore._values import Value
from oncemore.dashboard.pages import RUN_PAGES
from oncemore.dashboard.study_pages import STUDY_PAGES
from oncemore.dashboard.system_pages import SYSTEM_PAGES


class NavigationEntry(Value):
    """An entry of the navigation; `key` is the letter that opens it after `g`."""

    section: str
    path: str
    label: str
    key: str


PAGES = (*RUN_PAGES, *SYSTEM_PAGES, *STUDY_PAGES)
NAVIGATION = (
    NavigationEntry("now", "/", "Now", "n"),
    NavigationEntry("runs", "/runs", "Runs", "r"),
    NavigationEntry("review", "/review", "Quarantine", "q"),
    NavigationEntry("limits", "/limits", "Limits", "l"),
    NavigationEntry("schedules", "/schedules", "Schedules", "s"),
    NavigationEntry("policies", "/policies", "Policies", "p"),
    NavigationEntry("energy", "/energy", "Energy", "y"),
    NavigationEntry("what-if", "/what-if", "What if", "w"),
    NavigationEntry("ledger", "/ledger", "Ledger", "e"),
    NavigationEntry("categories", "/categories", "Categories", "c"),
)
