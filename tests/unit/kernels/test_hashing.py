"""The key hash and the key encoding are fixed for ever: vectors, a reference in plain Python, round trips."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.kernels import hashing, row_codec

MASK = (1 << 64) - 1


def mix(x: int) -> int:
    x &= MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def encode(key: tuple) -> bytes:
    out = b""
    for element in key:
        if isinstance(element, int):
            out += b"\x01" + element.to_bytes(8, "little", signed=True)
        else:
            text = element.encode()
            out += b"\x02" + len(text).to_bytes(4, "little") + text
    return out


def hash_reference(data: bytes) -> int:
    h = mix(len(data))
    for at in range(0, len(data), 8):
        h = mix(h ^ int.from_bytes(data[at : at + 8], "little"))
    return h


def test_vectors_of_integer_keys() -> None:
    values = np.array([0, 1, -1, 42, 2**63 - 1, -(2**63)], np.int64)
    assert hashing.hash_ints(values).tolist() == [
        0,
        0x5692161D100B05E5,
        0xB4D055FCF2CBBD7B,
        0xA759EA27D4727622,
        0x5A682AFE7965DEBD,
        0x25C26EA579CEA98A,
    ]


def test_vectors_of_encoded_keys() -> None:
    offsets, data = row_codec.encode_rows(
        [pa.array(["", "ferry", "Grüße aus dem Hafen"]), pa.array([0, -1, 7])], ["string", "int"]
    )
    assert data[: offsets[1]].tobytes().hex() == "0200000000010000000000000000"
    assert data[offsets[1] : offsets[2]].tobytes().hex() == "0205000000666572727901ffffffffffffffff"
    assert [f"{h:016x}" for h in hashing.hash_bytes(offsets, data).tolist()] == [
        "c7ef1b00eac984ee",
        "fd7be3934e99fb0e",
        "92851572159fc0ce",
    ]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=20), st.integers(-(2**63), 2**63 - 1), st.text(max_size=3)), max_size=20))
def test_encoding_matches_the_reference_and_comes_back(keys: list) -> None:
    arrays = [pa.array([k[i] for k in keys], t) for i, t in enumerate((pa.string(), pa.int64(), pa.string()))]
    kinds = ["string", "int", "string"]
    offsets, data = row_codec.encode_rows(arrays, kinds)
    encoded = [data[offsets[i] : offsets[i + 1]].tobytes() for i in range(len(keys))]
    assert encoded == [encode(k) for k in keys]
    assert hashing.hash_bytes(offsets, data).tolist() == [hash_reference(e) for e in encoded]
    assert [a.to_pylist() for a in row_codec.decode_rows(offsets, data, kinds)] == [a.to_pylist() for a in arrays]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=50))
def test_integer_hash_is_splitmix_finaliser(values: list) -> None:
    assert hashing.hash_ints(np.array(values, np.int64)).tolist() == [mix(v) for v in values]
