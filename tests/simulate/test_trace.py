"""Traces: a list of outages, a report of one's own jobs, and what is wrong with a file that is neither."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everstep.report.fleet_report import fleet_report
from everstep.simulate.fault_classes import DAY_S, PROFILES
from everstep.simulate.trace import BadTrace, Outage, Trace, mishaps_of, read_trace
from tests.report.test_fleet import fleet, job

HEAD = "node,start_day,end_day,level,class,description\n"


def trace_of(folder: Path, text: str, name: str = "outages.csv") -> Trace:
    path = folder / name
    path.write_text(text)
    return read_trace(path)


@pytest.mark.parametrize(
    ("words", "fault_class"),
    [
        ("Hardware Failure,GPU,GPU DBE(Double Bit ECC) > Threshold", "node_fatal_hw"),
        ("Hardware Failure,Parameter Plane Cable,Link Down", "net_flap"),
        ("Hardware Failure,GPU,Silent Data Corruption", "sdc"),
        ("Software Failure,Operating System,Kernel Panic", "host_os"),
        ("Hardware Failure,GPU,GPU PCI link width low", "slow_node"),
        ("Other Failure,Change,Y-cables Taken offline", "maintenance"),
    ],
)
def test_an_outage_has_a_class_of_ours(tmp_path: Path, words: str, fault_class: str) -> None:
    made = trace_of(tmp_path, f"{HEAD}3,1.5,2.25,{words}\n")
    assert made.outages == (Outage(node=3, start_day=1.5, end_day=2.25, fault_class=fault_class),)
    assert made.nodes == 4


def test_stress_tests_of_operators_are_no_mishaps(tmp_path: Path) -> None:
    line = "3,1.5,2.25,Other Failure,Stress Test Failure,Unknown Error\n"
    assert trace_of(tmp_path, HEAD + line).outages == ()


def test_outages_keep_their_times_and_their_nodes_apart(tmp_path: Path) -> None:
    lines = "0,1.0,3.0,h,GPU,broke\n0,5.0,5.5,h,GPU,broke\n1,2.0,2.1,h,GPU,broke\n"
    made = trace_of(tmp_path, HEAD + lines)
    mishaps = [
        one
        for one in mishaps_of(made, profile=PROFILES["mature"], nodes=9, days=10, seed=1)
        if one.name == "node_fatal_hw"
    ]
    assert [(one.at_s / DAY_S, one.sound_s / DAY_S) for one in mishaps] == [
        (1.0, 2.0),
        (2.0, pytest.approx(0.1)),
        (5.0, 0.5),
    ]
    first, other, again = (one.nodes for one in mishaps)
    assert first == again != other


def test_half_of_a_trace_begins_at_its_day(tmp_path: Path) -> None:
    lines = "0,1.0,3.0,h,GPU,broke\n1,6.0,8.0,h,GPU,broke\n"
    half = trace_of(tmp_path, HEAD + lines).between(5.0, 10.0)
    assert half.outages == (
        Outage(node=1, start_day=1.0, end_day=3.0, fault_class="node_fatal_hw"),
    )


def test_a_report_of_ones_own_jobs_is_a_trace(tmp_path: Path) -> None:
    report = fleet_report(
        fleet(
            job("a", (20, "node", "n2"), (40, "device", "n1"), (60, "crash", None)),
            job("b", (30, "device_fatal", "n2")),
        )
    )
    made = trace_of(tmp_path, json.dumps(report), "report.json")
    assert [(one.node, one.fault_class) for one in made.outages] == [
        (0, "host_os"),
        (0, "node_fatal_hw"),
        (1, "node_selfheal_hw"),
    ]
    assert made.outages[0].start_day == pytest.approx(20 / DAY_S, abs=1e-6)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("name,when\n", "has no column node"),
        (f"{HEAD}x,1,2,a,b,c\n", "line 2: node is a whole number"),
        (f"{HEAD}1,2,1,a,b,c\n", "line 2: it ends before it begins"),
        (f"{HEAD}1,nan,2,a,b,c\n", "line 2: node is a whole number"),
        (f"{HEAD}1,1,inf,a,b,c\n", "line 2: node is a whole number"),
        ("{}", "no list of faults"),
        ('{"since": "2026-01-01", "faults": [5]}', "5 is no fault"),
        ('{"since": "2026-01-01", "faults": [{"class": "node", "node": "a"}]}', "None is no time"),
        ("{", "report.json"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_a_sentence(
    tmp_path: Path, text: str, why: str
) -> None:
    with pytest.raises(BadTrace, match=why):
        trace_of(tmp_path, text, "report.json")
