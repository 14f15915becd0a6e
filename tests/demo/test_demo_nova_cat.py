"""`oncemore demo nova-cat`: every line is checked, and an unexpected result is reported."""

from __future__ import annotations

import io
import sys

import pytest

from oncemore import cli
from oncemore.demo import nova_cat_demo


@pytest.mark.req("SCEN-8")
def test_the_results_are_those_of_the_document(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.run_command(["demo", "nova-cat", "--plain"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    for part in (
        "provider A 429 429 429 429 RETRYABLE_FAILURE total 1, next",
        "(no request) SKIPPED_BACKOFF",
        "SKIPPED_BACKOFF a second process",
        "provider A 200 SUCCESS ACQUIRED/VALID sha256:",
        "(no request) SKIPPED_DUPLICATE",
        "provider B stall cut 200 SUCCESS",
        "provider B 200 QUARANTINE CHECKSUM_MISMATCH",
        "QUARANTINE FITS_UNREADABLE",
        "(no request) TERMINAL_FAILURE INVALID_UUID",
        "(no request) SKIPPED_QUARANTINED",
        "providers: A {THROTTLED: 4}",
        "3 events published, each with its correlation id and none with a key",
        "All results are as expected.",
    ):
        assert part in output, part


def test_an_unexpected_result_ends_with_exit_code_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(demo: nova_cat_demo.NovaCatDemo, folder: object) -> None:
        demo.acquire_and_print({"data_product_id": "x", "provider": "A"}, "SUCCESS")

    monkeypatch.setattr(nova_cat_demo, "run_scenes", short)
    out = io.StringIO()
    assert nova_cat_demo.main(out, plain=True) == 1
    assert "1 unexpected results." in out.getvalue()


def test_without_astropy_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "astropy.io", None)
    assert cli.run_command(["demo", "nova-cat"]) == 2
    assert "pip install 'oncemore[fits]'" in " ".join(capsys.readouterr().err.split())
