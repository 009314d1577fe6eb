"""Sum and number of integers, for a mean: two words of state that always suffice.

    sum      modulo 2^64
   number   in the low CARRY_BITS; above them, signed, how often the sum has overflowed 64 bits

While the carries fit, which is up to 2^86, the sum is exact. Beyond that it becomes a double, and the number is alone
in its word: bit OVERFLOWED + 1 + c of the flags marks this, where the sum is column c. States of older releases, whose
sum never overflowed 64 bits, have the same form.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ferry.kernels.grouping import CARRY_BITS


def plain_sums(state: Sequence[pa.Array], doubled: npt.NDArray[np.bool_]) -> list[pa.Array]:
    """Both words as columns of sums in double precision, and of numbers; `doubled`: which sums are doubles."""
    low, packed = (column.to_numpy(zero_copy_only=True) for column in state)
    sums = (packed >> CARRY_BITS) * 2.0**64 + low
    counts = np.where(doubled, packed, packed & ((1 << CARRY_BITS) - 1))
    return [pa.array(np.where(doubled, low.view(np.float64), sums)), pa.array(counts)]
