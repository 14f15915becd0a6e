"""Checkpoints as signed notes: their form, their signatures, and every kind of forged one."""

from __future__ import annotations

from base64 import b64decode, b64encode
from hashlib import sha256

import pytest

from oncemore.errors import LedgerMismatch
from oncemore.governance.keys import generate_key
from oncemore.governance.signed_note import (
    Checkpoint,
    compute_key_hash,
    format_checkpoint,
    format_vkey,
    is_signed_by,
    parse_note,
    sign_checkpoint,
    verify_note,
)

KEY = generate_key()
CHECKPOINT = Checkpoint(
    "oncemore/log-1", 12, sha256(b"root").digest(), at=1_789_456_123, last_seq=14, previous=9
)
NOTE = sign_checkpoint(CHECKPOINT, KEY)


def test_a_note_has_the_form_of_the_specification() -> None:
    text, lines = NOTE.split("\n\n")
    root = b64encode(CHECKPOINT.root).decode()
    assert text == f"oncemore/log-1\n12\n{root}\ntime 1789456123\nseq 14\nprevious 9"
    mark, name, data = lines.removesuffix("\n").split(" ")
    assert (mark, name) == ("—", "oncemore/log-1")
    # The key hash by hand: SHA-256 of name, newline, type and public key.
    key_hash = sha256(b"oncemore/log-1\n\x01" + KEY.public.raw).digest()[:4]
    assert b64decode(data)[:4] == key_hash
    assert KEY.public.is_valid(b64decode(data)[4:], f"{text}\n".encode())
    assert format_vkey("oncemore/log-1", KEY.public) == (
        f"oncemore/log-1+{key_hash.hex()}+{b64encode(bytes([1]) + KEY.public.raw).decode()}"
    )
    assert verify_note(NOTE, [KEY.public]) == CHECKPOINT
    assert is_signed_by(NOTE, KEY.public)


def test_every_changed_character_refuses_the_note() -> None:
    accepted = 0
    for position, character in enumerate(NOTE):
        changed = "1" if character != "1" else "2"
        forged = NOTE[:position] + changed + NOTE[position + 1 :]
        try:
            verify_note(forged, [KEY.public])
        except LedgerMismatch:
            continue
        accepted += 1
    assert accepted == 0


def test_a_signature_of_an_unknown_key_is_ignored_and_a_wrong_one_of_a_known_key_refuses() -> None:
    other = generate_key()
    text, own_line = NOTE.split("\n\n")
    other_line = sign_checkpoint(CHECKPOINT, other).split("\n\n")[1]
    both = f"{text}\n\n{other_line}{own_line}"
    assert verify_note(both, [KEY.public]) == verify_note(both, [other.public]) == CHECKPOINT
    with pytest.raises(LedgerMismatch, match="not signed by a known key"):
        verify_note(NOTE, [other.public])
    wrong = compute_key_hash("oncemore/log-1", KEY.public) + bytes(64)
    forged = f"{text}\n\n{other_line}— oncemore/log-1 {b64encode(wrong).decode()}\n"
    with pytest.raises(LedgerMismatch, match="does not fit"):
        verify_note(forged, [other.public, KEY.public])
    assert not is_signed_by(forged, KEY.public)
    # A key signs under the name of the log only: a signature for another log is not one for this.
    renamed = NOTE.replace("— oncemore/log-1 ", "— oncemore/log-2 ")
    with pytest.raises(LedgerMismatch, match="not signed"):
        verify_note(renamed, [KEY.public])


@pytest.mark.parametrize(
    "forged",
    [
        "",
        "text only\n",
        NOTE.rstrip("\n"),
        NOTE.replace("\n\n", "\n"),
        NOTE.replace("\n12\n", "\n012\n"),
        NOTE.replace("\n12\n", "\n-12\n"),
        NOTE.replace("\n12\n", "\n1e1\n"),
        NOTE.replace("time 1789456123\n", ""),
        NOTE.replace("time ", "more 1\ntime "),
        NOTE.replace("previous 9", "previous 9\nprevious 9"),
        NOTE.replace("—", "-"),
        NOTE + f"— oncemore/log-1 {b64encode(bytes(68)).decode()}\n" * 80,
        NOTE + "— oncemore/log-1 A\n",
        NOTE.replace("oncemore/log-1", "two words"),
        NOTE + "x" * 200_000 + "\n",
    ],
)
def test_a_text_of_another_form_is_not_a_checkpoint(forged: str) -> None:
    with pytest.raises(LedgerMismatch, match="this is not a checkpoint"):
        parse_note(forged)


def test_an_origin_that_no_signature_line_can_name_is_refused() -> None:
    with pytest.raises(ValueError, match="is not an origin"):
        format_checkpoint(CHECKPOINT._replace(origin="two words"))
