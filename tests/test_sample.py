"""The shipped workload is what its script records."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from simulator import workload as workloads

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.timeout(200)
def test_the_sample_is_what_its_script_records(tmp_path):
    """What travels, to the message; ranges to what the rounding of other processors does to ten epochs."""
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "examples/make_sample.py", str(tmp_path / "sample.npz")],
        env=os.environ | root | {"PATH": path},
        cwd=EXAMPLES.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shipped, made = workloads.load(EXAMPLES / "sample.npz"), workloads.load(tmp_path / "sample.npz")
    for name in ("ranks", "transport", "graph", "notes", "weight_gradient_bytes"):
        assert getattr(shipped, name) == getattr(made, name)
    assert len(shipped.exchanges) == len(made.exchanges) == 4
    for one, two in zip(shipped.exchanges, made.exchanges, strict=True):
        assert (one.layer, one.direction, one.row_entries) == (two.layer, two.direction, two.row_entries)
        assert (one.rows == two.rows).all() and (one.bits == two.bits).all() and one.rows.sum() > 100
        np.testing.assert_allclose(one.alpha_squared, two.alpha_squared, rtol=1e-6)
        both = (one.range_squared > 0) & (two.range_squared > 0)
        assert np.median(np.abs(np.log(one.range_squared[both] / two.range_squared[both]))) < 0.05 and both.mean() > 0.5
        for seconds in (two.encode_s, two.central_s, two.decode_s):
            assert (seconds > 0).all()
