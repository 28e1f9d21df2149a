"""`bitring trace`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from simulator import timeline
from simulator.timeline import TimelineError
from simulator.tracks import timeline as timeline_of
from toolkit import report
from toolkit.commands.offline import Wanted, chosen, costs_of, source, wire_of
from toolkit.errors import UserError


def run(args: argparse.Namespace) -> int:
    recorded, found = source(args)
    wire, wanted = wire_of(found, args), Wanted.of(args)
    one = chosen(recorded, costs_of(found), wire, wanted)
    spans, messages = timeline_of(
        one.workload, wire.network, semantics=wire.semantics, links=wire.links, overlap=wanted.overlap
    )
    out = Path(args.out)
    try:
        cut = timeline.write_trace(out, spans, messages)
        if args.picture:
            timeline.gantt(Path(args.picture), spans, messages, f"{recorded.graph}, {found.name}")
    except (OSError, ValueError) as error:  # an unknown kind of picture is a ValueError of matplotlib
        what = error if isinstance(error, TimelineError) else f"can't write the timeline: {error}"
        raise UserError(str(what)) from None
    end_s = max((span.end_s for span in spans), default=0.0)
    if args.json:
        told = {"epoch_s": end_s, "stages": len(spans), "messages": len(messages), "left_out": cut}
        print(json.dumps(told | {"out": str(out), "picture": args.picture}, indent=1))
        return 0
    print(f"{len(spans)} stages and {len(messages)} messages of an epoch of {report.seconds(end_s)}")
    print(f"{out}: open it in ui.perfetto.dev" + (f" ({cut} left out: too many)" if cut else ""))
    if args.picture:
        print(args.picture)
    return 0
