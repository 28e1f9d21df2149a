"""`bitring config`, `methods`, `doctor` and `check`."""

from __future__ import annotations

import argparse

from toolkit import config as configs
from toolkit import report
from toolkit.methods import TABLE


def run_config(args: argparse.Namespace) -> int:
    print(configs.describe())
    return 0


def run_methods(args: argparse.Namespace) -> int:
    rows = [[row.name, ", ".join(row.transports), ", ".join(row.codecs), row.freshness, row.summary] for row in TABLE]
    print(report.table(rows, ["method", "transport", "codec", "freshness", "what it does"]))
    return 0


def run_doctor(args: argparse.Namespace) -> int:
    from toolkit import doctor

    return doctor.main(args.json)


def run_check(args: argparse.Namespace) -> int:
    from toolkit import doctor

    return doctor.check([name for name in args.require.split(",") if name])
