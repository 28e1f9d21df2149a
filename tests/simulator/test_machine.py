import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simulator.cost import PairCosts, ShortMessages, fit
from simulator.machine import (
    PRESETS,
    Host,
    Link,
    Machine,
    MachineError,
    dumps,
    measured,
    parse,
    preset,
    read,
    write,
)

DOCS = Path(__file__).parents[2] / "docs" / "machine.md"


def same(a, b):
    plain = [(m.name, m.hosts, m.switches, m.links) for m in (a, b)]
    if (a.fitted is None) != (b.fitted is None) or plain[0] != plain[1]:
        return False
    return equal(a.fitted, b.fitted)


def equal(a, b):
    if dataclasses.is_dataclass(a) and dataclasses.is_dataclass(b):
        return all(equal(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    return np.array_equal(a, b)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_round_trip(name, tmp_path):
    machine = preset(name)
    write(machine, tmp_path / "machine.toml")
    assert same(read(tmp_path / "machine.toml"), machine)
    assert [p.name for p in tmp_path.iterdir()] == ["machine.toml"]


@pytest.mark.parametrize(
    ("name", "ranks", "theta", "gamma"),
    [
        ("nvlink-4", 4, 8 / 2.4e12, 5e-6),
        ("two-hosts-10g", 2, 8 / 1e10, 3e-5),
        ("four-by-four-100g", 16, 8 / 1e11, 5e-6 + 2 * 2e-6 + 2 * 1e-6),
        ("fat-tree-64", 64, 8 / 1e11, 2 * 2e-6 + 4 * 5e-7),
        ("emulated-4", 4, 8 / 1e8, 1e-4),
    ],
)
def test_costs_of_the_farthest_pair(name, ranks, theta, gamma):
    machine = preset(name)
    costs = machine.pair_costs()
    assert machine.ranks == costs.ranks == ranks
    assert costs.theta_s_per_byte[0, -1] == pytest.approx(theta)
    assert costs.gamma_s[0, -1] == pytest.approx(gamma)
    assert (costs.theta_s_per_byte == costs.theta_s_per_byte.T).all()


def test_devices_of_one_host_are_near():
    costs = preset("four-by-four-100g").pair_costs()
    assert costs.gamma_s[0, 3] == pytest.approx(5e-6) and costs.theta_s_per_byte[0, 3] == pytest.approx(8 / 2.4e12)
    assert preset("four-by-four-100g").host_of == tuple(f"h{h}" for h in (1, 2, 3, 4) for _ in range(4))
    assert preset("four-by-four-100g").compute_rates()[0] == (1.9e13, 1.5e12)


def test_a_one_way_link():
    links = (Link(ends=("a", "b"), bandwidth_bit_s=8e6, one_way=True), Link(ends=("b", "a"), bandwidth_bit_s=8e9))
    # the second leads both ways: a -> b twice
    with pytest.raises(MachineError, match="two links lead from"):
        Machine(name="m", hosts=(Host(name="a"), Host(name="b")), links=links)
    links = (links[0], dataclasses.replace(links[1], one_way=True))
    costs = Machine(name="m", hosts=(Host(name="a"), Host(name="b")), links=links).pair_costs()
    assert costs.theta_s_per_byte[0, 1] == 1e-6 and costs.theta_s_per_byte[1, 0] == 1e-9


def test_fitted_costs_go_first():
    fitted = PairCosts(
        theta_s_per_byte=np.array([[0, 1e-9], [3e-9, 0]]), gamma_s=np.full((2, 2), 1.5e-5), low_bytes=64, high_bytes=1e6
    )
    machine = dataclasses.replace(preset("two-hosts-10g"), fitted=fitted)
    back = parse(dumps(machine))
    assert same(back, machine)
    assert back.pair_costs().theta_s_per_byte[1, 0] == 3e-9


def test_two_lines_a_pair_survive_the_file(tmp_path):
    """A calibration whose eager and rendezvous messages cost differently, written, read and used."""
    sizes = np.geomspace(1e3, 1e6, 20)
    one, two = (fit(sizes, np.where(sizes <= limit, 1e-9 * sizes + 1e-5, 2e-9 * sizes + 1e-4)) for limit in (0, 3e4))
    assert len(one.lines) == 1 and len(two.lines) == 2
    machine = measured(["a", "b"], {(0, 1): one, (1, 0): two})
    write(machine, tmp_path / "machine.toml")
    again = read(tmp_path / "machine.toml")
    assert same(again, machine) and "[fitted.short]" in (tmp_path / "machine.toml").read_text()
    assert again.fitted is not None and isinstance(again.fitted.short, ShortMessages)
    assert again.fitted.short.switch_bytes.tolist() == [[0, 0], [two.switch_bytes, 0]]
    for size in (2e3, 5e5):
        ring = again.pair_costs().ring_costs(np.full((2, 2), size))
        assert ring[0, 1] == pytest.approx(float(two.seconds(size))) and ring[1, 0] == pytest.approx(
            float(one.seconds(size))
        )
    changed = dataclasses.replace(machine, fitted=dataclasses.replace(machine.fitted, residual=np.ones((2, 2))))
    assert not same(changed, machine)


names = st.text('abcxyz"\\é -_', min_size=1, max_size=8)
bandwidths = st.one_of(st.floats(1e-3, 1e15), st.just(float("inf")))


@settings(max_examples=60, deadline=None)
@example(title='\x7f\n"', host=Host(name="\\"), bandwidth=1.0)
@given(
    title=st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    host=st.builds(
        Host,
        name=names,
        count=st.integers(1, 3),
        devices=st.integers(1, 3),
        intra_bandwidth_bit_s=bandwidths,
        intra_latency_s=st.floats(0, 1),
        nic_bandwidth_bit_s=bandwidths,
        flop_s=st.floats(0, 1e16),
    ),
    bandwidth=bandwidths,
)
def test_any_machine_round_trips(title, host, bandwidth):
    links = tuple(Link(ends=(name, "the switch"), bandwidth_bit_s=bandwidth) for name in host.names)
    machine = Machine(name=title, hosts=(host,), switches=("the switch",), links=links)
    assert same(parse(dumps(machine)), machine)


GOOD = """
version = 1
name = "two"
switches = ["tor"]
[[hosts]]
name = "h"
count = 2
nic_bandwidth_bit_s = 1e10
[[links]]
ends = ["h1", "tor"]
bandwidth_bit_s = 1e10
[[links]]
ends = ["h2", "tor"]
bandwidth_bit_s = 10_000_000_000
"""


def test_the_good_one_is_good():
    assert parse(GOOD).pair_costs().theta_s_per_byte[0, 1] == 8e-10


LINES = "fitted = {{theta_s_per_byte = [[0, 0], [0, 0]], gamma_s = [[0, 0], [0, 0]], {}}}"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version = 1", "version = 2", "version is 2; this bitring reads 1"),
        ("version = 1", "", "version is None"),
        ('name = "two"', "", "a machine needs 'name'"),
        ("switches =", "swiches =", "'swiches' is no key of a machine; did you mean 'switches'?"),
        ("nic_bandwidth_bit_s", "nic_bandwith_bit_s", "'nic_bandwith_bit_s' .* did you mean 'nic_bandwidth_bit_s'?"),
        ("count = 2", "count = 2.5", "count of a host is 2.5; it must be of type int"),
        ("count = 2", "count = true", "count of a host is True"),
        ("count = 2", "count = 0", "count of host h is 0; it must be >= 1"),
        (
            "nic_bandwidth_bit_s = 1e10",
            "nic_bandwidth_bit_s = -1",
            "host h: nic_bandwidth_bit_s is -1.0; it must be > 0",
        ),
        ("nic_bandwidth_bit_s = 1e10", "nic_bandwidth_bit_s = nan", "nic_bandwidth_bit_s is nan"),
        ("nic_bandwidth_bit_s = 1e10", "nic_latency_s = inf", "nic_latency_s is inf; it must be finite"),
        ('["h2", "tor"]', '["h2", "torr"]', "a link ends at 'torr', which is not there; did you mean 'tor'?"),
        ('["h2", "tor"]', '["h2"]', "a link has two ends, not 1"),
        ('["h2", "tor"]', '"h2"', "must be a list of names"),
        ('["h2", "tor"]', '["h2", "h2"]', "from h2 to itself"),
        ('["h2", "tor"]', '["tor", "h1"]', "two links lead from"),
        ('switches = ["tor"]', 'switches = ["tor", "h1"]', "two hosts or switches are called 'h1'"),
        ('switches = ["tor"]', 'switches = ["tor", "a/b"]', "'a/b' is no name"),
        ("bandwidth_bit_s = 10_000_000_000", "", "a link needs 'bandwidth_bit_s'"),
        ("[[hosts]]", "[hosts]", r"each written under \[\[hosts\]\]"),
        ("[[hosts]]", "[[hosts", "no TOML"),
        ("version = 1", "version = 1\nfitted = 3", r"written under \[fitted\]"),
        ("version = 1", "version = 1\nfitted = {gama_s = 1}", "did you mean 'gamma_s'?"),
        ("version = 1", "version = 1\nfitted = {gamma_s = [[0]]}", "fitted needs 'theta_s_per_byte'"),
        ("version = 1", "version = 1\nfitted = {gamma_s = [[0]], theta_s_per_byte = [[0]]}", "are of 1 ranks"),
        ("version = 1", "version = 1\nfitted = {gamma_s = [[0]], theta_s_per_byte = [[0], 1]}", "can't be used"),
        ("version = 1", f"version = 1\n{LINES.format('short = 3')}", r"written under \[fitted.short\]"),
        ("version = 1", f"version = 1\n{LINES.format('short = {}')}", "fitted needs 'switch_bytes'"),
        ("version = 1", f"version = 1\n{LINES.format('short = {swich_bytes = 1}')}", "did you mean 'switch_bytes'?"),
        ("version = 1", f"version = 1\n{LINES.format('residual = [[0]]')}", "residual must be 2 x 2"),
    ],
)
def test_refusals_are_one_sentence(old, new, message, tmp_path):
    assert old in GOOD
    path = tmp_path / "machine.toml"
    path.write_text(GOOD.replace(old, new), encoding="utf-8")
    with pytest.raises(MachineError, match=message) as caught:
        read(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_more_refusals(tmp_path):
    with pytest.raises(MachineError, match="can't be read"):
        read(tmp_path / "none.toml")
    with pytest.raises(MachineError, match="did you mean 'nvlink-4'"):
        preset("nvlink4")
    with pytest.raises(MachineError, match="no hosts"):
        Machine(name="m", hosts=())
    apart = Machine(name="m", hosts=(Host(name="h", count=2),))
    with pytest.raises(MachineError, match="no path from h1/0 to h2/0: add a link"):
        apart.topology()
    with pytest.raises(MachineError, match="no link between h/0 and h/1 has a bandwidth"):
        Machine(name="m", hosts=(Host(name="h", devices=2),)).topology()


def test_the_page_names_every_key_and_its_example_works():
    text = DOCS.read_text(encoding="utf-8")
    for kind in (Host, Link):
        for entry in dataclasses.fields(kind):
            assert f"`{entry.name}`" in text, entry.name
    for name in PRESETS:
        assert f"`{name}`" in text
    example = text.split("```toml\n")[1].split("```")[0]
    assert parse(example).topology().ranks == parse(example).ranks > 1
