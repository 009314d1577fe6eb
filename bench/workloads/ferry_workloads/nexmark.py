"""NEXMark: persons, auctions and bids of an online auction house.

Equal value for value, and type for type, to the reference generator under tests/oracle for the same arguments.
Only the requested columns are generated. Must never generate a record in a Python loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from ferry.kernels import draws
from ferry_workloads.arrivals import Ints, KeyedArrivals, Values, picked, text
from ferry_workloads.ranges import ArrivalSplits

FIRST_PERSON = FIRST_AUCTION = 1000
FIRST_CATEGORY, CATEGORIES = 10, 5
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = (
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland"),
    *("Bend", "Redmond", "Seattle", "Kent", "Cheyenne"),
)
FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
NAMES = tuple(f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES)
PERSON_BYTES, AUCTION_BYTES = 206, 269
EMAIL_BYTES, CARD_BYTES, STATE_BYTES, ITEM_BYTES, DESCRIPTION_BYTES = 17, 19, 2, 16, 64

_INT, _TEXT = pa.int64(), pa.string()
SCHEMAS = {
    "person": pa.schema(
        [("seq", _INT), ("ts", _INT), ("id", _INT), ("name", _TEXT), ("email_address", _TEXT), ("credit_card", _TEXT)]
        + [("city", _TEXT), ("state", _TEXT), ("extra", _TEXT)]
    ),
    "auction": pa.schema(
        [("seq", _INT), ("ts", _INT), ("id", _INT), ("item_name", _TEXT), ("description", _TEXT)]
        + [("initial_bid", _INT), ("reserve", _INT), ("expires", _INT), ("seller", _INT), ("category", _INT)]
        + [("extra", _TEXT)]
    ),
    "bid": pa.schema([("seq", _INT), ("ts", _INT), ("auction", _INT), ("bidder", _INT), ("price", _INT)]),
}


@dataclass(frozen=True, kw_only=True)
class NexmarkGenerator(KeyedArrivals):
    """Streams ``person``, ``auction`` and ``bid``, with the reference generator's arguments."""

    title = "NEXMark"
    schemas = SCHEMAS

    proportions: str = "1,3,46"
    """persons, auctions and bids in every round of events"""
    in_flight: int = 100
    """number of newest auctions for bids that are not on the hot auction"""
    active_people: int = 1000
    lead: int = 10
    """greatest distance of a reference ahead of the newest id"""
    hot_auction: int = 2
    """P(hot) = 1 - 1 / hot_auction; the same for sellers and bidders"""
    hot_seller: int = 4
    hot_bidder: int = 4
    valid_refs: bool = False
    """limit every reference to existing entities"""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts = self.proportions.split(",") if isinstance(self.proportions, str) else []
        if len(parts) != 3 or not all(v.strip().isdecimal() for v in parts) or not 0 < sum(map(int, parts)) < 2**31:
            raise self._refused(
                "proportions", "three whole numbers, not all 0, for person, auction, bid, as in '1,3,46'"
            )
        for name in ("in_flight", "lead"):
            self._whole(name, 0, 2**53)
        for name in ("active_people", "hot_auction", "hot_seller", "hot_bidder"):
            self._whole(name, 1, 2**53)
        if not isinstance(self.valid_refs, bool):
            raise self._refused("valid_refs", "True or False")

    @cached_property
    def mix(self) -> tuple[int, int, int]:
        """Persons, auctions and bids of a round."""
        p, a, b = (int(v) for v in self.proportions.split(","))
        return p, a, b

    def read(self, stream: str, start: int, stop: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """The stream's records among arrivals start .. stop - 1 of all three streams, in order of arrival."""
        if not self.in_order:
            return super().read(stream, start, stop, columns)
        self.check(start, stop)
        self.schema(stream)
        n = draws.of_kind_in_order(start, stop, sum(self.mix), *self._kinds(stream))
        return self._batch(stream, n, n, columns)

    def _share(self, stream: str, first: int, ids: Ints) -> tuple[Ints, Ints]:
        return draws.of_kind(ids, first, sum(self.mix), *self._kinds(stream))

    def _column(self, stream: str, name: str, n: Ints) -> Values:
        return _COLUMNS[stream][name](self, n)

    def _kinds(self, stream: str) -> tuple[int, int]:
        """Positions [low, high) of a stream's events in a round."""
        p, a, b = self.mix
        return {"person": (0, p), "auction": (p, p + a), "bid": (p + a, p + a + b)}[stream]

    # ------------------------------------------------------------------------------------------- values of columns

    def _price(self, n: Ints, field: int) -> Ints:
        """Log-uniform between 100 and 10^8 cents."""
        x = draws.unit(n, np.uint64(self.seed), field)
        return np.round(10.0 ** (x * 6.0) * 100.0).astype(np.int64)

    def _person_ref(self, n: Ints, hot: int, offset: int, field: int) -> Ints:
        if self.keys == "uniform":
            ref = self.below(n, field + 2, self.domain)
        else:
            ref = draws.person_refs(
                n, np.uint64(self.seed), field, *self.mix, self.active_people, self.lead, hot, offset
            )
        if self.valid_refs:
            ref = np.minimum(ref, draws.newest_persons(n, *self.mix))
        return FIRST_PERSON + ref

    def _letters(self, n: Ints, field: int, lengths: Ints) -> pa.Array:
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        data = np.empty(offsets[-1], np.uint8)
        draws.letters(n, np.uint64(self.seed), field, offsets, lengths, data)
        return text(offsets, data)

    def _word(self, n: Ints, field: int, length: int) -> pa.Array:
        return self._letters(n, field, np.full(len(n), length, np.int64))

    def _person_id(self, n: Ints) -> Ints:
        newest = self.below(n, 1, self.domain) if self.keys == "uniform" else draws.newest_persons(n, *self.mix)
        return FIRST_PERSON + newest

    def _which_name(self, n: Ints) -> Ints:
        return self.below(n, 2, len(FIRST_NAMES)) * len(LAST_NAMES) + self.below(n, 3, len(LAST_NAMES))

    def _email(self, n: Ints) -> pa.Array:
        data = np.tile(np.frombuffer(b"_______@_____.com", np.uint8), len(n))
        at, seed = np.arange(len(n) + 1) * EMAIL_BYTES, np.uint64(self.seed)
        draws.letters(n, seed, 4, at, np.full(len(n), 7), data)
        draws.letters(n, seed, 5, at + 8, np.full(len(n), 5), data)
        return text(at, data)

    def _card(self, n: Ints) -> pa.Array:
        data = np.full((len(n), CARD_BYTES), ord(" "), np.uint8)
        for part in range(4):
            number = self.below(n, 6 + part, 10_000)
            for digit in range(4):
                data[:, 5 * part + digit] = number // 10 ** (3 - digit) % 10 + ord("0")
        return text(np.arange(len(n) + 1) * CARD_BYTES, data)

    def _person_extra(self, n: Ints) -> pa.Array:
        """Filler that extends the record to PERSON_BYTES."""
        names = np.array([len(v) for v in NAMES])[self._which_name(n)]
        cities = np.array([len(v) for v in CITIES])[self.below(n, 10, len(CITIES))]
        used = 16 + EMAIL_BYTES + CARD_BYTES + STATE_BYTES
        return self._letters(n, 12, PERSON_BYTES - used - names - cities)

    def _auction_id(self, n: Ints) -> Ints:
        newest = self.below(n, 21, self.domain) if self.keys == "uniform" else draws.newest_auctions(n, *self.mix)
        return FIRST_AUCTION + newest

    def _expires(self, n: Ints) -> Ints:
        ts = self.times(n)
        horizon = self.times(n + self.in_flight * sum(self.mix) // max(self.mix[1], 1)) - ts
        return ts + 1 + draws.below_each(n, np.uint64(self.seed), 24, np.maximum(2 * horizon, 1))

    def _bid_auction(self, n: Ints) -> Ints:
        if self.keys == "nexmark":
            seed = np.uint64(self.seed)
            ref = draws.auction_refs(n, seed, 41, *self.mix, self.in_flight, self.lead, self.hot_auction)
        else:
            ref = self.skewed_keys(n, 43, self.domain)
        if self.valid_refs:
            ref = np.minimum(ref, draws.newest_auctions(n, *self.mix))
        return FIRST_AUCTION + ref


_COLUMNS: dict[str, dict[str, Callable[[NexmarkGenerator, Ints], Values]]] = {
    "person": {
        "ts": lambda g, n: g.times(n),
        "id": NexmarkGenerator._person_id,
        "name": lambda g, n: picked(NAMES, g._which_name(n)),
        "email_address": NexmarkGenerator._email,
        "credit_card": NexmarkGenerator._card,
        "city": lambda g, n: picked(CITIES, g.below(n, 10, len(CITIES))),
        "state": lambda g, n: picked(STATES, g.below(n, 11, len(STATES))),
        "extra": NexmarkGenerator._person_extra,
    },
    "auction": {
        "ts": lambda g, n: g.times(n),
        "id": NexmarkGenerator._auction_id,
        "item_name": lambda g, n: g._word(n, 26, ITEM_BYTES),
        "description": lambda g, n: g._word(n, 27, DESCRIPTION_BYTES),
        "initial_bid": lambda g, n: g._price(n, 22),
        "reserve": lambda g, n: g._price(n, 22) + g._price(n, 23),
        "expires": NexmarkGenerator._expires,
        "seller": lambda g, n: g._person_ref(n, g.hot_seller, 0, 31),
        "category": lambda g, n: FIRST_CATEGORY + g.below(n, 25, CATEGORIES),
        "extra": lambda g, n: g._word(n, 28, AUCTION_BYTES - 56 - ITEM_BYTES - DESCRIPTION_BYTES),
    },
    "bid": {
        "ts": lambda g, n: g.times(n),
        "auction": NexmarkGenerator._bid_auction,
        "bidder": lambda g, n: g._person_ref(n, g.hot_bidder, 1, 51),
        "price": lambda g, n: g._price(n, 44),
    },
}


class NexmarkSplits(ArrivalSplits):
    """A NEXMark stream, generated inside the ingest tasks: ``NexmarkSplits(NexmarkGenerator(rate=1e5), "bid")``."""
