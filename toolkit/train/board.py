"""TensorBoard on request: the numbers of every epoch, as curves, beside metrics.jsonl."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from toolkit.errors import UserError

NO_CURVES = ("seed", "epoch")  # they say which curve, and where on it


class Board:
    """Event files, a folder a seed. Tags are the keys of metrics.jsonl, such as val/accuracy; steps its epochs."""

    def __init__(self, path: Path) -> None:
        """Nothing is written before the first epoch. UserError where tensorboard can't be imported."""
        self._path = path
        self._open = _summary_writer()
        self._writer: Any = None
        self._seed: int | None = None
        _leave_errors_to_the_caller()

    def add(self, line: dict[str, Any]) -> None:
        """An ``epoch`` line of metrics.jsonl. OSError when the disk is full, at once: nothing stays in a queue."""
        seed, epoch = line["seed"], line["epoch"]
        if seed != self._seed:
            self.close()
            # purge_step: what a run that was interrupted has shown from this epoch on, and we compute again, is hidden
            self._writer = self._open(str(self._path / f"seed-{seed}"), purge_step=epoch)
            self._seed = seed
        for tag, value in curves(line):
            self._writer.add_scalar(tag, value, epoch)
        self._writer.flush()

    def close(self) -> None:
        writer, self._writer, self._seed = self._writer, None, None
        if writer is not None:
            writer.close()


def curves(line: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Tag and value of each number of a line; null (a split without nodes) is left out."""
    for key, value in line.items():
        if isinstance(value, dict):
            yield from curves(value, f"{prefix}{key}/")
        elif value is not None and key not in NO_CURVES:
            yield prefix + key, value


def _summary_writer() -> Callable[..., Any]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except Exception as error:  # not there, or at odds with what else is: protobuf raises TypeError
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(
            f"run.tensorboard is true, and TensorBoard's writer can't be imported ({reason}); "
            "pip install tensorboard, or set run.tensorboard = false"
        ) from None
    writer: Callable[..., Any] = SummaryWriter
    return writer


def _leave_errors_to_the_caller() -> None:
    """SummaryWriter writes in a thread, and gives the thread's error to the next call, which tells it in a sentence.

    The thread ends by the same error, and for that a traceback would be printed and the job aborted
    (launch.install_excepthook).
    """
    before = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if not type(args.thread).__module__.startswith("tensorboard."):
            before(args)

    threading.excepthook = hook
