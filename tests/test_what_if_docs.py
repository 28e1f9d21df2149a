"""docs/what-if.md is what its commands print. BITRING_WRITE_GOLDEN=1 writes it anew."""

import os
import re
from pathlib import Path

import pytest

from toolkit import cli

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "what-if.md"
BLOCK = re.compile(r"```console\n\$ bitring (.*)\n((?:.*\n)*?)```\n")
COMMANDS = BLOCK.findall(PAGE.read_text(encoding="utf-8"))


def test_the_page_has_commands():
    assert len(COMMANDS) >= 5


@pytest.mark.parametrize(("command", "shown"), COMMANDS, ids=[command[:40] for command, _ in COMMANDS])
def test_a_command_prints_what_the_page_shows(command, shown, tmp_path, monkeypatch, capsys):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BITRING_CACHE", str(tmp_path / "cache"))
    args = cli.parser().parse_args(command.split())
    assert args.run(args) == 0
    printed = capsys.readouterr().out
    if os.environ.get("BITRING_WRITE_GOLDEN"):
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(
            page.replace(f"$ bitring {command}\n{shown}", f"$ bitring {command}\n{printed}"), encoding="utf-8"
        )
    else:
        assert printed == shown
