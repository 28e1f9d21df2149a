import dataclasses
import json
import zipfile

import numpy as np
import pytest

from simulator.workload import Exchange, Workload, WorkloadError, load, save


def seconds():
    names = ("encode_s", "flight_s", "central_s", "decode_s", "marginal_s")
    return {name: np.full(2, 0.1 * i) for i, name in enumerate(names)}


def sample():
    rows = np.array([[0, 3], [2, 0]])
    return Workload(
        ranks=2,
        exchanges=(
            Exchange(
                layer=1,
                direction="forward",
                row_entries=5,
                bits=np.full(5, 32, np.uint8),
                rows=rows,
                range_squared=np.arange(5.0),
                alpha_squared=np.ones(5),
                **seconds(),
            ),
            Exchange(
                layer=1,
                direction="backward",
                row_entries=5,
                bits=np.array([2, 2, 8, 8, 32], np.uint8),
                rows=rows.T,
                range_squared=np.ones(5),
                alpha_squared=np.ones(5),
                **seconds(),
            ),
        ),
        held_s=np.array([0.1, 0.2]),
        dense_s=np.ones(2),
        weight_gradient_bytes=100,
        weight_gradient_s=0.01,
        transport="ring:posted",
        graph="sample",
        notes=("made up",),
        inner=np.array([7, 5]),
    )


def test_bytes_round_each_row_up_to_whole_bytes_and_count_metadata():
    workload = sample()
    assert workload.exchanges[0].channel_bytes().tolist() == [[0, 60], [40, 0]]
    assert workload.exchanges[1].channel_bytes().tolist() == [
        [0, 2 * 6],
        [2 * 9 + 20, 0],
    ]  # 10 bits: 2 bytes, and 4 of metadata; 32: none
    assert workload.epoch_bytes() == 150


def test_it_comes_back_as_it_was(tmp_path):
    save(sample(), tmp_path / "workload.npz")
    again = load(tmp_path / "workload.npz")
    for f in dataclasses.fields(Workload):
        if f.name != "exchanges":
            assert np.array_equal(getattr(again, f.name), getattr(sample(), f.name))
    for a, b in zip(again.exchanges, sample().exchanges, strict=True):
        assert all(np.array_equal(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(Exchange))
    assert [path.name for path in tmp_path.iterdir()] == ["workload.npz"], "nothing temporary is left"


def test_nodes_of_ranks_may_be_unknown(tmp_path):
    save(dataclasses.replace(sample(), inner=None), tmp_path / "workload.npz")
    assert load(tmp_path / "workload.npz").inner is None


def rewrite(path, change):
    with np.load(path) as file:
        arrays = dict(file)
    header = json.loads(str(arrays["header"]))
    change(header, arrays)
    arrays["header"] = np.array(json.dumps(header))
    np.savez(path, **arrays)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda h, a: h.update(version=99), "version 99"),
        (lambda h, a: h.pop("graph"), "no whole workload"),
        (lambda h, a: h.update(surprise=1), "no whole workload"),
        (lambda h, a: a.pop("1.rows"), "no whole workload"),
        (lambda h, a: a.update(held_s=np.zeros(3)), "held_s has shape"),
        (lambda h, a: a.update({"1.flight_s": np.array([0.1, np.nan])}), "seconds are finite"),
        (lambda h, a: a.update(dense_s=np.array([0.1, -1.0])), "seconds are finite"),
        (lambda h, a: h["exchanges"][0].update(row_entries=0), "1 entry at least"),
        (lambda h, a: a.update({"0.bits": np.full(5, 5, np.uint8)}), "1 entry at least"),
        (lambda h, a: h["exchanges"][0].update(direction="up"), "forward or backward"),
        (lambda h, a: h.update(ranks=-1), "ranks is -1"),
        (lambda h, a: h.update(weight_gradient_s=float("nan")), "weight_gradient_s is nan"),
        (lambda h, a: h.update(weight_gradient_s="1"), "weight_gradient_s is '1'"),
        (lambda h, a: h.update(weight_gradient_bytes=-1), "weight_gradient_bytes is -1"),
        (lambda h, a: h["exchanges"][0].update(row_entries="7"), "row_entries must be a whole number"),
        (lambda h, a: a.update({"0.rows": a["0.rows"].astype(float)}), "rows counts"),
        (lambda h, a: a.update(held_s=np.array(["1", "2"])), "held_s has shape"),
        (lambda h, a: a.update(inner=np.array([7, -1])), "inner must be 2 numbers"),
        (lambda h, a: a.update(inner=np.array([7.0, 5.0])), "inner must be 2 numbers"),
        (lambda h, a: a.update({"0.rows": -a["0.rows"]}), "empty diagonal"),
        (lambda h, a: a.update({"0.rows": a["0.rows"] + 1}), "empty diagonal"),
        (lambda h, a: a.update({"0.range_squared": np.ones(4)}), "4 entries for 5 messages"),
    ],
)
def test_what_is_not_whole_is_refused(tmp_path, change, sentence):
    path = tmp_path / "workload.npz"
    save(sample(), path)
    rewrite(path, change)
    with pytest.raises(WorkloadError, match=sentence):
        load(path)


def test_foreign_and_damaged_files_are_refused(tmp_path):
    path = tmp_path / "workload.npz"
    path.write_bytes(b"not a zip")
    with pytest.raises(WorkloadError):
        load(path)
    save(sample(), path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(WorkloadError):
        load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.npy", "junk")
    with pytest.raises(WorkloadError):
        load(path)
    with pytest.raises(WorkloadError):
        load(tmp_path / "absent.npz")


def test_the_simulator_needs_neither_torch_nor_mpi():
    import subprocess
    import sys

    code = "import sys, simulator.workload; sys.exit(bool({'torch', 'mpi4py', 'toolkit'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
