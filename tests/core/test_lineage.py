"""Lineage ids follow from keys and digests alone."""

from __future__ import annotations

from oncemore.maintenance.lineage import entity_id, lineage


def test_the_same_work_on_the_same_bytes_has_the_same_ids_in_any_order() -> None:
    one = lineage("load", "k", "c", ["aa", "bb"], ["cc", "dd", "cc"])
    assert one == lineage("load", "k", "c", ["bb", "aa"], ["dd", "cc"])
    assert one.used == (entity_id("aa"), entity_id("bb"))
    assert len(one.derived) == len(set(one.derived)) == 4, "each of what was left, from each of what was used"
    assert len(set(one.ids)) == 1 + 2 + 2 + 4


def test_other_work_or_other_bytes_have_other_ids() -> None:
    one = lineage("load", "k", "c", ["aa"], ["bb"])
    for other in (
        lineage("save", "k", "c", ["aa"], ["bb"]),
        lineage("load", "l", "c", ["aa"], ["bb"]),
        lineage("load", "k", "d", ["aa"], ["bb"]),
    ):
        assert other.activity != one.activity
        assert other.derived != one.derived
        assert (other.used, other.generated) == (one.used, one.generated)
    assert lineage("load", "k", "c", ["aa"], ["cc"]).derived != one.derived
    assert lineage("load", "k", "c", ["cc"], ["bb"]).derived != one.derived
