"""The Yahoo Streaming Benchmark: views, clicks and purchases of advertisements, and the campaigns they belong to.

Equal value for value, and type for type, to the reference generator under tests/oracle for the same arguments.
Only the requested columns are generated. Must never generate a record in a Python loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ferry.contract.errors import SpecRefused
from ferry_workloads.arrivals import Ints, KeyedArrivals, Values, picked
from ferry_workloads.ranges import ArrivalSplits

AD_TYPES = ("banner", "modal", "sponsored-search", "mail", "mobile")
EVENT_TYPES = ("view", "click", "purchase")
IP = 0x01020304

_INT, _TEXT = pa.int64(), pa.string()
SCHEMAS = {
    "ysb": pa.schema(
        [("seq", _INT), ("ts", _INT), ("user_id", _INT), ("page_id", _INT), ("ad_id", _INT)]
        + [("ad_type", _TEXT), ("event_type", _TEXT), ("ip", pa.int32())]
    ),
}
ADS_SCHEMA = pa.schema([("ad_id", _INT), ("campaign_id", _INT)])


@dataclass(frozen=True, kw_only=True)
class YsbGenerator(KeyedArrivals):
    """Stream ``ysb`` and the table of advertisements, with the reference generator's arguments.

    The keys' domain is always campaigns * ads_per_campaign; `domain` is accepted and has no effect.
    """

    title = "YSB"
    schemas = SCHEMAS

    campaigns: int = 100
    ads_per_campaign: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        self._whole("campaigns", 1, 10**8)
        self._whole("ads_per_campaign", 1, 10**8)
        if self.count_ads > 10**8:
            raise self._refused(
                "ads_per_campaign", f"at most {10**8 // self.campaigns} with {self.campaigns} campaigns"
            )

    @property
    def count_ads(self) -> int:
        """Number of advertisements."""
        return self.campaigns * self.ads_per_campaign

    def ads(self) -> pa.Table:
        """All advertisements and their campaigns (the reference's ``ysb_ads``)."""
        ad = np.arange(self.count_ads, dtype=np.int64)
        return pa.table([pa.array(ad), pa.array(ad // self.ads_per_campaign)], schema=ADS_SCHEMA)

    def schema(self, stream: str) -> pa.Schema:
        """Columns of ``ysb``."""
        if stream == "ysb_ads":
            raise SpecRefused("YSB has no stream of records 'ysb_ads': advertisements are in ads()")
        return super().schema(stream)

    def _column(self, stream: str, name: str, n: Ints) -> Values:
        return _COLUMNS[name](self, n)


_COLUMNS: dict[str, Callable[[YsbGenerator, Ints], Values]] = {
    "ts": lambda g, n: g.times(n),
    "user_id": lambda g, n: g.below(n, 101, 100),
    "page_id": lambda g, n: g.below(n, 102, 100),
    "ad_id": lambda g, n: g.skewed_keys(n, 103, g.count_ads),
    "ad_type": lambda g, n: picked(AD_TYPES, g.below(n, 104, len(AD_TYPES))),
    "event_type": lambda g, n: picked(EVENT_TYPES, g.below(n, 105, len(EVENT_TYPES))),
    "ip": lambda g, n: np.full(len(n), IP, np.int32),
}


class YsbSplits(ArrivalSplits):
    """The YSB events, generated inside the ingest tasks: ``YsbSplits(YsbGenerator(rate=1e6))``."""

    def __init__(self, generator: YsbGenerator, stream: str = "ysb") -> None:
        super().__init__(generator, stream)
