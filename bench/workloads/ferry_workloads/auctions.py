"""The process of the NEXMark queries about closed auctions, written as a user's process: the winning bids are Q9.

Q4 and Q6 are averages of its rows. The lines of this file count as lines of these queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

import ferry

AUCTION = ("ts", "expires", "reserve", "seller", "category")
BID = ("price", "ts", "bidder", "seq")


def _ints(*names: str) -> pa.Schema:
    return pa.schema([(name, pa.int64()) for name in names])


def _arrays(batch: pa.RecordBatch) -> list[npt.NDArray[np.int64]]:
    """Columns; 0 for null."""
    return [column.fill_null(0).to_numpy(zero_copy_only=False) for column in batch.columns]


@dataclass
class WinningBids(ferry.Process):
    """Emits the best valid bid of each auction when the auction closes. Side 0: auctions by id, side 1: bids by auction.

    A bid is valid from the auction's time until before its expiry, if it reaches the reserve. The highest price wins, then
    the earliest time, then the first arrival. The state of a known auction is its best bid. Bids that arrive before their
    auction are kept until the watermark has passed the auction's possible time.
    """

    tables = {"auction": ferry.StateTable(_ints(*AUCTION)), "bid": ferry.StateTable(_ints(*BID), pa.int64())}  # noqa: RUF012
    output = _ints("id", "seller", "category", "closed_at", "price", "bidder", "bid_ts", "bid_seq")

    def process(self, work: ferry.Work) -> None:
        """Process auctions, then bids; then close the expired auctions."""
        new = work.rows(0).select(AUCTION)
        timely = pc.greater(new.column("expires"), work.low)
        key, new = work.key_of(0)[timely.to_numpy(zero_copy_only=False)], new.filter(timely)
        work.late(work.key_of(0).size - key.size)
        work.put("auction", key, new)
        work.set_timer(key, new.column("expires"))
        auction, kept = work.get("auction"), work.read("bid")
        known = auction.column("expires").is_valid().to_numpy(zero_copy_only=False)
        opens, expires, reserve, seller, category = _arrays(auction)
        key, old = np.concatenate([kept.key, work.key_of(1)]), kept.key.size
        bids = pa.concat_batches([kept.values, work.rows(1).select(BID)])
        price, ts, bidder, seq = _arrays(bids)
        valid = known[key] & (ts >= opens[key]) & (ts < expires[key]) & (price >= reserve[key])
        order = np.lexsort((seq, ts, -price, ~valid, key))
        best = order[np.diff(key[order], prepend=-1) > 0]
        best = best[valid[best]]
        stays = waits = ~known[key] & (ts >= work.watermark)
        work.late((~known[key] & (ts < work.low))[old:].sum())
        work.set_timer(key[waits], ts[waits] + 1)
        closed = known & (expires <= work.watermark)
        sold, stays = best[closed[key[best]]], stays.copy()
        stays[best] = ~closed[key[best]]
        added, gone = old + np.flatnonzero(stays[old:]), np.flatnonzero(~stays[:old])
        work.put("bid", key[added], bids.take(pa.array(added)), seq[added])
        work.remove("bid", key[gone], seq[gone])
        work.remove("auction", np.flatnonzero(closed))
        of = key[sold]
        won = [work.keys.column(0).take(pa.array(of)), seller[of], category[of], expires[of], price[sold], bidder[sold]]
        work.emit(of, dict(zip(self.output.names, [*won, ts[sold], seq[sold]], strict=True)))
