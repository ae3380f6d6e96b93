from weft.models.graph_network.graph import ChunkGrid, drawn_graph
from weft.models.graph_network.steps import Choice, LayerSize, Need, Pass


def sized(choice: Choice) -> Pass:
    needs = dict.fromkeys(("prepare", "gather", "vertex", "loss", "vertex_back", "gather_back", "prepare_back"),
                          Need(0, 64, 64, 64))
    size = LayerSize(4, 4, 4, 4, 4, 4, needs)
    graph = drawn_graph(60, 600, seed=3)
    return Pass([size, size], {False: ChunkGrid(graph, choice.chunks)}, choice)


def test_everything_taken_is_given_back() -> None:
    for choice in (Choice(1), Choice(4), Choice(4, 2), Choice(4, 4, selective=True), Choice(5, 3, ranks=2)):
        steps = sized(choice).steps
        for rank in range(choice.ranks):
            assert sum(step.change for step in steps if step.rank == rank) == 0


def test_more_chunks_need_less_memory_and_no_order_less_than_is_unavoidable() -> None:
    needed = [sized(Choice(chunks)).least_memory for chunks in (1, 2, 4, 8)]
    assert needed == sorted(needed, reverse=True)
    for chunks in (1, 2, 4, 8):
        assert sized(Choice(chunks)).unavoidable_memory <= sized(Choice(chunks)).least_memory


def test_a_pass_is_a_problem_with_lanes() -> None:
    problem = sized(Choice(3, ranks=2)).problem("pass", 10**6, 1000, lambda step: 1.0)
    assert [device.name for device in problem.devices] == [
        "device0", "device1", "loads0", "stores0", "network0", "loads1", "stores1", "network1"]
    assert problem.devices[0].memory == 10**6 - 1000
