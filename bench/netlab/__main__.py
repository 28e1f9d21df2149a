"""A slow network between MPI hosts on one machine.

    python -m bench.netlab up HOSTS RATE [DELAY]         python -m bench.netlab up 4 100mbit 100us
    python -m bench.netlab pair SENDER RECEIVER RATE [DELAY]
    python -m bench.netlab nic HOST RATE                 all pairs of a host together, each way
    python -m bench.netlab run [--ranks-per-host K] COMMAND...
    python -m bench.netlab status | down

Hosts are counted from 0. Rates: 50mbit, 1gbit, 0 (no limit). Delays: one way, 100us, 2ms.
"""

from __future__ import annotations

import argparse
import sys

from bench.netlab import lab
from bench.netlab.lab import Lab
from toolkit.errors import UserError


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.netlab", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up")
    up.add_argument("hosts", type=int)
    up.add_argument("rate")
    up.add_argument("delay", nargs="?", default="100us")
    pair = commands.add_parser("pair")
    pair.add_argument("sender", type=int)
    pair.add_argument("receiver", type=int)
    pair.add_argument("rate")
    pair.add_argument("delay", nargs="?")
    nic = commands.add_parser("nic")
    nic.add_argument("host", type=int)
    nic.add_argument("rate")
    run = commands.add_parser("run")
    run.add_argument("--ranks-per-host", type=int, default=1)
    run.add_argument("argv", nargs=argparse.REMAINDER)
    commands.add_parser("status")
    commands.add_parser("down")
    args = parser.parse_args()
    try:
        return _do(args)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2


def _do(args: argparse.Namespace) -> int:
    if args.command == "down":
        lab.down()
    elif args.command == "up":
        Lab.uniform(args.hosts, args.rate, args.delay).up()
        print(f"{args.hosts} hosts, nl1 to nl{args.hosts}: every directed pair {args.rate}, {args.delay}")
    elif args.command == "run":
        if args.ranks_per_host < 1 or not args.argv:
            raise UserError("run takes a command, and 1 or more ranks a host: run python train.py")
        return Lab.found().mpirun(args.argv, ranks_per_host=args.ranks_per_host).returncode
    elif args.command == "status":
        found = Lab.found()
        for (i, j), link in found.links.items():
            print(f"{i} -> {j}: {link.bit_s / 1e6:g} Mbit/s, {1e6 * link.delay_s:g} us")
        for host, rate in found.nics.items():
            print(f"host {host}: NIC {rate / 1e6:g} Mbit/s each way")
        print(lab.counters(), end="")
    else:
        found = Lab.found()
        ends = (args.host,) if args.command == "nic" else (args.sender, args.receiver)
        if len(set(ends)) < len(ends) or not all(0 <= host < found.hosts for host in ends):
            raise UserError(f"hosts {ends}; give different ones of 0 to {found.hosts - 1}")
        if args.command == "nic":
            found.with_nic(args.host, args.rate)
        else:
            found.with_link(args.sender, args.receiver, args.rate, args.delay)
    return 0


if __name__ == "__main__":
    sys.exit(main())
