"""Which operators of a graph share a device? An operator graph with its costs and devices comes in
(:class:`~weft.solver.placement.problem.PlacementProblem`); stages on devices, judged, with a proven bound on the
largest load, go out (:class:`~weft.solver.placement.placement.Placement`).

``problem`` says what is placed and what a placement costs, ``judge`` checks a placement from that alone. Searches see
``groups`` of operators and divide them (``division``); what a search knows is its ``bracket``, what it calls are
``technique``s, what it was given are ``params``; ``bounds`` need no search. Rooms: ``reductions``, ``orders`` and the
``encoding`` are what searches are made of; ``chain`` finds stages in a row, ``dag`` graphs of stages, ``memory`` plans
in which recomputing and offloading are decided with the cuts.
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
