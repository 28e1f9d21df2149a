"""What a layer needs to know of the other ranks, for one pass: depart, arrive, aggregate, drop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from toolkit.comm.halo import Masks
from toolkit.comm.ledger import Ledger
from toolkit.nn.sparse import SparseMatrix, multiply
from toolkit.plan import LayerStep

Transform = Callable[[Tensor], Tensor]


class Rows(Protocol):
    """Where halo rows come from: a Crossing, or Held rows."""

    def depart(self, rows: Tensor) -> Tensor: ...

    def arrive(self) -> Tensor: ...


class Held:
    """Halo rows that never change, kept since the start: layer 0 of the exact plan."""

    def __init__(self, halo_rows: Tensor, masks: Masks | None) -> None:
        self._halo_rows, self._masks = halo_rows, masks

    def depart(self, rows: Tensor) -> Tensor:
        return rows if self._masks is None else self._masks.drop(rows)

    def arrive(self) -> Tensor:
        return self._halo_rows if self._masks is None else self._masks.drop_held(self._halo_rows)


class Passage:
    """One layer of one pass. Either ``aggregate`` or ``depart`` and ``arrive`` is called, once."""

    def __init__(
        self,
        *,
        step: LayerStep,
        rows: Rows,
        masks: Masks | None,
        local: SparseMatrix | None,
        halo: SparseMatrix | None,
        ledger: Ledger,
        aggregated: Tensor | None = None,
    ) -> None:
        self.step = step
        self.ledger = ledger
        self._rows, self._masks, self._local, self._halo = rows, masks, local, halo
        self._aggregated = aggregated

    @property
    def aggregated_already(self) -> bool:
        """Whether aggregate() costs nothing here: layer 0 without dropout."""
        return self._aggregated is not None

    def drop(self, rows: Tensor) -> Tensor:
        """Inner rows after dropout, for a layer that multiplies by W before rows travel."""
        return rows if self._masks is None else self._masks.drop(rows)

    def depart(self, rows: Tensor) -> Tensor:
        return self._rows.depart(rows)

    def arrive(self) -> Tensor:
        return self._rows.arrive()

    def aggregate(self, rows: Tensor, transform: Transform | None = None) -> tuple[Tensor, Tensor]:
        """Own rows after dropout, and sum over in-neighbours of alpha * transform(row): [n, D], [n, D'].

        The product over local rows runs while the halo rows travel.
        """
        assert self._local is not None and self._halo is not None, "this layer has no fixed coefficients"
        local = self.depart(rows)
        if self._aggregated is not None:
            return local, self._aggregated if transform is None else transform(self._aggregated)
        ready = local if transform is None else transform(local)
        central = multiply(self._local, ready, self.ledger, "central", self.step.layer)
        halo = self.arrive()
        ready = halo if transform is None else transform(halo)
        return local, central + multiply(self._halo, ready, self.ledger, "marginal", self.step.layer)


def aggregate_once(local: SparseMatrix, halo: SparseMatrix, rows: Tensor, halo_rows: Tensor) -> Tensor:
    """Layer 0's aggregate where neither rows nor masks change: computed once for the whole run."""
    with torch.no_grad():
        return local @ rows + halo @ halo_rows
