"""Checkpoint files: whole or not at all, read without trust; which run may go on from which."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from toolkit import config as configs
from toolkit.comm.transport import Nothing
from toolkit.comm.world import Solo
from toolkit.errors import UserError
from toolkit.graph import registry
from toolkit.graph.part import whole
from toolkit.train import state as states
from toolkit.train import tensorfile
from toolkit.train.recorder import RunFolder, lock
from toolkit.train.state import Identity, State
from toolkit.train.trainer import Trainer

CONFIG = configs.from_tables({"model": {"layers": 2, "hidden": 8}, "train": {"epochs": 4}})
TENSORS = {
    "a/weight": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "step": torch.tensor(3.0, dtype=torch.float64),
    "none": torch.empty(0, 4),
    "nothing": torch.from_numpy(np.zeros(0)),  # its stride is 0
    "flags": torch.tensor([True, False, True]),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "sent": torch.tensor([[2**40, -1]], dtype=torch.int64),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.safetensors"
    tensorfile.write(path, TENSORS, {"format": "ours", "note": "0" * 64})
    return path


def equal(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(
        torch.equal(tensor, two[name]) and tensor.dtype == two[name].dtype and tensor.shape == two[name].shape
        for name, tensor in one.items()
    )


def test_tensors_come_back_as_they_were(file: Path) -> None:
    tensors, metadata = tensorfile.read(file)
    assert equal(TENSORS, tensors)
    assert metadata["format"] == "ours" and metadata["note"] == "0" * 64


def test_the_library_reads_it_as_well(file: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    assert equal(TENSORS, safetensors.load_file(file))


def test_every_changed_byte_is_seen(file: Path) -> None:
    raw = file.read_bytes()
    for at in range(0, len(raw), 3):
        changed = bytearray(raw)
        changed[at] ^= 0x10
        file.write_bytes(changed)
        with pytest.raises(tensorfile.Damaged):
            tensorfile.read(file)


def test_every_truncation_and_extension_is_seen(file: Path) -> None:
    raw = file.read_bytes()
    for end in [*range(0, len(raw), 7), len(raw) - 1]:
        file.write_bytes(raw[:end])
        with pytest.raises(tensorfile.Damaged):
            tensorfile.read(file)
    file.write_bytes(raw + b"x")
    with pytest.raises(tensorfile.Damaged):
        tensorfile.read(file)


def hostile(entry: object, data: bytes = bytes(8)) -> bytes:
    """A file with a right checksum and one entry of the caller's."""
    import hashlib

    header = json.dumps({"__metadata__": {"sha256": tensorfile.ZEROS}, "x": entry}).encode()
    start = len(header).to_bytes(8, "little")
    digest = hashlib.sha256(start + header + data).hexdigest()
    return start + header.replace(tensorfile.ZEROS.encode(), digest.encode()) + data


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2**60], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]},
        {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
        {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": "ab", "data_offsets": [0, 8]},
        {"dtype": "object", "shape": [1], "data_offsets": [0, 8]},
        {"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]},
        {"shape": [2]},
        "F32",
        None,
    ],
)
def test_entries_that_lie_are_refused(tmp_path: Path, entry: object) -> None:
    path = tmp_path / "x"
    path.write_bytes(hostile(entry))
    with pytest.raises(tensorfile.Damaged):
        tensorfile.read(path)
    path.write_bytes(hostile({"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}))
    assert tensorfile.read(path)[0]["x"].tolist() == [0, 0]


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    made = Trainer(whole(registry.load(CONFIG)), CONFIG, Solo(), Nothing())
    for epoch in range(3):
        made.step(epoch)
    return made


def identity(
    config: configs.Config = CONFIG, graph: str = "digits-1", partition: str = "p", ranks: int = 1
) -> Identity:
    return Identity(config=config, graph=graph, partition=partition, ranks=ranks)


def state_of(trainer: Trainer, **values: object) -> State:
    progress = {"seed": 0, "epochs": 3}
    state = states.capture(
        trainer, Solo(), identity(), **{"progress": progress, "epochs": 3, "results": [], "seeds": 1} | values
    )
    assert state is not None
    return state


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_a_restored_trainer_goes_on_to_the_same_bits(optimizer: str, tmp_path: Path) -> None:
    config = configs.from_tables({"model": {"hidden": 8}, "train": {"optimizer": optimizer}})
    part = whole(registry.load(config))
    one, two = (Trainer(part, config, Solo(), Nothing(), seed) for seed in (0, 0))
    for epoch in range(3):
        one.step(epoch)
    state_of(one).save(tmp_path / "x.ckpt")
    one.step(3)  # what was captured does not change with the trainer
    assert states.restore(states.load(tmp_path / "x.ckpt"), two, 0, 1)
    two.step(3)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters, two.parameters, strict=True))
    assert one.ledger.sent.keys() == two.ledger.sent.keys()
    assert one.ledger.weight_gradient_bytes == two.ledger.weight_gradient_bytes


def test_a_checkpoint_is_refused_with_what_is_wrong(trainer: Trainer, tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    refusals = {
        "is damaged: its checksum": lambda: path.write_bytes(path.read_bytes()[:-9]),
        "checksum differs": lambda: path.write_bytes(path.read_bytes()[:-1] + b"\x7f"),
        "no such file": lambda: path.write_bytes(pickle.dumps({"weights": np.zeros(3)})),
        "holds no checksum": lambda: path.write_bytes((2).to_bytes(8, "little") + b"{}"),
        "calls itself 'else'": lambda: tensorfile.write(path, {}, {"format": "else", "version": "1", "state": "{}"}),
        "a checkpoint of format 2, and this bitring": lambda: tensorfile.write(
            path, {}, {"format": states.FORMAT, "version": "2", "state": "{}"}
        ),
        "its header is incomplete": lambda: tensorfile.write(path, {}, {"format": states.FORMAT, "version": "1"}),
        "its header would end": lambda: zip_file(path),
        "No such file or directory": path.unlink,
    }
    for sentence, spoil in refusals.items():
        state_of(trainer).save(path)
        states.load(path)
        spoil()
        with pytest.raises(UserError, match=rf"{path}.* {sentence}"):
            states.load(path)


def zip_file(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("weights.npy", "x")


def test_what_may_differ_and_what_may_not(trainer: Trainer, tmp_path: Path) -> None:
    state = state_of(trainer)

    def changed(**sections: dict[str, object]) -> configs.Config:
        tables = states.tables(CONFIG)
        return configs.from_tables({name: table | sections.get(name, {}) for name, table in tables.items()})

    states.check_config(state, CONFIG, tmp_path)
    states.check_config(
        state, changed(run={"timeout_s": 3}, train={"epochs": 9, "keep_checkpoints": 5, "threads": 1}), tmp_path
    )
    with pytest.raises(UserError, match=r"model.hidden was 8 and is 9; train.lr was 0.01 and is 0.1; set it as it was"):
        states.check_config(state, changed(model={"hidden": 9}, train={"lr": 0.1}), tmp_path)
    for section, table in states.tables(CONFIG).items():
        assert set(states.FREE.get(section, ())) <= table.keys(), "a key that is no more"


def test_another_graph_or_partition_is_refused(trainer: Trainer, tmp_path: Path) -> None:
    state = state_of(trainer)
    states.check_graph(state, identity(), tmp_path)
    states.check_graph(state, identity(partition="q", ranks=2), tmp_path)
    with pytest.raises(UserError, match=r"trained on the graph digits-1, and the configuration's is digits-2 now"):
        states.check_graph(state, identity(graph="digits-2"), tmp_path)
    with pytest.raises(UserError, match="the partition over 1 ranks is not the one"):
        states.check_graph(state, identity(partition="q"), tmp_path)


def test_seeds_and_epochs_that_are_done_stay_done(trainer: Trainer, tmp_path: Path) -> None:
    def check(epochs: int, seeds: int | None, **values: object) -> bool:
        config = configs.from_tables({"train": {"epochs": epochs}})
        return states.check_length(state_of(trainer, **values), config, seeds, tmp_path)

    assert not check(4, None)
    assert not check(3, None)
    assert check(5, None)
    assert check(4, 2)
    with pytest.raises(UserError, match=r"3 epochs of 4, and train.epochs is 2; give at least 3"):
        check(2, None)
    with pytest.raises(UserError, match=r"train.epochs is 5; set 4: earlier seeds ended there"):
        check(5, None, results=[{}])
    scheduled = configs.from_tables({"train": {"epochs": 5, "schedule": "cosine"}})
    with pytest.raises(UserError, match=r"falls over its 4 epochs .*'cosine'.*, and train.epochs is 5; set 4"):
        states.check_length(state_of(trainer), scheduled, None, tmp_path)
    with pytest.raises(UserError, match="its seed number 3, and --seeds is 2"):
        check(4, 2, results=[{}, {}])


def test_a_folder_without_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run folder"):
        states.newest(tmp_path / "none")
    with pytest.raises(UserError, match="holds no checkpoint to continue from"):
        states.newest(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "epoch-000001.ckpt").write_bytes(b"")
    with pytest.raises(UserError, match=r"epoch-000001.ckpt is truncated .* holds no other"):
        states.newest(tmp_path)


def test_the_newest_by_number_and_how_many_are_kept(trainer: Trainer, tmp_path: Path) -> None:
    for epochs in (2, 999_999, 1_000_000):
        state_of(trainer, epochs=epochs).save(states.checkpoint_path(tmp_path, epochs))
    state_of(trainer, epochs=1).save(states.best_path(tmp_path))
    (tmp_path / "checkpoints" / ".writing-x").touch()
    assert states.newest(tmp_path).epochs == 1_000_000
    states.prune(tmp_path, 2)
    assert {p.name for p in (tmp_path / "checkpoints").iterdir()} == {
        "epoch-999999.ckpt",
        "epoch-1000000.ckpt",
        "best.ckpt",
    }


def test_a_newer_format_is_not_stepped_over(trainer: Trainer, tmp_path: Path) -> None:
    state_of(trainer).save(states.checkpoint_path(tmp_path, 1))
    tensorfile.write(states.checkpoint_path(tmp_path, 2), {}, {"format": states.FORMAT, "version": "9", "state": "{}"})
    with pytest.raises(UserError, match="newer bitring"):
        states.newest(tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root mounts a small disk")
def test_a_full_disk_leaves_the_last_checkpoint(trainer: Trainer, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True, check=False
    )
    if mount.returncode:
        pytest.skip("no right to mount a small disk here")
    try:
        state = state_of(trainer)
        state.save(states.checkpoint_path(folder, 1))
        large = State(header=state.header, tensors=state.tensors | {"filler": torch.zeros(40_000)})
        with pytest.raises(UserError, match=r"epoch-000002.ckpt: No space left on device; what was there before stays"):
            large.save(states.checkpoint_path(folder, 2))
        assert [path.name for path in (folder / "checkpoints").iterdir()] == ["epoch-000001.ckpt"]
        assert states.newest(folder).epochs == 3
    finally:
        subprocess.run(["umount", folder], check=True)


def test_one_run_a_folder_and_the_lock_of_a_dead_process_is_free(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", CONFIG, 1, [])
    with pytest.raises(UserError, match=rf"another run is at work in .* \(process {os.getpid()} on "):
        RunFolder.reopen(tmp_path / "run")
    folder.close()
    with pytest.raises(UserError, match=r"holds a run already; .* or continue it with --resume"):
        RunFolder(tmp_path / "run", CONFIG, 1, [])
    (tmp_path / "run" / ".lock").write_text("process 1 on elsewhere\n")  # left by a process that was killed
    lock(tmp_path / "run").close()


def test_metrics_that_are_shorter_than_the_checkpoint_knows(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run", CONFIG, 1, []).close()
    folder = RunFolder.reopen(tmp_path / "run")
    with pytest.raises(UserError, match=r"metrics.jsonl is shorter than when the checkpoint was written"):
        folder.go_on(CONFIG, 1, 3, 10_000)
    folder.close()


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"can't continue in the run folder .*: No such file"):
        RunFolder.reopen(tmp_path)
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(UserError, match=r"its run.json describes no run"):
        RunFolder.reopen(tmp_path)
