"""Those who ask, and the ingress between them and the workers: sent, decided, dispatched, asked again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from router import NoWorker, RouterCore
from sightline_types import Decision, DecisionId, KeySpec, WorkerId
from simulation.engine import Step
from simulation.errors import RequestRefused
from simulation.event_queue import EventQueue
from simulation.keying import KeyedTurn, key_turn
from simulation.metrics import GapHistogram, RequestRecord
from simulation.prompts import Session
from simulation.replica import Replica
from simulation.scenario import Scenario

__all__ = ["Clients"]

#: As the ingress of the application does (deployments/chat.py).
_TRIES = 3


@dataclass(slots=True)
class _Asked:
    """A request under way. attempt: decisions so far. token_ms: of its last token."""

    session: Session
    place: int
    keyed: KeyedTurn
    record: RequestRecord
    attempt: int = 0
    excluded: tuple[WorkerId, ...] = ()
    token_ms: float = 0.0


class Clients:
    """records: one for each request sent, in the order of sending."""

    def __init__(
        self,
        sessions: Sequence[Session],
        scenario: Scenario,
        spec: KeySpec,
        queue: EventQueue,
        core: RouterCore,
        replicas: Mapping[WorkerId, Replica],
    ) -> None:
        self.records: list[RequestRecord] = []
        self.gaps = GapHistogram()
        self.num_left = sum(len(session.turns) for session in sessions)
        self._scenario = scenario
        self._spec = spec
        self._queue = queue
        self._core = core
        self._replicas = replicas
        self._asked: dict[str, _Asked] = {}
        for session in sessions:
            if session.turns:
                queue.at(session.start_ms + session.turns[0].think_ms, self._send, session, 0)

    # From the client to a worker

    def _send(self, session: Session, place: int) -> None:
        turn = session.turns[place]
        keyed = key_turn(turn, self._spec, session.turns[0])
        media = sum(picture.tokens for picture in turn.pictures)
        record = RequestRecord(
            len(self.records), self._queue.now_ms, keyed.prompt_tokens, media, turn.output_tokens
        )
        self.records.append(record)
        self._queue.after(self._scenario.ingress_ms, self._decide, _Asked(session, place, keyed, record))

    def _decide(self, asked: _Asked) -> None:
        asked.attempt += 1
        record = asked.record
        record.attempts = asked.attempt
        decision_id = DecisionId(f"{record.number}.{asked.attempt}")
        try:
            decision = self._core.decide(asked.keyed.query(decision_id, self._spec, asked.excluded))
        except NoWorker:
            self._give_up(asked, "no worker")
            return
        record.regret_tokens = decision.regret_tokens
        record.predicted_tokens = decision.predicted_cached_tokens
        self._queue.after(self._scenario.dispatch_ms, self._dispatch, asked, decision)

    def _dispatch(self, asked: _Asked, decision: Decision) -> None:
        replica = self._replicas.get(decision.worker)
        if replica is None or replica.is_dead:
            self._queue.after(self._scenario.notice_ms, self._lost, asked, decision.worker)
            return
        asked.record.worker = str(decision.worker)
        try:
            replica.submit(asked.keyed.request(decision.decision_id))
        except RequestRefused as error:
            self._core.cancel(decision.decision_id)
            self._give_up(asked, str(error))
            return
        self._asked[decision.decision_id] = asked

    # From a worker to the client

    def take(self, step: Step) -> None:
        """A step is over: tokens are shown."""
        now, asked_by_id = self._queue.now_ms, self._asked
        common_ms, count = 0.0, 0  # most of a step's outputs waited equally long
        for output in step.outputs:
            asked = asked_by_id[output.request_id]
            asked.record.generated += output.new_tokens
            if output.is_first:
                self._begin_answer(asked)
            elif now - asked.token_ms == common_ms:
                count += output.new_tokens
            else:
                self._note_gaps(common_ms, count)
                common_ms, count = now - asked.token_ms, output.new_tokens
            asked.token_ms = now
            if output.is_finished:
                asked.record.cached_tokens = output.cached_tokens
                asked.record.preemptions = output.num_preemptions
                del asked_by_id[output.request_id]
                self._finish(asked)
        self._note_gaps(common_ms, count)

    def _begin_answer(self, asked: _Asked) -> None:
        if asked.record.first_token_ms is None:
            asked.record.first_token_ms = self._queue.now_ms

    def _note_gaps(self, gap_ms: float, count: int) -> None:
        if count:
            self.gaps.add(gap_ms, count)

    def fail_over(self, replica: Replica) -> None:
        """Its worker is dead: whoever waits for it notices after a while, and asks again."""
        for request_id in replica.open:
            asked = self._asked.pop(request_id)
            self._queue.after(self._scenario.notice_ms, self._lost, asked, replica.worker)

    def _lost(self, asked: _Asked, worker: WorkerId) -> None:
        asked.record.generated = 0  # an answer that has begun starts over
        asked.excluded = (*asked.excluded, worker)
        if asked.attempt >= _TRIES:
            self._give_up(asked, f"failed {_TRIES} times")
        else:
            self._decide(asked)

    def _finish(self, asked: _Asked) -> None:
        asked.record.ended_ms = self._queue.now_ms
        self.num_left -= 1
        following = asked.place + 1
        if following < len(asked.session.turns):
            pause_ms = asked.session.turns[following].think_ms
            self._queue.after(pause_ms, self._send, asked.session, following)

    def _give_up(self, asked: _Asked, why: str) -> None:
        """The turns that would have followed are not sent."""
        asked.record.failure = why
        self.num_left -= len(asked.session.turns) - asked.place
