"""What a layer needs to know of the other ranks, for one pass: depart, arrive, aggregate, drop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from toolkit.comm.halo import Crossing, Masks
from toolkit.comm.ledger import Ledger
from toolkit.nn.features import Rows, as_dense, drop, drop_held
from toolkit.nn.sparse import SparseMatrix, add_product, multiply
from toolkit.plan import LayerStep

Transform = Callable[[Rows], Tensor]


class Source(Protocol):
    """Where halo rows come from: Held, or Crossed."""

    def depart(self, rows: Rows) -> Rows: ...

    def arrive(self) -> Rows: ...


class Held:
    """Halo rows that never change, kept since the start: layer 0 of the exact plan."""

    def __init__(self, halo_rows: Rows, masks: Masks | None) -> None:
        self._halo_rows, self._masks = halo_rows, masks

    def depart(self, rows: Rows) -> Rows:
        return rows

    def arrive(self) -> Rows:
        return drop_held(self._halo_rows, self._masks)


class Crossed:
    """Halo rows that travel in this pass: dense, by a Crossing."""

    def __init__(self, crossing: Crossing) -> None:
        self._crossing = crossing

    def depart(self, rows: Rows) -> Rows:
        return self._crossing.depart(as_dense(rows))

    def arrive(self) -> Rows:
        return self._crossing.arrive()


class Passage:
    """One layer of one pass, on rows after dropout. Call either aggregate(), or depart() and arrive(), once."""

    def __init__(
        self,
        *,
        step: LayerStep,
        rows: Source,
        masks: Masks | None,
        local: SparseMatrix | None,
        halo: SparseMatrix | None,
        ledger: Ledger,
        aggregated: Tensor | None = None,
    ) -> None:
        self.step = step
        self.ledger = ledger
        self.masks = masks
        self._rows, self._local, self._halo = rows, local, halo
        self._aggregated = aggregated

    @property
    def aggregated_already(self) -> bool:
        """Whether aggregate() costs nothing here: layer 0 without dropout."""
        return self._aggregated is not None

    def drop(self, rows: Rows) -> Rows:
        """This layer's dropout on its inner rows."""
        return drop(rows, self.masks)

    def depart(self, rows: Rows) -> Rows:
        return self._rows.depart(rows)

    def arrive(self) -> Rows:
        return self._rows.arrive()

    def aggregate(self, rows: Rows, transform: Transform | None = None) -> Tensor:
        """Sum over in-neighbours of alpha * transform(row): [n, D] -> [n, D'].

        The product over local rows runs while the halo rows travel.
        """
        assert self._local is not None and self._halo is not None, "this layer has no fixed coefficients"
        local = self.depart(rows)
        if self._aggregated is not None:
            return self._aggregated if transform is None else transform(self._aggregated)
        layer = self.step.layer
        ready = as_dense(local) if transform is None else transform(local)
        central = multiply(self._local, ready, self.ledger, "central", layer)
        halo = self.arrive()
        ready = as_dense(halo) if transform is None else transform(halo)
        return add_product(central, self._halo, ready, self.ledger, "marginal", layer)


def aggregate_once(local: SparseMatrix, halo: SparseMatrix, rows: Tensor, halo_rows: Tensor) -> Tensor:
    """Layer 0's aggregate where neither rows nor masks change: computed once for the whole run."""
    with torch.no_grad():
        return local @ rows + halo @ halo_rows
