"""A short training on a CUDA device beside the same on the CPU: its losses, and how long an epoch takes.

Part of `python -m bench.device`. A generated graph, GraphSAGE 3 x 64, 1 and 2 ranks, float32 and 4-bit messages. Masks
and noise have the same bits on both, sums have not, so losses agree to rounding, which training enlarges.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.comm import device as devices

ROOT = Path(__file__).resolve().parent.parent
EPOCHS = 30
FARTHEST = 1e-2  # relative difference of a loss, at any epoch
CONFIG = f"""\
[data]
name = "sbm"
nodes = 20000
edges = 400000
[model]
kind = "sage"
layers = 3
norm = "layer"
[train]
epochs = {EPOCHS}
eval_every = {EPOCHS}
"""
CODECS = {"float32": ["method.codec=float32"], "4 bits": ["method.codec=quantised", "method.bits=4"]}


def compare_training(device: str = "cuda") -> list[dict[str, Any]]:
    """One record for each number of ranks and codec. RuntimeError: no device for torch, or a run that failed."""
    if device != "cpu" and (refusal := devices.missing()):
        raise RuntimeError(refusal)
    found = []
    with tempfile.TemporaryDirectory(prefix="bitring-") as folder:
        config = Path(folder, "graph.toml")
        config.write_text(CONFIG, encoding="utf-8")
        for ranks in (1, 2):
            for codec, settings in CODECS.items():
                (cpu, cpu_s), (cuda, cuda_s) = (
                    _train(config, ranks, [*settings, f"train.device={at}"]) for at in ("cpu", device)
                )
                difference = float(np.abs(cuda / cpu - 1).max())
                found.append(
                    {
                        "ranks": ranks, "codec": codec, "first_loss": float(cuda[0]), "last_loss": float(cuda[-1]),
                        "loss_difference": difference, "cpu_epoch_s": cpu_s, "cuda_epoch_s": cuda_s,
                    }
                )  # fmt: skip
    return found


def _train(config: Path, ranks: int, settings: list[str]) -> tuple[NDArray[np.float64], float]:
    """Losses of all epochs, and the median seconds of one."""
    run = config.parent / f"run-{len(list(config.parent.iterdir()))}"
    command = [sys.executable, "-m", "toolkit.cli", "train", str(config), "-np", str(ranks), "--run-dir", str(run)]
    done = subprocess.run(
        [*command, *(word for setting in settings for word in ("--set", setting))],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{ranks} ranks, {', '.join(settings)}: {done.stderr.strip() or done.returncode}")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    epochs = [line for line in lines if "train_loss" in line]
    return np.array([e["train_loss"] for e in epochs]), float(np.median([e["epoch_s"] for e in epochs]))
