"""The only loop around a Trainer: from stop to stop, and what is done and written at each."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from derts.distributed import LostProcessError
from derts.errors import DISK_FULL, DertsError, InterruptedRunError
from derts.files import write_json
from derts.progress import Advance, unheard
from derts.selection.round_record import RoundRecord
from derts.training.bad_numbers import BadNumbersError
from derts.training.checkpoint import load_warmup, save_checkpoint
from derts.training.result import Result, evaluation_event, make_result
from derts.training.run_folder import Event, Listen, Run, point_file
from derts.training.trainer import Trainer


@dataclass
class Driver:
    """Trains one run and measures it. Of several processes the leading one alone writes."""

    trainer: Trainer
    run: Run | None = None  # None: events are held in memory, nothing is written
    until: int | None = None  # the update to end at and measure; None: the last
    points: Sequence[int] = ()  # updates to measure as well; each leaves a result-NNNNNNN.json
    warmup: Path | None = None  # where its end is left for, or taken from, other strategies' runs
    listen: Listen | None = None  # hears every event that is logged
    go_on: str = ""  # what a user does to go on after an interruption, for error messages
    _held: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        kept = "" if self.run is None else f"go on with derts train --resume {self.run.path}"
        self.go_on = self.go_on or kept or "nothing was kept, as no --out was given"
        if self.trainer.group.leads:
            self.trainer.log = self._log
            if self.run is not None:
                self.trainer.context.keep_round = self._keep_round

    def drive(
        self, advance: Advance = unheard, stopping: Callable[[], bool] = lambda: False
    ) -> Result:
        """Train; the result at `until`. Where `stopping` ends it before, all is saved."""
        trainer, config = self.trainer, self.trainer.config
        until = config.updates if self.until is None else min(self.until, config.updates)
        with self._one_line_errors():
            self._take_warmup()
            # where a process was killed between a checkpoint and its result, this measures
            result = self._measure(until)
            if trainer.update < until:
                trainer.log({"event": "start", "update": trainer.update})
                advance(trainer.update, before=True)
            every = [step for step in (config.checkpoint_every, config.validate_every) if step]
            while (update := trainer.update) < until:
                stops = [(update // step + 1) * step for step in every]
                stops += [self._warmup_end, *self.points, *trainer.weights.points, until]
                stop = min(one for one in stops if one > update)
                trainer.train(stop, advance, stopping)
                if trainer.update < stop:
                    self._save()
                    trainer.group.let_leader_speak()
                    saved = "" if self.run is None else "all is saved, "
                    ended = f"interrupted at update {trainer.update}: {saved}{self.go_on}"
                    raise InterruptedRunError(ended)
                if trainer.weights.validation_is_due():
                    trainer.log(evaluation_event("validation", trainer, trainer.weights.validate()))
                if trainer.update == self._warmup_end:
                    self._share_warmup()
                at_point = trainer.update in (*self.points, until)
                if at_point or trainer.update % config.checkpoint_every == 0:
                    self._save()
                result = self._measure(until)  # last: a result says that its model is there
            if result is None:
                where = "the run" if self.run is None else self.run.path
                past = f"went on past update {until} without being evaluated there"
                raise DertsError(f"{where} {past}: remove the folder to train it again")
            return result

    def events(self) -> list[Event]:
        """All events of the run, those from before it was resumed too."""
        return self._held if self.run is None else list(self.run.events())

    @property
    def _warmup_end(self) -> int:
        config = self.trainer.config
        if self.warmup is None or self.trainer.looks is not None:  # which trains on other labels
            return 0
        return min(config.strategy.warmup, config.updates)

    def _log(self, event: Event) -> None:
        if self.run is None:
            self._held.append(event)
        else:
            self.run.log(event)
        if self.listen is not None:
            self.listen(event)

    def _keep_round(self, record: RoundRecord) -> None:
        """Keep what a round decided, with the labels by which its tasks can be drawn again."""
        assert self.run is not None
        looks = self.trainer.looks
        if looks is not None and looks.changed:
            record = replace(record, labels=looks.labels)
        self.run.keep_round(record)

    def _save(self) -> None:
        run, trainer = self.run, self.trainer
        if run is None:
            return

        def write() -> None:
            state = {**trainer.state_dict(), "logs": run.log_lengths()}
            save_checkpoint(run.path / "checkpoints", trainer.update, state)

        with trainer.clock.phase("checkpoint"):
            trainer.group.first(write)

    def _measure(self, until: int) -> Result | None:
        """The result where one is due: measured and written, or as it is there already."""
        trainer, run, update = self.trainer, self.run, self.trainer.update
        at_end, at_point = update == trainer.config.updates, update in self.points
        if update < until and not at_point:
            return None
        found = trainer.group.same(self._result_at(min(update, until)))
        if found is not None or update > until:
            return found
        evaluation = trainer.weights.evaluate(trainer.config.evaluation.split)
        if at_end:
            trainer.log(evaluation_event("evaluation", trainer, evaluation))
            if gain := trainer.gain(evaluation):
                trainer.log({"event": "note", "update": update, "text": gain})
        result = make_result(trainer, evaluation, self.events())
        if run is not None and trainer.group.leads:
            if at_end:
                write_json(run.path / "result.json", result)
            if at_point:
                write_json(point_file(run.path, update), result)
        return result

    def _result_at(self, update: int) -> Result | None:
        """What was measured at one of the points before."""
        return self.run.result(update) if self.run is not None and update in self.points else None

    def _take_warmup(self) -> None:
        """Begin after the warm-up that another run left, if no point lies before its end."""
        end = self._warmup_end
        if not end or self.trainer.update or min(self.points, default=end) < end:
            return
        assert self.warmup is not None
        if (found := load_warmup(self.warmup)) is not None:
            self.trainer.load_state_dict(found)
            for event in found["events"]:
                self.trainer.log(event)
            self._save()

    def _share_warmup(self) -> None:
        """Leave the end of the warm-up for others, or take theirs if they were first."""
        assert self.warmup is not None
        found = load_warmup(self.warmup)
        if found is None:
            state = {**self.trainer.state_dict(), "events": self.events()}
            save_checkpoint(self.warmup, self.trainer.update, state)
        else:
            self.trainer.load_state_dict({**found, "seconds": self.trainer.clock.seconds})

    @contextmanager
    def _one_line_errors(self) -> Iterator[None]:
        """What ends training, and how to go on, said in one line."""
        run, trainer = self.run, self.trainer
        try:
            yield
        except KeyboardInterrupt:
            ended = f"interrupted in the middle of update {trainer.update + 1}: {self.go_on}"
            raise InterruptedRunError(ended) from None
        except LostProcessError as error:
            raise DertsError(f"{error} at update {trainer.update}: {self.go_on}") from None
        except BadNumbersError as error:
            kept = ""
            if run is not None and trainer.group.leads:
                where = run.path / "bad-tasks.safetensors"
                error.tasks.save(where)
                kept = f" ({len(error.tasks)} of its tasks are in {where}: TaskPool.load)"
            trainer.group.let_leader_speak()
            raise DertsError(f"{error}{kept}") from None
        except OSError as error:
            if error.errno not in DISK_FULL or run is None:
                raise
            full = f"the disk of {run.path} is full at update {trainer.update}"
            raise DertsError(f"{full}: free some space, then {self.go_on}") from None
