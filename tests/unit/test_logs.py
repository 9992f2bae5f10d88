from __future__ import annotations

import logging

import pytest

from app.logs import ROOMS, configure, parse_levels


@pytest.fixture
def restored_loggers():
    loggers = [logging.getLogger(room) for room in ROOMS]
    before = [(logger, logger.level, list(logger.handlers), logger.propagate) for logger in loggers]
    yield
    for logger, level, handlers, propagate in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers
        logger.propagate = propagate


def test_a_level_alone_is_for_all_and_a_room_has_its_own():
    assert parse_levels("warning,sightline.router=debug") == {"sightline": 30, "sightline.router": 10}


def test_a_room_s_short_name_is_enough():
    assert parse_levels("router=debug") == {"sightline": 20, "sightline.router": 10}


@pytest.mark.parametrize(
    ("spec", "said"), [("loud", "'loud'"), ("info,kitchen=debug", "'kitchen'"), ("router=", "debug, info")]
)
def test_what_is_unknown_is_named(spec, said):
    with pytest.raises(ValueError, match=said):
        parse_levels(spec)


def test_a_record_is_one_line_on_stderr(restored_loggers, capsys):
    configure("info,router=debug")
    logging.getLogger("sightline.router").debug("chosen %s", "w1")
    logging.getLogger("sightline.processors").debug("not shown")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].endswith("D sightline.router: chosen w1")


def test_configuring_again_replaces_levels_and_doubles_nothing(restored_loggers, capsys):
    configure("debug,router=debug")
    configure("info")
    logging.getLogger("sightline.router").debug("not shown")
    logging.getLogger("sightline.router").info("once")
    assert len(capsys.readouterr().err.splitlines()) == 1
