"""Lineage ids depend only on keys and digests."""

from __future__ import annotations

from oncemore.lineage.ids import derive_lineage, entity_id


def test_the_same_work_on_the_same_bytes_has_the_same_ids_in_any_order() -> None:
    one = derive_lineage("load", "k", "c", ["aa", "bb"], ["cc", "dd", "cc"])
    assert one == derive_lineage("load", "k", "c", ["bb", "aa"], ["dd", "cc"])
    assert one.used == (entity_id("aa"), entity_id("bb"))
    assert len(one.derived) == len(set(one.derived)) == 4, "each of what was left, from each of what was used"
    assert len(set(one.all_ids)) == 1 + 2 + 2 + 4


def test_other_work_or_other_bytes_have_other_ids() -> None:
    one = derive_lineage("load", "k", "c", ["aa"], ["bb"])
    for other in (
        derive_lineage("save", "k", "c", ["aa"], ["bb"]),
        derive_lineage("load", "l", "c", ["aa"], ["bb"]),
        derive_lineage("load", "k", "d", ["aa"], ["bb"]),
    ):
        assert other.activity != one.activity
        assert other.derived != one.derived
        assert (other.used, other.generated) == (one.used, one.generated)
    assert derive_lineage("load", "k", "c", ["aa"], ["cc"]).derived != one.derived
    assert derive_lineage("load", "k", "c", ["cc"], ["bb"]).derived != one.derived
