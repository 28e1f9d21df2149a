"""`bitring validate`: simulated epochs beside real ones."""

import json
import os
import shutil
import statistics
from pathlib import Path

import pytest

from bench import fidelity
from bench.netlab import lab
from toolkit import cli
from toolkit.commands import validate

USABLE = os.name == "posix" and os.geteuid() == 0 and Path("/dev/net/tun").exists() and shutil.which("ip")
DATA = os.environ.get("BITRING_DATA", "")
RESULTS = [
    {"network": "alike", "graph": "g", "kind": "gcn", "tau": 1.0, "methods": [
        {"method": "float32", "measured_s": 1.0, "predicted_s": 1.1},
        {"method": "2 bits", "measured_s": 0.5, "predicted_s": 0.49},
    ]},
    {"network": "capped", "graph": "g", "kind": "gcn", "tau": 0.5, "methods": [
        {"method": "float32", "measured_s": 2.0, "predicted_s": 2.0},
    ]},
]  # fmt: skip


def test_a_capped_nic_is_described_as_a_link_that_pairs_share():
    capped = fidelity.described(fidelity.networks()["capped"])
    assert [host.nic_bandwidth_bit_s < 1e9 for host in capped.hosts] == [False, False, True, False]
    assert len(capped.topology().devices) == 4


def main(words):
    with pytest.raises(SystemExit) as left:
        cli.main(words)
    return left.value.code


def test_errors_are_relative_to_what_was_measured():
    told = validate.summary(RESULTS)
    assert told == {"epochs": 3, "median_error": pytest.approx(0.02), "p95_error": pytest.approx(0.1),
                    "tau": 0.75, "least_tau": 0.5}  # fmt: skip
    lines = validate.describe(RESULTS[0]).splitlines()
    assert lines[0] == "alike, g, gcn: tau 1.00"
    assert "+10.0%" in lines[-2] and "-2.0%" in lines[-1]


def test_the_95th_percentile_of_twenty_is_the_nineteenth():
    methods = [{"method": str(i), "measured_s": 1.0, "predicted_s": 1 + i / 100} for i in range(1, 21)]
    assert validate.summary([{"tau": 1.0, "methods": methods}])["p95_error"] == pytest.approx(0.19)


def test_tau_counts_only_what_differs_by_five_per_cent():
    assert fidelity.tau([1.0, 1.01, 2.0], [1.2, 1.1, 3.0]) == 1.0
    assert fidelity.tau([1.0, 1.5, 2.0], [1.0, 3.0, 2.0]) == pytest.approx(1 / 3)
    assert fidelity.tau([1.0, 1.0], [2.0, 1.0]) == 1.0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--networks", "moon"], "--networks moon: there are alike, unequal, capped"),
        (["--repeats", "0"], "--repeats 0; give 1 or more epochs"),
    ],
)
def test_refusals(words, sentence, capsys):
    assert main(["validate", *words]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.skipif(not USABLE, reason="needs root, /dev/net/tun and iproute2")
@pytest.mark.skipif(lab.state_folder().exists(), reason="an emulated network is up already")
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun")
@pytest.mark.skipif(not Path(DATA, "cora").is_dir(), reason="needs $BITRING_DATA")
@pytest.mark.timeout(300)
def test_a_real_network(tmp_path, capfd):
    picture = tmp_path / "scatter.png"
    words = ["--networks", "alike", "--graphs", "cora", "--kinds", "gcn", "--repeats", "3", "--json"]
    assert main(["validate", *words, "--picture", str(picture)]) == 0
    out = capfd.readouterr().out
    told = json.loads(out[out.index("{") :])
    methods = told["results"][0]["methods"]
    assert len(methods) == len(fidelity.METHODS)
    off = [abs(one["predicted_s"] / one["measured_s"] - 1) for one in methods]
    assert told["median_error"] == pytest.approx(statistics.median(off))
    # Small epochs on a busy machine are noisy: only an error of modelling is this large.
    assert told["median_error"] < 0.5
    assert picture.stat().st_size > 10_000
