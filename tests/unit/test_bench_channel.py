"""The pure parts of `bench/channel.py`: what is measured, what other programs print, and the constants it turns."""

from __future__ import annotations

import json

import pytest

from bench.parts.channel import ends, plan, rivals
from ferry.channel import frames, lanes
from ferry.channel.rdma.memory import PINNED_BYTES_MAX, RingShape
from ferry.contract import limits

WRITE_BW = """\
                    RDMA_Write BW Test
 Dual-port       : OFF          Device         : rxe0
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      1000             0.70               0.64               0.001269
---------------------------------------------------------------------------------------
"""

WRITE_LAT = """\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 64      100          105.00         900.10       130.50          140.00          20.00          300.25                  900.10
"""


@pytest.fixture
def product():
    yield
    ends.arrange(ends.Case("tcp"))
    assert (limits.SLOTS, limits.SLOT_BYTES, lanes.CREDIT_BATCH) == (64, 65536, 16) and frames.slots_of(65536) == 1


def test_what_perftest_prints_is_read_in_bytes_and_seconds():
    assert rivals.read_perftest("ib_write_bw", WRITE_BW) == {"throughput": pytest.approx(80e6)}
    found = rivals.read_perftest("ib_write_lat", WRITE_LAT)
    assert found == {"latency": pytest.approx(130.5e-6), "latency p99": pytest.approx(300.25e-6)}


@pytest.mark.parametrize("text", ["", "Couldn't connect to 10.9.0.1:5301\n", WRITE_BW.split(" 65536")[0]])
def test_a_program_without_a_result_is_a_failure_that_shows_what_it_printed(text):
    with pytest.raises(rivals.RivalFailed, match="ib_write_bw printed no result"):
        rivals.read_perftest("ib_write_bw", text)


def test_of_iperf3_the_receivers_bytes_count():
    cpu = {"host_total": 50.0, "remote_total": 99.0}
    end = {
        "sum_sent": {"bits_per_second": 9e9},
        "sum_received": {"bits_per_second": 8e9},
        "cpu_utilization_percent": cpu,
    }
    found = rivals.read_iperf3(json.dumps({"end": end}))
    assert found == {"throughput": 1e9, "sender cpu": 0.5, "receiver cpu": 0.99}


def test_no_ring_is_larger_than_a_process_may_pin_and_every_other_is_tried():
    steps = [s for s in plan.plan("guest", plan.Sizes()) if s.get("carrier") == "rdma"]
    shapes = {(s["slots"], s["slot_bytes"]) for s in steps if s["label"]["case"] == "by slots"}
    assert all(RingShape(*shape).pinned_bytes <= PINNED_BYTES_MAX for shape in shapes)
    assert len(shapes) == len(plan.SLOTS) * len(plan.SLOT_KIB) - 1 and (16, 256 << 10) not in shapes


@pytest.mark.parametrize("place", plan.PLACES)
def test_a_plan_can_be_sent_and_its_cases_can_be_made(place):
    steps = json.loads(json.dumps(plan.plan(place, plan.Sizes.quick())))
    systems = {step["label"]["system"] for step in steps}
    assert {"iperf3", "Ferry"} <= systems and ("ib_write_bw" in systems) == (place != "host")
    for step in steps:
        if step["do"] == "channel":
            ends.Case(**{k: v for k, v in step.items() if k not in ("do", "label")})


def test_slots_and_checksum_of_a_case_hold_in_the_channel(product):
    ends.arrange(ends.Case("tcp", slots=4, slot_bytes=4096, checksum=False))
    assert frames.slots_of(65536) == 16 and lanes.SendLane(lanes.Lane.BULK).credits == 4
    sealed = frames.encode((b"x",), lane=0, flags=3, job=1, total=1)[0]
    assert bytes(sealed[60:64]) == bytes(4), "the checksum was computed"
    ends.arrange(ends.Case("rdma", slots=4, slot_bytes=4096))
    assert frames.slots_of(65536) == 1 and lanes.SendLane(lanes.Lane.BULK).credits == 64
