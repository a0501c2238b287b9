"""disk_ops.evaluation.protocol: what protocols share."""

from __future__ import annotations

import math

import pytest

from disk_ops.evaluation.protocol import Item, Protocol, by_method, finite, labelled, mean, share


def test_records_are_grouped_by_method_and_number_in_order() -> None:
    records = [
        {"method": "b", "n": 8, "x": 1},
        {"method": "a", "n": 8, "x": 2},
        {"method": "b", "n": 4, "x": 3},
        {"method": "b", "n": 8, "x": 4},
    ]
    groups = [(method, n, [record["x"] for record in group]) for method, n, group in by_method(records)]
    assert groups == [("b", 8, [1, 4]), ("a", 8, [2]), ("b", 4, [3])]
    assert list(by_method([])) == []


def test_means_leave_out_what_is_missing() -> None:
    assert mean([1.0, None, 4.0]) == 2.5
    assert mean([None]) is None and mean([]) is None


def test_a_missing_error_is_above_any_threshold() -> None:
    assert share([1.0, 3.0, 3.1, None], 3) == 0.5
    assert share([None], 3) == 0.0 and share([], 3) is None


def test_what_json_cannot_hold_is_none() -> None:
    assert finite(1.5) == 1.5
    assert finite(math.inf) is None and finite(-math.inf) is None and finite(math.nan) is None


def test_a_protocol_needs_items_measures_tables_and_a_score() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Protocol()  # type: ignore[abstract]

    class Least(Protocol):
        name, settings = "least", {}

        def items(self):
            return [Item("one", ())]

        def evaluate(self, item, method, n, matcher):
            return []

        def tables(self, records):
            return []

        def score(self, records):
            return 0.0

    least = Least()
    assert least.plots([]) == [] and list(least.pictures([], [])) == []


def test_labels_name_the_number_of_keypoints_where_there_are_several() -> None:
    one, two = {"method": "a", "n": 8}, {"method": "a", "n": 4}
    assert labelled([one, one]) == [("a", [one, one])]
    assert labelled([one, two]) == [("a, 8", [one]), ("a, 4", [two])]
