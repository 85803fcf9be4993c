"""The learner's loop: it stores what actors send, takes updates, and sends weights. Rank 0; it explores nothing itself."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from hpcrl.catalogue.training import is_over
from hpcrl.errors import HpcrlError
from hpcrl.rl.checkpoint import NamedArrays
from hpcrl.rl.interfaces import Act, Algorithm, Learner
from hpcrl.rl.loops.acting import make_actor
from hpcrl.rl.loops.updating import Updates
from hpcrl.rl.runs import Run
from hpcrl.rl.topologies.ports import PairLearner, Patience, PostedLearner, RankGone, StarLearner
from hpcrl.rl.topologies.wire import ALL, COMPLETED, FIELDS, GOING, PREEMPTED, Block, WeightsMessage
from hpcrl.rl.weights import pack

# An asynchronous actor may have sent this many blocks that were not answered.
_AHEAD = 2


class _Account:
    """What one actor was granted, in steps, and what came from it: blocks, stored transitions, its running episode."""

    def __init__(self) -> None:
        self.granted = self.blocks = self.stored = self.version = self.length = 0
        self.value = 0.0
        self.ended = False


class LearnerLoop:
    """What all topologies have in common. `step` counts the environment steps of all actors.

    `version` counts the intervals of updates, `staleness` by how many of them the weights that a block was acted with
    were older than the learner's when the block was stored: version -> number of blocks. `gave_up` tells that an actor did not answer
    after a signal. The actors then still wait for this rank: only the launcher can end them.
    """

    def __init__(
        self,
        wait: Patience,
        algorithm: Algorithm,
        implementation: Any,
        learner: Learner,
        run: Run,
        size: int,
        actors: int,
    ) -> None:
        self._settings, self._group = algorithm.settings, algorithm.acts_with
        self._learner, self._run = learner, run
        self._wait, self._switch = wait, run.clock.switch
        self._actor = make_actor(learner, algorithm)
        self.act: Act = self._actor.act
        self._updates = Updates(algorithm, implementation, learner, run, self._actor.refresh)
        self._message = WeightsMessage(size)
        self.accounts = [_Account() for _ in range(actors)]
        self.staleness: Counter[int] = Counter()
        # What earlier attempts had counted until their checkpoint.
        self._before: dict[str, Any] = {"transitions": [0] * actors, "blocks": [0] * actors, "staleness": {}}
        self.step = self.episodes = self.version = 0
        self._bound = 0  # of the staleness
        self._learned = 0  # intervals
        self._stopping = self._closed = self.gave_up = False

    def advance(self, until: int, stop: Callable[[], bool]) -> bool:
        """Continue to step `until`; False if a signal to this rank or to an actor ended it earlier.

        Raises:
            HpcrlError: messages of an actor do not fit together. No more are exchanged then: :meth:`close` would find the same fault
                again.
        """
        self._wait.stop = lambda: self._stopping or stop()
        try:
            return self._advance(until, stop)
        except RankGone:
            self._closed = self.gave_up = True
            return False
        except Exception:
            self._closed = True
            raise

    def _advance(self, until: int, stop: Callable[[], bool]) -> bool:
        raise NotImplementedError

    def _store(self, block: Block) -> None:
        """Put the transitions of a block into the replay, and tell the ended episodes.

        Raises:
            HpcrlError: the block is not the actor's next one, or its weights are not of a valid version.
        """
        self._switch("receive")
        account = self.accounts[block["actor"]]
        rows = block.rows().copy()  # n-step windows keep observations, and the block is used again
        who = f"actor {block['actor']}"
        if block["number"] != account.blocks or block["sent"] != account.stored + len(rows):
            raise HpcrlError(
                f"{who}: its block {block['number']} with {block['sent']} transitions in all came after {account.blocks} blocks "
                f"with {account.stored}: messages were lost or came twice"
            )
        if not account.version <= block["version"] <= self.version:
            raise HpcrlError(
                f"{who}: its block {block['number']} has version {block['version']} of the weights, the one before "
                f"{account.version}, the learner {self.version}: versions only grow"
            )
        self._switch("replay")
        before = self.step
        observations, actions, rewards, following, terminated, ended = (rows[name] for name in FIELDS)
        self._updates.memory.add_block(observations, actions, rewards, following, terminated, ended, block["actor"])
        for reward, last in zip(rewards.tolist(), ended.tolist(), strict=True):
            self.step += 1
            account.value += reward
            account.length += 1
            if last:
                self.episodes += 1
                self._run.reporter.episode(self.step, account.value, account.length)
                account.value, account.length = 0.0, 0
        self._switch("other")
        if len(rows):
            self.staleness[age := self.version - block["version"]] += 1
            if age > self._bound:
                raise HpcrlError(f"{who}: its weights were {age} intervals old, but they may be {self._bound} at most")
        account.blocks += 1
        account.stored += len(rows)
        account.version = block["version"]
        account.ended = block["end"] == COMPLETED
        self._stopping = self._stopping or block["end"] == PREEMPTED
        self._updates.sync(before, self.step)

    @property
    def _done(self) -> int:
        """Return what intervals count: environment steps or ended episodes."""
        return self.episodes if self._settings.train_unit == "episodes" else self.step

    def _is_due(self) -> bool:
        return bool(self._done // self._settings.train_interval > self._learned)

    def _learn(self) -> None:
        """Take the updates of the interval that is due."""
        self._learned += 1
        mark = self.step
        if self._settings.train_unit == "steps":  # not the steps that came after the interval
            mark = self._learned * self._settings.train_interval
        if mark >= self._settings.learning_starts:
            self._updates.learn(mark)
            self.version += 1

    def _written(self, granted: int = 0, end: int = GOING) -> WeightsMessage:
        """Return the message with the current weights."""
        self._switch("send")
        self._message.say(
            version=self.version, step=self.step, stored=ALL, episodes=self.episodes, granted=granted, end=end
        )
        pack(self._learner.weights(self._group), out=self._message.vector)
        return self._message

    def close(self) -> None:
        """Tell the actors that there is no more to do, and store what they still send."""
        if not self._closed:
            self._closed = True
            try:
                self._end()
            except RankGone:
                self.gave_up = True

    def abandon(self) -> None:
        """Leave the actors to the launcher: an error ends this rank at once, and then the launcher ends them."""
        self._closed = True

    def _end(self) -> None:
        raise NotImplementedError

    @property
    def updates(self) -> int:
        """Return the number of batches that the learner has learned from."""
        return self._updates.taken

    def measures(self) -> dict[str, float]:
        return self._updates.measures()

    def moments(self) -> None:
        """Return None: observations are not normalised."""

    def facts(self) -> dict[str, Any]:
        """Return how many transitions came from each actor, and how old the weights of blocks were, since the training's first step."""
        ages = self.staleness + Counter({int(age): number for age, number in self._before["staleness"].items()})
        own = {
            "transitions": [account.stored for account in self.accounts],
            "blocks": [account.blocks for account in self.accounts],
        }
        sums = {
            name: [now + before for now, before in zip(of, self._before[name], strict=True)] for name, of in own.items()
        }
        return {**sums, "staleness": {str(age): ages[age] for age in sorted(ages)}}

    def state(self) -> tuple[NamedArrays, dict[str, Any]]:
        arrays, facts = self._updates.state()
        return arrays, facts | {"version": self.version, "learned": self._learned, "messages": self.facts()}

    def load_state(self, arrays: NamedArrays, facts: dict[str, Any]) -> None:
        self._updates.load_state(arrays, facts)
        self.version, self._learned = facts["version"], facts["learned"]
        self._before = facts.get("messages", self._before)  # older checkpoints have none
        self._actor.refresh()


class RoundLoop(LearnerLoop):
    """Pairwise and collective: in each round every actor takes its share of the steps of an interval, and all wait for each other.

    With `overlap` the actors explore the next round while the learner learns from the last, with weights that have not
    learned from it. Without, they wait: one actor then gives exactly the weights of the sequential loop.
    """

    def __init__(self, ports: PairLearner | StarLearner, *given: Any) -> None:
        super().__init__(*given)
        self._ports = ports
        self._bound = int(self._settings.overlap)
        self._outstanding = False
        self._granted = 0

    def _advance(self, until: int, stop: Callable[[], bool]) -> bool:
        self._learn_what_is_due()  # after a checkpoint
        while self.step < until and not is_over(self._settings, self.step, self.episodes):
            if not self._outstanding:
                self._grant()
            self._stopping = self._stopping or stop()
            self._gather()
            if self._stopping:
                return False
            if self._settings.overlap:
                self._grant()
            self._learn_what_is_due()
        return True

    def _learn_what_is_due(self) -> None:
        while self._is_due():
            self._learn()

    def _grant(self) -> None:
        """Let each actor take its share of the steps or episodes to the interval's end, with the present weights."""
        settings = self._settings
        interval = settings.train_interval
        end = (self._done // interval + 1) * interval
        if settings.train_unit == "steps":
            end = min(end, settings.total_steps)
        elif settings.total_episodes:
            end = min(end, settings.total_episodes)
        if end > self._done and not is_over(settings, self.step, self.episodes):
            self._granted += -(-(end - self._done) // len(self.accounts))
            self._publish(GOING)
            self._outstanding = True

    def _publish(self, end: int) -> None:
        self._ports.publish(self._written(self._granted, end))
        self._switch("other")

    def _gather(self) -> None:
        self._switch("receive")
        blocks = self._ports.gather()
        self._outstanding = False
        for block in blocks:
            self._store(block)

    def _end(self) -> None:
        if self._outstanding:
            self._gather()
        self._publish(PREEMPTED if self._stopping else COMPLETED)
        self._gather()


class AsynchronousLoop(LearnerLoop):
    """The learner answers each block of an actor with the newest weights, and no round makes actors wait for each other.

    An actor goes on after each block, with the newest weights that have come. It waits for the first weights, for an answer when it is two
    blocks ahead of the answers, and for the block before its last one to leave. The learner takes updates as often as the sequential loop for
    the steps that have come, but none that would make a block that is still to come older than `max_staleness`. It first waits for that
    block, and answers nobody until then. Actors that are two blocks ahead then wait for the slow one, too: otherwise they could take all the
    steps without learning.
    """

    def __init__(self, ports: PostedLearner, *given: Any) -> None:
        super().__init__(*given)
        self._ports = ports
        self._bound = self._settings.max_staleness
        self._left: int | None = None  # steps that no actor was granted yet
        self._owed = [0] * len(self.accounts)  # answers
        # Versions of the last answers: the next block of an actor was begun with the first of them, or a newer one.
        self._answers: list[deque[int]] = [deque(maxlen=_AHEAD) for _ in self.accounts]

    def _advance(self, until: int, stop: Callable[[], bool]) -> bool:
        if self._left is None:
            self._left = self._settings.total_steps - self.step
            self._owed = [_AHEAD] * len(self.accounts)
            self._answer()
        while not self._stopping:
            if stop():
                self._stopping = True
            elif self._is_due() and not self._would_be_stale():
                self._learn()
            elif self.step >= until and not self._is_due():
                return True
            else:
                self._wait(lambda: self._take() or stop())  # after a signal it tells the actors, and they answer soon
                self._switch("other")
        return False

    def _would_be_stale(self) -> bool:
        oldest = min(
            (
                self._answers[actor][0]
                for actor, account in enumerate(self.accounts)
                if account.granted > account.stored
            ),
            default=self.version,
        )
        return bool(self.version + 1 - oldest > self._settings.max_staleness)

    def _take(self) -> bool:
        """Store what has come, and answer it. Tell whether anything came."""
        came = False
        for block in self._ports.arrived():
            came = True
            self._store(block)
            self._owed[block["actor"]] += 1
        if any(self._owed) and not self._closed and not (self._is_due() and self._would_be_stale()):
            self._answer()
            self._switch("wait")
        return came

    def _answer(self) -> None:
        """Send weights, and leave to take a block more, to each actor that has sent one and can take a message now."""
        message: WeightsMessage | None = None
        share = self._settings.train_interval // len(self.accounts)
        for actor, account in enumerate(self.accounts):
            if not self._owed[actor] or not self._ports.is_free(actor):
                continue
            message = message or self._written()
            steps = min(share * self._owed[actor], self._left or 0)
            self._left = (self._left or 0) - steps
            account.granted += steps
            self._answers[actor].extend([self.version] * self._owed[actor])
            self._owed[actor] = 0
            message.say(granted=account.granted, stored=account.stored)
            self._ports.send(actor, message)

    def _end(self) -> None:
        message = self._written(end=PREEMPTED if self._stopping else COMPLETED)
        for actor, account in enumerate(self.accounts):
            message.say(granted=account.granted, stored=account.stored)
            self._ports.send(actor, message)
        self._switch("other")
        while not all(account.ended for account in self.accounts):
            self._wait(self._take)
        self._ports.close()
