"""Published tables: every attainable digit, and the refusal of the others."""

import json

import pytest

from sonoran.errors import PlanError
from sonoran.planning.scaling.models import published_measurements, published_tables
from sonoran.planning.scaling.reproduction import TABLES, reproduce


def test_shipped_data_is_complete():
    points = published_measurements()
    assert len(points) == 130
    assert len({p.target for p in points}) == 13
    assert len({p.draft for p in points}) == 10
    # Table 1 prints these two the other way round.
    assert next(p.y for p in points if p.target == "Qwen2.5-72B") == 9.549574852
    assert published_tables()["target_tokens_used"]["Qwen1.5-14B"] == 4e12


@pytest.mark.parametrize("number", [3, 4])
def test_fits_to_a_millionth(number):
    rows = reproduce(number).rows
    assert len(rows) == {3: 5, 4: 78}[number]
    assert max(abs(row["difference"]) for row in rows) <= 1e-6
    for row in rows:
        for name in ("margin", "standard_error", "r2", "mse"):
            if f"published_{name}" in row:
                assert row[f"computed_{name}"] == pytest.approx(row[f"published_{name}"], abs=1.2e-6)


def test_table_5_all_39():
    document = reproduce(5).to_dict()
    assert len(document["rows"]) == 39
    assert document["max_relative_difference"] <= 1e-6
    assert all(row["throughput_matches_printed_digits"] for row in document["rows"])


def test_table_6_distances_and_what_they_do_not_show():
    rows = reproduce(6).rows
    assert len(rows) == 10
    assert all(row["computed"] == pytest.approx(row["published"], rel=1e-3) for row in rows)
    assert not any(row["smaller_than_optimum"] for row in rows)


def test_table_8_within_a_percent():
    document = reproduce(8).to_dict()
    assert document["max_relative_difference"] <= 0.01
    silent = [row for row in document["rows"] if not row.get("significant", True)]
    assert [row["quantity"] for row in silent] == ["target_tokens"]
    assert abs(silent[0]["difference_over_margin"]) < 0.01
    for row in document["rows"][:4]:
        assert row["computed_margin"] == pytest.approx(row["published_margin"], rel=0.01)


def test_table_9_within_a_thousandth():
    document = reproduce(9).to_dict()
    assert document["max_relative_difference"] <= 1e-3
    for row in document["rows"][:2]:
        assert row["computed_margin"] == pytest.approx(row["published_margin"], rel=2.5e-3)


@pytest.mark.parametrize("number", TABLES)
def test_documents_are_json_with_the_promised_keys(number):
    document = json.loads(json.dumps(reproduce(number).to_dict()))
    assert document["table"] == number
    for row in document["rows"]:
        assert row["difference"] == pytest.approx(row["computed"] - row["published"])
        assert row["relative_difference"] == pytest.approx(row["difference"] / abs(row["published"]))


@pytest.mark.parametrize("number", [0, 7, 10])
def test_other_tables(number):
    with pytest.raises(PlanError, match=f"table {number} cannot be reproduced"):
        reproduce(number)
