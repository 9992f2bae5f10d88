"""Where a request's time went."""

from __future__ import annotations

import itertools

from deployments.stages import Stage, StageTimes


def test_a_stopwatch_notes_each_stage_from_the_end_of_the_one_before() -> None:
    seconds = iter([0.0, 0.002, 0.005, 1.0, 1.004])
    times = StageTimes(lambda: next(seconds))
    watch = times.begin()
    watch.note(Stage.PARSE)
    watch.note(Stage.PROMPT)
    times.begin().note(Stage.PARSE)
    assert times.means == {
        "parse": {"requests": 2, "mean_ms": 3.0},
        "prompt": {"requests": 1, "mean_ms": 3.0},
    }


def test_stages_without_a_request_are_not_shown() -> None:
    times = StageTimes(itertools.count().__next__)
    assert times.means == {}
