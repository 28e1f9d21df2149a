"""`bitring trace`."""

from __future__ import annotations

import argparse
from pathlib import Path

from simulator import timeline
from simulator.epoch import timeline as timeline_of
from simulator.timeline import TimelineError
from toolkit import report
from toolkit.commands.simulate import chosen_widths, read_both, uses_links
from toolkit.errors import UserError


def run(args: argparse.Namespace) -> int:
    recorded, found = read_both(Path(args.workload), args.machine)
    costs = found.pair_costs()
    chosen = chosen_widths(recorded, costs, args)
    spans, messages = timeline_of(
        chosen,
        found.topology() if uses_links(found, args.links) else costs,
        semantics=args.semantics,
        links="shared" if args.links == "shared" else "apart",
        overlap=not args.no_overlap,
    )
    out = Path(args.out)
    try:
        cut = timeline.write_trace(out, spans, messages)
        if args.picture:
            timeline.gantt(Path(args.picture), spans, messages, f"{chosen.graph}, {found.name}")
    except (OSError, ValueError) as error:  # an unknown kind of picture is a ValueError of matplotlib
        what = error if isinstance(error, TimelineError) else f"can't write the timeline: {error}"
        raise UserError(str(what)) from None
    end_s = max(span.end_s for span in spans)
    print(f"{len(spans)} stages and {len(messages)} messages of an epoch of {report.seconds(end_s)}")
    print(f"{out}: open it in ui.perfetto.dev" + (f" ({cut} left out: too many)" if cut else ""))
    if args.picture:
        print(args.picture)
    return 0
