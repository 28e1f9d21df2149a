"""`bitring data list`, `bitring data show`, `bitring data export`."""

from __future__ import annotations

import argparse
from pathlib import Path

from toolkit import config as configs
from toolkit.errors import UserError
from toolkit.graph import npz, registry


def run_list(args: argparse.Namespace) -> int:
    print(registry.list_text())
    return 0


def run_show(args: argparse.Namespace) -> int:
    print(registry.show_text(registry.load(configuration(str(args.name), args.set))))
    return 0


def run_export(args: argparse.Namespace) -> int:
    path = Path(args.to)
    if path.exists():
        raise UserError(f"{path} exists; name a new file")
    npz.write_npz(path, registry.load(configuration(str(args.name), args.set)))
    print(f"wrote {path}")
    return 0


def configuration(name: str, overrides: list[str]) -> configs.Config:
    """A data set by name, a .npz file, a folder, or a configuration."""
    if name.endswith(".toml"):
        return configs.load(name, overrides)
    own = name.endswith(".npz") or ("/" in name and Path(name).is_dir())
    tables: dict[str, dict[str, object]] = {"data": {"name": "file", "path": name} if own else {"name": name}}
    for override in overrides:
        section, key, value = configs.parse_override(override)
        tables.setdefault(section, {})[key] = value
    return configs.from_tables(tables)
