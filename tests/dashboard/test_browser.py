"""The dashboard in a real browser: pages, actions, live updates, keys, accessibility, hostile texts."""

from __future__ import annotations

import re
from email.message import Message
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError

import pytest

import oncemore
from oncemore.dashboard.actions import ACTIONS
from tests.dashboard.conftest import OPERATOR, REVIEWER, VIEWER, ServedDashboard, list_paths
from tests.dashboard.sample_store import HOSTILE_TEXTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

    OpenPage = Callable[..., Page]


def read_axe() -> str:
    """Return the source of axe-core from the package that carries it."""
    module = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    return next(Path(module.__file__).parent.rglob("axe.min.js")).read_text(encoding="utf-8")


#: The rules of axe that each theme has to pass; only contrast depends on the theme.
RULES_OF_THEME = {
    "light": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"],
    "dark": {"type": "rule", "values": ["color-contrast"]},
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("theme", RULES_OF_THEME)
def test_no_page_has_an_accessibility_fault_or_a_script_error(
    stormy: ServedDashboard, open_page: OpenPage, theme: str
) -> None:
    page = open_page(stormy, color_scheme=theme, viewport={"width": 1280, "height": 900}, bypass_csp=True)
    axe, faults = read_axe(), []
    for path in list_paths(stormy):
        assert page.goto(stormy.url + path).status == 200  # type: ignore[union-attr]
        page.evaluate(axe)
        found = page.evaluate("rules => axe.run(document, {runOnly: rules})", RULES_OF_THEME[theme])
        faults += [
            f"{path}: {each['id']} at {each['nodes'][0]['target']}: {each['nodes'][0]['failureSummary']}"
            for each in found["violations"]
        ]
    assert faults == []


@pytest.mark.parametrize("width", [360, 2560])
def test_every_page_fits_its_screen(stormy: ServedDashboard, open_page: OpenPage, width: int) -> None:
    page = open_page(stormy, viewport={"width": width, "height": 800})
    wide = {}
    for path in list_paths(stormy):
        page.goto(stormy.url + path)
        wide[path] = page.evaluate("document.documentElement.scrollWidth")
    assert {path: found for path, found in wide.items() if found > width} == {}


@pytest.mark.req("DASH-8")
def test_a_run_page_tells_why_an_attempt_waited(tmp_path: Path, open_page: OpenPage, quiet_log: None) -> None:
    from oncemore.dashboard import create_app
    from tests.dashboard.conftest import serve

    headers = Message()
    headers["Retry-After"] = "82"
    busy = HTTPError("http://127.0.0.1/", 503, "busy", headers, None)
    outcomes = [ConnectionError("refused"), busy]
    policy = oncemore.Policy("polite", max_attempts=4, max_delay_s=120.0, unmatched="retry")

    @oncemore.step(effect="outbox", name="poll", policy=policy)
    def poll(day: str) -> str:
        if outcomes:
            raise outcomes.pop(0)
        oncemore.current().put(b"bytes", name="answer.bin")
        oncemore.current().emit("polled", {"day": day})
        return "done"

    with oncemore.testing.FakeClock(), oncemore.open(tmp_path / "log.db", max_inline_wait_s=120) as engine:
        run = poll.run("2026-11-17")
        app = create_app(engine)
        with serve(app) as url:
            page = open_page(ServedDashboard(app, url, None), f"/runs/{run.run_id}")  # type: ignore[arg-type]
            second = page.locator("#attempt-2").inner_text()
            whole = page.locator("main").inner_text()
    # The decision after attempt 2 is the reason for the wait before attempt 3.
    assert "attempt 3 of 4 follows in 82 s" in second
    assert "Retry-After" in second
    assert "try again in 82 s" in second
    assert "after a wait of 82 s" in page_text(whole, "Attempt 3")
    for word in ("complete", "attempt 1", "wait", "lease", "answer.bin", "polled", "Lineage", "COMMIT"):
        assert word in whole


def page_text(text: str, heading: str) -> str:
    """Return the text of a page from a heading on."""
    return text.partition(f"{heading}\n")[2]


@pytest.mark.req("DASH-10")
def test_an_opened_breaker_is_seen_within_two_seconds(changing: ServedDashboard, open_page: OpenPage) -> None:
    page = open_page(changing, "/limits")
    page.wait_for_selector("body[data-updated]")
    engine = changing.app.engine

    @oncemore.step(effect="idempotent", name="late.load", policy="kfm-rules", provider="late-provider")
    def load(item: int) -> None:
        raise oncemore.TransientError("HTTP 503")

    with engine, oncemore.testing.FakeClock():
        for item in range(4):
            load.run(item)
    card = page.locator("li.card", has_text="late-provider")
    card.wait_for(timeout=2_000)
    card.locator("text=/open/").first.wait_for(timeout=2_000)
    assert re.search(r"Half-open in \d+", card.inner_text())
    assert card.locator("time").get_attribute("datetime")


# Actions --------------------------------------------------------------------------------------------


def decide(page: Page, label: str, reason: str, **fields: str) -> str:
    """Open the form of an action, fill it in, send it, and return the notice of the next page."""
    form = page.locator("details.act", has=page.locator("summary", has_text=re.compile(f"^{label}$"))).first
    form.locator("summary").click()
    for name, value in fields.items():
        field = form.locator(f"[name={name}]")
        if field.evaluate("e => e.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
    if reason:
        form.locator("[name=reason]").fill(reason)
    form.locator("button[type=submit]").click()
    return page.locator(".notice[role=status]").first.inner_text()


@pytest.mark.req("DASH-9", "SEC-7")
def test_decisions_in_quarantine_are_made_in_the_browser(
    changing: ServedDashboard, open_page: OpenPage
) -> None:
    engine, runs = changing.app.engine, changing.runs
    page = open_page(changing, "/review")
    page.get_by_role("link", name="bank.pay").click()
    assert "no answer from the bank" in page.locator("main").inner_text()
    assert "Settled as done" in decide(page, "It took effect", "seen in the account", value='"paid"')
    page.goto(f"{changing.url}/runs/{runs.quarantined}")
    assert "Rejected" in decide(page, "Reject", "the file is broken")
    page.goto(f"{changing.url}/runs/{runs.approval}")
    assert "Approved" in decide(page, "Approve", "40 parcels, seen")
    page.goto(f"{changing.url}/escalations/{runs.escalation}")
    assert "acknowledged" in decide(page, "Acknowledge", "the council has met")
    page.goto(f"{changing.url}/runs/{runs.failed}")
    assert "Opened TICKET" in decide(page, "Escalate", "a person has to look")
    # Each decision is one entry with who, when and why.
    page.goto(f"{changing.url}/ledger")
    rows = page.locator("section:has(#decisions) tbody tr").all_inner_texts()
    found = {tuple(row.split("\t")[1:4]) for row in rows}
    assert {
        ("reviewer", "settle", "seen in the account"),
        ("reviewer", "reject", "the file is broken"),
        ("reviewer", "approve", "40 parcels, seen"),
        ("reviewer", "acknowledge", "the council has met"),
        ("reviewer", "escalate", "a person has to look"),
    } <= found
    assert engine.quarantine.list(kind="run", reason="outcome_unknown") == ()


def test_runs_are_cancelled_signalled_and_run_again(changing: ServedDashboard, open_page: OpenPage) -> None:
    engine, runs = changing.app.engine, changing.runs
    page = open_page(changing, f"/runs/{runs.waiting}", OPERATOR)
    assert "Cancelled" in decide(page, "Cancel", "not needed any more")
    assert "failed" in page.locator("h1").inner_text()
    page.goto(f"{changing.url}/runs/{runs.workflow}")
    assert "recorded" in decide(page, "Send a signal", "", signal="approved", value='"yes"')
    page.goto(f"{changing.url}/runs/{runs.failed}")
    assert "is pending" in decide(page, "Run again", "the renderer is back")

    @oncemore.step(effect="idempotent", name="tiles.render")
    def render(tile: int) -> str:
        return f"tile {tile}"

    with engine:
        oncemore.Worker(engine, [render]).run_until_idle()
        assert render(0) == "tile 0"
    page.reload()
    page.get_by_role("link", name=re.compile("^01")).last.click()
    assert "complete" in page.locator("h1").inner_text()
    assert "the renderer is back" in page.locator("main").inner_text()


def test_switches_breakers_and_cooldowns_are_changed(changing: ServedDashboard, open_page: OpenPage) -> None:
    engine = changing.app.engine
    page = open_page(changing, "/limits", OPERATOR)
    assert "is on" in decide(page, "Stop work", "the disk is full", scope="tenant", name="north")
    assert {switch.name for switch in engine.switches.status()} == {"step:legacy.sync", "tenant:north"}
    assert "is off" in decide(page, "Turn off", "repaired")
    assert "is closed" in decide(page, "Reset", "the provider is back")
    assert "can be requested again" in decide(page, "Release", "known to be there")
    assert engine.cooldowns.list() == ()


def test_a_viewer_sees_no_action_and_an_operator_no_approval(
    stormy: ServedDashboard, open_page: OpenPage
) -> None:
    page = open_page(stormy, f"/runs/{stormy.runs.approval}", VIEWER)
    assert page.locator("details.act").count() == 0
    page = open_page(stormy, f"/runs/{stormy.runs.approval}", OPERATOR)
    assert page.locator("details.act summary").all_inner_texts() == ["Reject"]
    page = open_page(stormy, f"/runs/{stormy.runs.approval}", REVIEWER)
    assert "Approve" in page.locator("details.act summary").all_inner_texts()


def test_an_operator_does_not_decide_about_sensitive_data(
    changing: ServedDashboard, open_page: OpenPage
) -> None:
    held = next(item for item in changing.app.engine.quarantine.list() if item.dataset == "burial-sites")
    page = open_page(changing, f"/review/{held.entity}", OPERATOR)
    assert "needs the role reviewer" in decide(page, "Reject", "I say so")
    assert held.id in {item.id for item in changing.app.engine.quarantine.list()}


def test_a_decision_about_an_old_state_is_refused(changing: ServedDashboard, open_page: OpenPage) -> None:
    engine, runs = changing.app.engine, changing.runs
    page = open_page(changing, f"/runs/{runs.quarantined}")
    # An open form stays as it is, while a closed one is gone with the next live update.
    page.locator("details.act summary", has_text=re.compile("^Release$")).click()
    form = page.locator("details.act[open]")
    form.locator("[name=reason]").fill("second")
    engine.quarantine.reject(f"run/{_key_of(engine, runs.quarantined)}", by="another", reason="first")
    form.locator("button[type=submit]").click()
    assert "not in quarantine any more" in page.locator(".notice[role=status]").first.inner_text()


def _key_of(engine: oncemore.Engine, run_id: str) -> str:
    from oncemore.queries.runs import find_run

    return find_run(engine.store, run_id).entity.removeprefix("run/")


# Live pages, keys, themes ---------------------------------------------------------------------------


def test_a_page_changes_by_itself_and_leaves_open_forms_alone(
    changing: ServedDashboard, open_page: OpenPage
) -> None:
    engine, runs = changing.app.engine, changing.runs
    page = open_page(changing, f"/runs/{runs.waiting}", OPERATOR)
    page.wait_for_selector("body[data-updated]")
    page.locator("details.act summary", has_text="Cancel").click()
    page.locator("details.act[open] [name=reason]").fill("half a sentence")
    with engine:
        from oncemore.control.run_decisions import cancel_recorded_run

        entity = f"run/{_key_of(engine, runs.waiting)}"
        cancel_recorded_run(engine, entity, runs.waiting, by="another", reason="first")
    page.locator("h1 .chip", has_text="failed").wait_for(timeout=60_000)
    assert page.locator("details.act[open] [name=reason]").input_value() == "half a sentence"


def test_live_updates_move_nothing_that_was_there(changing: ServedDashboard, open_page: OpenPage) -> None:
    page = open_page(changing, "/", viewport={"width": 1400, "height": 900})
    page.wait_for_selector("body[data-updated]")
    page.evaluate(
        "window.shift = 0; const add = list => list.getEntries().forEach(e => { window.shift += e.value; });"
        "new PerformanceObserver(add).observe({type: 'layout-shift', buffered: false})"
    )

    @oncemore.step(effect="pure", name="many.small")
    def work(number: int) -> int:
        return number

    before = page.evaluate("document.body.dataset.updated")
    with changing.app.engine:
        for number in range(30):
            work(number)
    page.wait_for_selector(f"body:not([data-updated='{before}'])")
    # 0.1 is what browsers call a good page; a list that grows may move what is below it a little.
    assert page.evaluate("window.shift") < 0.1


def test_pages_and_rows_are_reached_by_keys(stormy: ServedDashboard, open_page: OpenPage) -> None:
    page = open_page(stormy, "/")
    for key, path in (("r", "/runs"), ("q", "/review"), ("l", "/limits"), ("n", "/")):
        page.keyboard.press("g")
        page.keyboard.press(key)
        page.wait_for_url(stormy.url + path)
    page.goto(f"{stormy.url}/runs")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "step"
    page.locator("h1").click()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/runs/01"))
    page.keyboard.press("?")
    assert page.locator("dialog").is_visible()
    page.keyboard.press("Escape")


#: What the keyboard does: a page, the button, the fields of its form, and the word in the notice.
KEYBOARD_ACTIONS = (
    ("/runs/{unknown}", "It took effect", {"value": '"paid"', "reason": "seen"}, "Settled"),
    ("/runs/{first}", "Release", {"reason": "fine"}, "Released"),
    ("/runs/{second}", "Give more attempts", {"extra_attempts": "2", "reason": "more memory"}, "2 more"),
    ("/runs/{quarantined}", "Reject", {"reason": "broken"}, "Rejected"),
    ("/runs/{approval}", "Approve", {"reason": "40 parcels"}, "Approved"),
    ("/review", "Revoke", {"reason": "too early"}, "revoked"),
    ("/escalations/{escalation}", "Acknowledge", {"reason": "the council has met"}, "acknowledged"),
    ("/runs/{failed}", "Escalate", {"reason": "look at it"}, "Opened"),
    ("/runs/{failed}", "Run again", {"reason": "repaired"}, "pending"),
    ("/runs/{waiting}", "Cancel", {"reason": "not needed"}, "Cancelled"),
    ("/runs/{workflow}", "Send a signal", {"signal": "approved", "value": "1"}, "recorded"),
    ("/limits", "Stop work", {"scope": "tenant", "name": "north", "reason": "full"}, "is on"),
    ("/limits", "Turn off", {"reason": "repaired"}, "is off"),
    ("/limits", "Reset", {"reason": "it is back"}, "closed"),
    ("/limits", "Release", {"reason": "it is there"}, "again"),
    ("/ledger", "Verify now", {}, "being verified"),
)


@pytest.mark.req("DASH-11")
def test_every_action_is_made_without_a_mouse(changing: ServedDashboard, open_page: OpenPage) -> None:
    engine, runs = changing.app.engine, changing.runs

    @oncemore.step(effect="idempotent", name="scan.check")
    def check(page: int) -> None:
        raise oncemore.NeedsReview("UNREADABLE")

    with engine:
        names = {**runs._asdict(), "first": check.run(1).run_id, "second": check.run(2).run_id}
    page = open_page(changing, "/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    sent, last_seq = set(), engine.store.wait_for_change(0, 0.0)
    page.on("request", lambda request: sent.add(request.url.rpartition("/do/")[2]))
    for path, label, fields, notice in KEYBOARD_ACTIONS:
        page.goto(changing.url + path.format(**names))
        press_tab_until(page, f"e.matches('summary, button') && e.innerText.trim() === {label!r}")
        for name, value in fields.items():
            if not page.locator("details.act[open]").count():
                page.keyboard.press("Enter")
            press_tab_until(page, f"e.name === {name!r}")
            type_value(page, value)
        page.keyboard.press("Enter")
        shown = page.locator(".notice[role=status]").first.inner_text()
        assert notice in shown, (label, shown)
        # The log has who, when and why. An approval is an entry of its own and one of the run.
        made = [each for each in changing.app.list_decisions() if each.seq > last_seq]
        expected = [("reviewer", fields["reason"])] if "reason" in fields else []
        assert [(each.by, each.reason) for each in made] == expected * (2 if label == "Approve" else 1), label
        assert all(each.at > 1e9 for each in made)
        last_seq = engine.store.wait_for_change(0, 0.0)
    assert set(ACTIONS) <= sent


def type_value(page: Page, value: str) -> None:
    """Give the field that has the focus a value; in a list of choices, move down to it."""
    if page.evaluate("document.activeElement.tagName") != "SELECT":
        page.keyboard.press("ControlOrMeta+a")
        page.keyboard.type(value)
        return
    for _ in range(page.evaluate("document.activeElement.length")):
        if page.evaluate("document.activeElement.value") == value:
            return
        page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.value") == value


def press_tab_until(page: Page, condition: str) -> None:
    """Press Tab until the focus is on an element; every element on the way shows that it has it."""
    look = (
        "() => { const e = document.activeElement, style = getComputedStyle(e); "
        "const shows = style.outlineStyle !== 'none' && style.outlineWidth !== '0px'; "
        f"return [{condition}, shows, e.outerHTML]; }}"
    )
    for _ in range(200):
        page.keyboard.press("Tab")
        is_found, is_visible, html = page.evaluate(look)
        # Behind the last element the browser itself has the focus.
        assert is_visible or html.startswith("<body"), f"the focus does not show: {html[:200]}"
        if is_found:
            return
    raise AssertionError(f"Tab does not reach it: {condition}")


def test_the_theme_is_chosen_and_kept(stormy: ServedDashboard, open_page: OpenPage) -> None:
    page = open_page(stormy, "/", color_scheme="light")
    light = page.evaluate("getComputedStyle(document.body).color")
    page.locator("#theme").click()
    assert page.evaluate("getComputedStyle(document.body).color") != light
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_times_are_local_with_utc_on_hover(stormy: ServedDashboard, open_page: OpenPage) -> None:
    page = open_page(stormy, "/runs", timezone_id="Asia/Tokyo", locale="en-GB")
    shown = page.locator("td.when time").first
    title = shown.get_attribute("title") or ""
    assert title.endswith(" UTC")
    hour = int(title[11:13])
    assert int(re.findall(r"(\d\d):\d\d", shown.inner_text())[0]) == (hour + 9) % 24


def test_copy_buttons_copy_the_whole_id(stormy: ServedDashboard, open_page: OpenPage) -> None:
    page = open_page(stormy, "/runs", permissions=["clipboard-read", "clipboard-write"])
    page.locator("td .copy").first.click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert len(copied) == 36


def test_the_pages_work_without_scripts(stormy: ServedDashboard, open_page: OpenPage) -> None:
    page = open_page(stormy, f"/runs/{stormy.runs.retried}", java_script_enabled=False)
    assert "How it was decided" in page.locator("main").inner_text()
    assert "UTC" in page.locator("dd time").first.inner_text()


# Hostile texts --------------------------------------------------------------------------------------


def test_no_stored_text_runs_as_a_script(hostile: ServedDashboard, open_page: OpenPage) -> None:
    page = open_page(hostile, "/")
    violations: list[str] = []
    page.on(
        "console",
        lambda message: violations.append(message.text) if "Content Security" in message.text else None,
    )
    for path in list_paths(hostile):
        reply = page.goto(hostile.url + path)
        assert reply is not None
        assert reply.status == 200, path
        page.wait_for_selector("body[data-updated]")  # the live fragments as well
        assert page.evaluate("window.hacked") is None, path
        assert page.locator("main script, main iframe, main img, main [onload], main [onerror]").count() == 0
        assert page.evaluate(
            "[...document.querySelectorAll('a')].every(a => !a.href.startsWith('javascript:'))"
        )
        assert page.locator("main a[href*='javascript:']").count() == 0
    # The content policy had nothing to stop: escaping alone is enough.
    assert violations == []
    page.goto(f"{hostile.url}/runs/{hostile.runs.complete}")
    shown = page.inner_text("main")
    assert all(text in shown for text in HOSTILE_TEXTS if '"' not in text), "the texts are shown as they are"
    # Each kind of name and text was looked at, and not only left out.
    for path, part in (
        (f"/runs/{hostile.runs.program}", "nightly <script>"),
        (f"/runs/{hostile.runs.program}", "<svg onload"),
        (f"/runs/{hostile.runs.workflow}", "changed<script>"),
        ("/schedules", "yearly report<script>"),
        ("/ledger", "torn <script>"),
        ("/ledger", "operator<script>"),
        (f"/escalations/{hostile.runs.escalation}", "burial-sites<script>"),
        ("/limits", "the ledger is wrong <script>"),
    ):
        page.goto(hostile.url + path)
        assert part in page.inner_text("main"), (path, part)
