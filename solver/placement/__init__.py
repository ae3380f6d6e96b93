"""Which operators of a graph share a device? The input is an operator graph with its costs and devices
(:class:`~weft.solver.placement.problem.PlacementProblem`); the output are stages on devices, judged, with a proven
bound on the largest load (:class:`~weft.solver.placement.placement.Placement`).

``problem`` defines the problem and the costs of a placement, ``judge`` checks a placement from that alone. Searches see
``groups`` of operators and divide them (``division``); the state of a search is its ``bracket``, its methods are
``technique``s, its parameters ``params``; ``bounds`` need no search. Rooms: searches are built from ``reductions``,
``orders`` and the ``encoding``; ``chain`` finds stages in a row, ``dag`` graphs of stages, ``memory`` plans in which
recomputing and offloading are decided with the cuts.
"""

from typing import TYPE_CHECKING

from weft.solver.placement.placement import PlacedStage, Placement
from weft.solver.placement.problem import Degree, DeviceKind, Node, PlacementError, PlacementProblem, PlacementTensor
from weft.solver.public_names import lazily

if TYPE_CHECKING:
    from weft.solver.placement.chain.place import place
    from weft.solver.placement.dag.place_graph import place_graph

__all__ = ["Degree", "DeviceKind", "Node", "Placement", "PlacementError", "PlacementProblem", "PlacedStage",
           "PlacementTensor", "place", "place_graph"]

__getattr__, __dir__ = lazily(__name__)
