"""The quantising kernels against memcpy and against plain torch.

    python -m bench.kernels [--threads 1 2] [--repeats 9]

quantise and dequantise of float32 rows, every width, in turn with a copy of the same rows and with plain
torch (gather, min/max, rand, floor, shifts; the best plain form that we know); medians of alternating repeats.
Shares: rows' bytes per second over the copy's (a copy reads and writes them all; the kernels read or
write 1/16 to 1/4 of them packed).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from bench.common import file_result
from toolkit import report
from toolkit.comm.codec import Quantised
from toolkit.comm.layout import Layout, Listing, make_layout
from toolkit.train.process import keep_freed_memory

SHAPES = ((200_000, 256), (20_000, 16), (5_000, 1433))
WIDTHS = (2, 4, 8)


def layout_of(rows: int, entries: int, bits: int) -> Layout:
    listing = Listing(
        lent=True,
        rows=torch.arange(rows),
        mask_rows=torch.arange(rows),
        counts=(rows,),
        nodes=np.arange(rows),
        ids=np.arange(rows).astype(np.uint64),
    )
    return make_layout(listing, np.full(rows, bits, np.uint8), entries, Quantised().sizes)


def plain_quantise(x: Tensor, index: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    rows, levels = x.index_select(0, index), 2**bits - 1
    low, high = torch.aminmax(rows, dim=1, keepdim=True)
    scale = (high - low) / levels
    codes = rows.sub_(low).div_(scale).add_(torch.rand_like(rows)).floor_().clamp_(0, levels).to(torch.uint8)
    planes = 8 // bits
    codes = torch.nn.functional.pad(codes, (0, -codes.shape[1] % planes)).view(len(rows), planes, -1)
    packed = codes[:, 0]
    for plane in range(1, planes):
        packed = packed | codes[:, plane] << (bits * plane)
    return packed, low, scale


def plain_dequantise(packed: Tensor, low: Tensor, scale: Tensor, index: Tensor, out: Tensor, bits: int) -> None:
    planes = [(packed >> (bits * plane)) & (2**bits - 1) for plane in range(8 // bits)]
    rows = torch.cat(planes, 1)[:, : out.shape[1]].float().mul_(scale).add_(low)
    out[index] = rows


def medians(contestants: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for repeat in range(repeats + 2):
        for name, run in contestants.items():
            begin = time.perf_counter()
            run()
            if repeat >= 2:
                times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in times.items()}


def measure(rows: int, entries: int, bits: int, repeats: int) -> dict[str, float]:
    x, target = torch.randn(rows, entries), torch.empty(rows, entries)
    index, layout, codec = torch.arange(rows), layout_of(rows, entries, bits), Quantised()
    packed, low, scale = plain_quantise(x, index, bits)
    payload = codec.encode(x, None, layout, 1, None)
    return medians(
        {
            "memcpy": lambda: target.copy_(x),
            "quantise": lambda: codec.encode(x, None, layout, 1, None),
            "dequantise": lambda: codec.decode(payload, None, layout, target, add=False),
            "torch quantise": lambda: plain_quantise(x, index, bits),
            "torch dequantise": lambda: plain_dequantise(packed, low, scale, index, target, bits),
        },
        repeats,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    keep_freed_memory()
    results, table = [], []
    for threads in args.threads:
        torch.set_num_threads(threads)
        for rows, entries in SHAPES:
            for bits in WIDTHS:
                median_s = measure(rows, entries, bits, args.repeats)
                copy, to, back = (median_s[name] for name in ("memcpy", "quantise", "dequantise"))
                results.append(
                    {"threads": threads, "rows": rows, "entries": entries, "bits": bits, "median_s": median_s}
                )
                table.append(
                    [
                        f"{rows:,} x {entries}, {threads} thr",
                        str(bits),
                        report.seconds(copy),
                        f"{copy / to:.2f}",
                        f"{copy / back:.2f}",
                        f"{median_s['torch quantise'] / to:.1f}",
                        f"{median_s['torch dequantise'] / back:.1f}",
                        f"{1e9 * to / (rows * entries):.3f} ns",
                    ]
                )
    header = ["rows", "bits", "memcpy", "quantise/memcpy", "dequantise/memcpy", "x torch", "x torch back", "an entry"]
    print(report.table(table, header))
    print(file_result("kernels", {"repeats": args.repeats, "results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
