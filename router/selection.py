"""Who gets a request: who may take it at all, what they would cost, and which one is chosen."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import numpy.typing as npt

from router.admission import Overloaded, admit
from router.candidates import CandidateTable, reasons_of
from router.columns import CandidateRow
from router.config import RouterConfig
from router.fleet import Fleet, Member, Slots
from router.load import LoadBook
from router.policies import Choice, Contest, make_policy
from router.scorer import Scorer
from router.scoring import most_held
from router.sessions import Sessions
from router.status import Counts
from sightline_types import Decision, DecisionReason, RouteQuery

__all__ = ["Selection", "Selector"]

#: A decision, and its chosen row.
Selection = tuple[Decision, CandidateRow]


class Selector:
    """Books nothing; comparison policies keep a state of their own, and refusals are counted."""

    def __init__(
        self, config: RouterConfig, fleet: Fleet, scorer: Scorer, book: LoadBook, sessions: Sessions,
        counts: Counts, *, clock: Callable[[], float], random: Random,
    ) -> None:  # fmt: skip
        self._config = config
        self._fleet = fleet
        self._scorer = scorer
        self._book = book
        self._sessions = sessions
        self._counts = counts
        self._clock = clock
        self._random = random
        self._policy = make_policy(config, random)

    def configure(self, config: RouterConfig) -> None:
        """Live settings; a policy that stays keeps its state."""
        old, self._config = self._config, config
        if (old.policy, old.temperature_ms) != (config.policy, config.temperature_ms):
            self._policy = make_policy(config, self._random)

    def select(self, query: RouteQuery) -> Selection:
        """Choose a worker.

        Raises:
            NoWorker: nobody can take it.
            UnknownWorker: it is pinned to a worker that is not here.
            Overloaded: the admission limits refuse it.
        """
        slots, forced = self._candidates(query)
        table = self._scorer.table(query, slots)
        row, reason = self._choose(query, table, slots, forced)
        chosen = table.row(row)
        return self._decision(query, table.ranked(row), chosen, reason), chosen

    def _candidates(self, query: RouteQuery) -> tuple[Slots, DecisionReason | None]:
        """Who may take it; and why it is them, where a hint says so."""
        hints, now = query.hints, self._clock()
        if hints.worker is not None:
            return self._admitted(query, self._fleet.named(hints.worker)), DecisionReason.PINNED
        slots = self._fleet.eligible(query.exclude, now - self._config.worker_silence_s)
        home = self._home(query) if hints.is_session_hard else None
        if home is not None and home.slot in slots:
            mine = np.array([home.slot], dtype=np.intp)
            return self._admitted(query, mine), DecisionReason.SESSION
        return self._admitted(query, slots), None

    def _admitted(self, query: RouteQuery, slots: Slots) -> Slots:
        limits = self._config.admission
        if not limits.is_limited:
            return slots
        try:
            return slots[admit(limits, self._fleet.table.rows[slots], query.hints.priority)]
        except Overloaded:
            self._counts.overloaded += 1
            raise

    def _home(self, query: RouteQuery) -> Member | None:
        home = self._sessions.home(query.hints.session, self._clock())
        return self._fleet.get(home) if home is not None else None

    def _choose(
        self, query: RouteQuery, table: CandidateTable, slots: Slots, forced: DecisionReason | None
    ) -> Choice:
        self._favour_home(query, table)
        if len(table) == 1:
            return 0, forced or DecisionReason.ONLY_WORKER
        contest = Contest(
            rows=table.rows,
            workers=table.workers,
            names=self._fleet.band(slots).names,
            loads=lambda: self._fleet.table.rows.take(slots),  # five times as fast as an index of rows
            num_tokens=query.num_tokens,
            tie_key=query.tie_key,
            added_blocks=lambda: self._added_blocks(query, slots),
        )
        row, reason = self._policy.choose(contest)
        return row, forced or reason

    def _favour_home(self, query: RouteQuery, table: CandidateTable) -> None:
        home = self._home(query) if query.hints.session is not None else None
        row = table.row_of(home.worker) if home is not None else None
        if row is not None:
            table.rows["session_ms"][row] = -self._config.session_bonus_ms
            table.rows["cost_ms"][row] -= self._config.session_bonus_ms

    def _added_blocks(self, query: RouteQuery, slots: Slots) -> npt.NDArray[np.int32]:
        added = np.zeros(len(slots), dtype=np.int32)
        for view in query.views.values():
            by_slot = self._book.would_add(view.key_array())
            mine = [query.views.get(self._fleet.at(slot).spec) is view for slot in slots.tolist()]
            added = np.where(mine, by_slot[slots], added)
        return added

    def _decision(
        self, query: RouteQuery, table: CandidateTable, chosen: CandidateRow, reason: DecisionReason
    ) -> Decision:
        member = self._fleet.at(chosen.slot)
        return Decision(
            decision_id=query.decision_id,
            worker=member.worker,
            block_size=member.contract.block_size,
            reason=reason,
            candidates=table,
            num_tokens=query.num_tokens,
            applied_seq=member.applied_seq,
            pool_version=self._fleet.pool.version,
            degraded=tuple(dict.fromkeys((*query.reasons, *reasons_of(chosen)))),
            media=query.media,
            first_media_offset=query.first_media_offset,
            regret_tokens=most_held(table.rows) - chosen.predicted_tokens,
        )
