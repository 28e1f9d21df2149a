"""Record examples/sample.npz anew: the workload of 10 epochs of digits.toml over 4 ranks of this machine
(with 100 training images a class, so that more rows travel).

    python examples/make_sample.py [FILE.npz]

What travels (messages, entries, coefficients) is the same everywhere; ranges are to rounding, seconds are this
machine's. `bitring simulate`, `tune` and `place` take the file in place of a run folder.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def record(to: Path) -> None:
    """Train in a temporary folder, keep the workload."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "toolkit.cli", "train", str(HERE / "digits.toml"), "-np", "4"]
        overrides = ["train.epochs=10", "data.train_per_class=100", f'partition.cache="{folder}/cache"']
        options = [word for override in overrides for word in ("--set", override)]
        options += ["--launcher", "mpirun", "--run-dir", str(run)]
        subprocess.run([*command, *options], check=True, cwd=HERE.parent)
        shutil.copyfile(run / "workload.npz", to)


if __name__ == "__main__":
    record(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "sample.npz")
