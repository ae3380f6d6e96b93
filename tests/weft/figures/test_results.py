from weft.figures.results import stages_chart


def test_bars_of_a_layer_are_plain_and_fused() -> None:
    rows = [("layer 0", "scatter", 0.001, "memory"), ("layer 0", "apply_edge", 0.0, "nothing"),
            ("layer 0", "gather", 0.002, "memory"), ("layer 0", "apply_vertex", 0.004, "compute"),
            ("layer 0", "fused", 0.0005, "memory"), ("layer 1", "gather", 0.001, "memory")]
    drawn = stages_chart(rows, "title").to_dict()["datasets"]
    ends = {(row["bar"], row["stage"]): (round(row["begin"], 9), round(row["end"], 9))
            for row in drawn["stages"]}
    assert ends["layer 0", "apply vertex"] == (3, 7) and ends["layer 0, fused", "apply vertex"] == (0.5, 4.5)
    assert {bar for bar, _ in ends} == {"layer 0", "layer 0, fused", "layer 1"}
    assert [row["stage"] for row in drawn["compute"]] == ["apply vertex"] * 2
