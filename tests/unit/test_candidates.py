"""The candidates of a decision: rows that are put in order when somebody reads them."""

import numpy as np

from router.candidates import CandidateTable
from router.columns import CANDIDATE, CandidateRow
from sightline_types import WorkerId

WORKERS = [WorkerId(name) for name in "abcd"]


def table(*costs):
    rows = np.zeros(len(costs), CANDIDATE)
    rows["slot"], rows["block_size"] = np.arange(len(costs)), 16
    rows["wait_ms"] = rows["cost_ms"] = costs
    return CandidateTable(rows, WORKERS[: len(costs)])


def names(candidates):
    return "".join(score.worker.replica for score in candidates)


def test_a_row_in_python_has_the_columns_of_a_candidate_in_their_order():
    assert CandidateRow._fields == CANDIDATE.names


def test_the_chosen_candidate_comes_first_and_the_others_cheapest_first():
    ranked = table(3.0, 1.0, 2.0, 1.0).ranked(2)
    assert (names(ranked), ranked[0].worker, ranked[-1].worker) == ("cbda", WORKERS[2], WORKERS[0])


def test_a_slice_keeps_the_order():
    assert names(table(3.0, 1.0, 2.0, 1.0).ranked(2)[:3]) == "cbd"


def test_a_candidate_that_joins_comes_last_and_has_the_last_row():
    joined = table(3.0, 1.0, 2.0).ranked(0).joined(CandidateTable.of_stranger(WORKERS[3], 1, 0, 16))
    assert (names(joined), joined.row_of(WORKERS[3])) == ("abcd", 3)


def test_the_rows_stay_where_they_are():
    ranked = table(3.0, 1.0).ranked(1)
    assert (names(ranked), ranked.row(0).cost_ms, ranked.worker(0)) == ("ba", 3.0, WORKERS[0])
