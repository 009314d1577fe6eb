"""What rings pin, and what is said when it is too much."""

from __future__ import annotations

import pytest

from ferry.contract import rings


@pytest.mark.parametrize(
    ("slots", "slot_bytes", "pinned"),
    [(8, 65536, 2 * (8 * 65536 + 4096)), (1, 256, 2 * 8192), (2, 4096, 2 * 12288), (3, 1368, 2 * 12288)],
)
def test_a_link_pins_two_rings_in_whole_pages(slots: int, slot_bytes: int, pinned: int) -> None:
    assert rings.link_bytes(slots, slot_bytes) == pinned


def test_a_link_pins_what_is_lent_as_well() -> None:
    assert rings.link_bytes(8, 65536, 1 << 20) == rings.link_bytes(8, 65536) + (1 << 20)
    assert (
        rings.fitting_slots(3, 8, 65536, 6 << 20, 1 << 20) == 7
        and rings.fitting_slots(6, 8, 65536, 6 << 20, 1 << 20) == 0
    )
    text = rings.pin_error(4, 8, 65536, 8 << 20, lend=1 << 20)
    assert text is not None and "8 x 65536 bytes that lend 1048576 bytes pin 8421376 bytes" in text
    assert "(a) use 7 slots of 65536 bytes instead of 8, or lend less than 1048576 bytes; (b)" in text
    assert rings.pin_error(3, 8, 65536, 8 << 20, lend=1 << 20) is None
    assert rings.suggest_ring(8, 8, 65536, 8 << 20, 1 << 20) == "lend less than 1048576 bytes"


def test_the_defaults_need_no_privilege_for_five_links() -> None:
    each = rings.link_bytes(rings.SLOTS, rings.SLOT_BYTES)
    assert rings.PINNED_BYTES_MAX // each == 5 and rings.PINNED_BYTES_MAX < rings.LOCKED_BYTES
    assert rings.pin_error(5, rings.SLOTS, rings.SLOT_BYTES, rings.LOCKED_BYTES) is None


@pytest.mark.parametrize(
    ("links", "most", "fitting"),
    [(5, 6 << 20, 8), (11, 6 << 20, 4), (45, 6 << 20, 1), (46, 6 << 20, 0), (5, 8 << 20, 8)],
)
def test_how_many_slots_fit(links: int, most: int, fitting: int) -> None:
    assert rings.fitting_slots(links, rings.SLOTS, rings.SLOT_BYTES, most) == fitting
    for slots in range(1, rings.SLOTS + 1):
        assert (links * rings.link_bytes(slots, rings.SLOT_BYTES) <= most) == (slots <= fitting)


def test_the_remedies_are_named_in_their_order() -> None:
    text = rings.pin_error(16, 8, 65536, rings.LOCKED_BYTES)
    assert text is not None
    a, b, c = (
        text.index("(a) use 3 slots of 65536 bytes instead of 8"),
        text.index("(b) set LimitMEMLOCK"),
        text.index("(c)"),
    )
    assert a < b < c and "run the sidecar as user 0 with IPC_LOCK" in text
    assert "give the sidecar the capability" in (rings.pin_error(16, 8, 65536, rings.LOCKED_BYTES, root=True) or "")
    assert "use smaller slots than 1048576 bytes" in (rings.pin_error(16, 8, 1 << 20, rings.LOCKED_BYTES) or "")
