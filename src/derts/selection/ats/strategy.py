"""ATS as a strategy: each update it tries a batch, learns from its reward and picks the real one.

It is rewarded by accuracy on validation classes, which no other strategy here sees: say so
wherever its numbers stand beside theirs. Two slips of the code its authors released are not
repeated: the context is a mean over tasks, not over features, and validation tasks come from
validation classes, not from training images.

On a GPU all of it happens there: scores, reward and chosen tasks are never read, so that the
program queues one update after the other and waits for none.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import torch

from derts.config import StrategyConfig
from derts.data.table import ImageTable
from derts.errors import DertsError
from derts.evaluation import accuracies
from derts.hardware import one_thread
from derts.learners.anil import ANIL
from derts.learners.embedding import Named, in_round_numbers, named_images
from derts.learners.maml import MAML
from derts.selection.ats.cuda_graph import DecisionInputs, DrawnTasks, RecordedDecision
from derts.selection.ats.scheduler import STEPS_OF_PROGRESS, Scheduler, gumbel, sample_in_order
from derts.selection.ats.signals import (
    ObservedTasks,
    TaskSignals,
    observe_tasks,
    running_statistics,
    task_signals,
)
from derts.selection.strategy import Context, MetaBatch, State, Strategy, draw_one
from derts.tasks.pool import TaskPool
from derts.tasks.randomness import generator

CANDIDATES = 5  # × the meta-batch
LEAST_TEMPERATURE, COOLING = 0.1, 0.99
LEARNING_RATE = 1e-3
BASELINE_MOMENTUM = 0.9


class AdaptiveScheduler(Strategy):
    """Each update: score candidates, try a batch, learn from its reward, then pick the real one.

    Several processes must come to the same choice to the bit: their schedulers stay on the CPU.
    """

    scheduler: Scheduler
    optimiser: torch.optim.Adam

    def __init__(self, config: StrategyConfig) -> None:
        self.warmup = config.warmup
        self.baseline: torch.Tensor | None = None
        self.steps = 0
        self._images_per_task = 0
        self._recorded: RecordedDecision | None = None
        self._ahead: tuple[int, Future[DrawnTasks]] | None = None
        self._drawer = ThreadPoolExecutor(1, "derts-draw")

    def check(self, context: Context) -> None:
        learner = context.learner
        if not isinstance(learner, ANIL | MAML):
            raise DertsError(
                "ats compares gradients of support and query sets and needs a learner that adapts "
                "by gradient steps: use --learner.name anil or maml, or another --strategy.name"
            )
        if context.validation_images is None:
            raise DertsError("ats needs validation classes: prepare the data with a val split")
        task = draw_one(context, images=1)
        self._images_per_task = task.support.shape[1] + task.query.shape[1]
        self.scheduler = Scheduler.from_seed(context.seed)
        if context.group.alone and learner.device.type == "cuda":
            self.scheduler.to(learner.device)
        self.optimiser = torch.optim.Adam(
            self.scheduler.parameters(),
            lr=LEARNING_RATE,
            fused=True,
            capturable=self.device.type == "cuda",
        )

    @property
    def device(self) -> torch.device:
        """Where the scheduler is."""
        return self.scheduler.progress.weight.device

    def next_batch(self, context: Context) -> MetaBatch:
        if context.update < self.warmup:
            return MetaBatch(context.draw(context.meta_batch, "batch", context.update))
        with context.clock.phase("pool"):
            inputs = self._inputs(context)
        self.steps += 1
        if self._recorded is None and self.baseline is not None and self._records(context):
            decide = partial(self._decide, context)
            self._recorded = RecordedDecision(decide, inputs, context.learner.device)
        if self._recorded is not None and self._recorded.fits(inputs):
            with context.clock.phase("selecting"):
                return self._recorded(inputs)
        chosen = self._decide(context, inputs)
        return MetaBatch(inputs.drawn.candidates.to(chosen.device)[chosen])

    def _records(self, context: Context) -> bool:
        """Whether decisions can be recorded as a CUDA graph."""
        learner, validation = context.learner, context.validation_images
        assert validation is not None
        held = context.images.device == validation.device == learner.device
        return (
            context.group.alone
            and held
            and learner.embeds
            and learner.embedding.captures(context.images)
        )

    def _inputs(self, context: Context) -> DecisionInputs:
        drawn = self._drawn(context)
        random = generator((context.seed, "ats", context.update))
        step = min(int(context.progress * STEPS_OF_PROGRESS), STEPS_OF_PROGRESS - 1)
        temperature = max(LEAST_TEMPERATURE, COOLING**self.steps)
        noise = gumbel(2, len(drawn.candidates), random)
        values = (noise, torch.tensor([step]), torch.tensor([temperature]))
        if context.learner.device.type == "cuda":
            return DecisionInputs(drawn, *(value.pin_memory() for value in values))
        return DecisionInputs(drawn, *values)

    def _drawn(self, context: Context) -> DrawnTasks:
        """Candidates and reward tasks, drawn while the last update ran; then start on the next."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead[0] != context.update:
            drawn = self._draw(context, context.update)
        else:
            drawn = ahead[1].result()
        following = context.update + 1
        self._ahead = following, self._drawer.submit(self._draw, context, following)
        return drawn

    def _draw(self, context: Context, update: int) -> DrawnTasks:
        """Candidates share as many different images as one meta-batch has, to cost less."""
        assert context.draw_validation is not None
        assert context.validation_images is not None
        images = context.meta_batch * self._images_per_task
        count = CANDIDATES * context.meta_batch
        candidates = context.draw(count, "candidates", update, images)
        rewarding = context.draw_validation(context.meta_batch, "reward", update, images // 4)
        device = context.learner.device
        return DrawnTasks(
            *_ready_for(device, candidates, context.images),
            *_ready_for(device, rewarding, context.validation_images),
        )

    def _decide(self, context: Context, inputs: DecisionInputs) -> torch.Tensor:
        """Try a batch, learn from it, and choose the real one: its positions [meta_batch]."""
        assert isinstance(context.learner, ANIL | MAML)
        noise, step, temperature = (
            value.to(self.device, non_blocking=True) for value in inputs[1:]
        )
        with running_statistics(context.learner):
            with context.clock.phase("estimating"):
                tasks = self._observe(context, context.learner, inputs.drawn)
            with context.clock.phase("selecting"):
                self._try(context, tasks, inputs.drawn, noise[0], step)
        with context.clock.phase("selecting"), one_thread(), torch.no_grad():
            scores = self.scheduler(tasks.signals, step) / temperature
            return sample_in_order(scores, context.meta_batch, noise[1])[0]

    def _observe(self, context: Context, learner: ANIL | MAML, drawn: DrawnTasks) -> ObservedTasks:
        images, group, pool = context.images, context.group, drawn.candidates
        if group.alone:
            tasks = observe_tasks(learner, images, pool, drawn.named)
            return tasks._replace(signals=tasks.signals.finite_on(self.device))
        part = pool[group.part(len(pool))]
        mine = task_signals(learner, images, part).finite_on(self.device)
        signals = TaskSignals(*(group.gather(values, len(pool)) for values in mine))
        return ObservedTasks(
            pool, signals, lambda which: learner.outer_loss(images, pool[which]).loss
        )

    def _try(
        self,
        context: Context,
        tasks: ObservedTasks,
        drawn: DrawnTasks,
        noise: torch.Tensor,
        step: torch.Tensor,
    ) -> None:
        """Sample a batch that is not trained on, and learn from its reward."""
        with one_thread():
            scores = self.scheduler(tasks.signals, step)
            tried, likelihood = sample_in_order(scores, context.meta_batch, noise)
        reward = self._reward(context, tasks, tried, drawn)
        with one_thread():
            self.optimiser.zero_grad()
            (-likelihood).backward()
            # only now: a scheduler on the CPU works while a GPU is still busy with the reward
            self._learn(context.group.same(reward.to(self.device)))

    def _reward(
        self, context: Context, tasks: ObservedTasks, tried: torch.Tensor, drawn: DrawnTasks
    ) -> torch.Tensor:
        """Accuracy on validation tasks (0 … 1) after one SGD step on those tried, then undone."""
        assert context.validation_images is not None
        learner: Any = context.learner
        parameters = [value for value in learner.parameters() if value.requires_grad]
        steps = torch.autograd.grad(tasks.loss(tried), parameters)
        kept = [value.detach().clone() for value in parameters]
        with torch.no_grad():
            torch._foreach_sub_(parameters, steps, alpha=learner.inner_lr)
            named = drawn.rewarding_named if learner.embeds else None
            found = accuracies(learner, context.validation_images, drawn.rewarding, named).mean()
            torch._foreach_copy_(parameters, kept)
        return found

    def _learn(self, reward: torch.Tensor) -> None:
        """One REINFORCE step with a running mean of rewards as baseline.

        The gradients are those of the negative likelihood.
        """
        reward = reward.double()
        if self.baseline is None:
            self.baseline = reward.clone()
        gradients = [value.grad for value in self.scheduler.parameters() if value.grad is not None]
        torch._foreach_mul_(gradients, (reward - self.baseline).float())
        self.optimiser.step()
        self.baseline.mul_(BASELINE_MOMENTUM).add_((1 - BASELINE_MOMENTUM) * reward)

    def state_dict(self) -> State:
        return {
            "ats_scheduler": self.scheduler.state_dict(),
            "ats_optimiser": self.optimiser.state_dict(),
            "ats_baseline": None if self.baseline is None else float(self.baseline),
            "ats_steps": self.steps,
        }

    def load_state_dict(self, state: State) -> None:
        if "ats_scheduler" not in state:  # another strategy's warm-up has none
            return
        self.scheduler.load_state_dict(state["ats_scheduler"])
        self.optimiser.load_state_dict(state["ats_optimiser"])
        for group in self.optimiser.param_groups:  # this device's affair, not the state's
            group["capturable"] = self.device.type == "cuda"
        self._recorded = None
        self.steps, baseline = state["ats_steps"], state["ats_baseline"]
        self.baseline = None
        if baseline is not None:
            self.baseline = torch.tensor(baseline, dtype=torch.float64, device=self.device)


def _ready_for(device: torch.device, pool: TaskPool, table: ImageTable) -> tuple[TaskPool, Named]:
    """A pool and its `named_images`, from where a device can fetch them in the background.

    For a GPU the last image is named a few times more: convolutions of a size that they have not
    met take long to plan.
    """
    images, places = named_images(torch.cat((pool.support, pool.query), 1), len(table))
    if device.type != "cuda":
        return pool, (images, places)
    return pool.pinned(), (in_round_numbers(images).pin_memory(), places.pin_memory())
