"""ATS, the adaptive task scheduler (Yao et al., NeurIPS 2021): a small network picks the tasks.

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
from derts.selection.agreement import (
    Agreement,
    Candidates,
    gradient_agreement,
    look_at,
    running_statistics,
)
from derts.selection.recorded import Drawn, Question, Recorded
from derts.selection.scheduler import STEPS_OF_PROGRESS, Scheduler, gumbel, sample_in_order
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

    def __init__(self, config: StrategyConfig) -> None:
        self.warmup = config.warmup
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.scheduler = Scheduler()
        self.optimiser = self._make_optimiser()
        self.baseline: torch.Tensor | None = None
        self.steps = 0
        self._recorded: Recorded | None = None
        self._images_per_task = 0
        self._ahead: tuple[int, Future[Drawn]] | None = None
        self._drawer = ThreadPoolExecutor(1, "derts-draw")

    def check(self, context: Context) -> None:
        if not isinstance(context.learner, ANIL | MAML):
            raise DertsError(
                "ats compares gradients of support and query sets and needs a learner that adapts "
                "by gradient steps: use --learner.name anil or maml, or another --strategy.name"
            )
        if context.validation_images is None:
            raise DertsError("ats needs validation classes: prepare the data with a val split")
        draw_one(context, images=1)
        if context.group.alone and context.learner.device.type == "cuda":
            self.scheduler.to(context.learner.device)
            self.optimiser = self._make_optimiser()

    def _make_optimiser(self) -> torch.optim.Adam:
        on_gpu = self.device.type == "cuda"
        return torch.optim.Adam(
            self.scheduler.parameters(), lr=LEARNING_RATE, fused=True, capturable=on_gpu
        )

    @property
    def device(self) -> torch.device:
        """Where the scheduler is."""
        return self.scheduler.progress.weight.device

    def next_batch(self, context: Context) -> MetaBatch:
        if context.update < self.warmup:
            return MetaBatch(context.draw(context.meta_batch, "batch", context.update))
        with context.clock.phase("pool"):
            question = self._question(context)
        self.steps += 1
        if self._recorded is None and self.baseline is not None and self._records(context):
            decide = partial(self._decide, context)
            self._recorded = Recorded(decide, question, context.learner.device)
        if self._recorded is not None and self._recorded.fits(question):
            with context.clock.phase("selecting"):
                return self._recorded(question)
        chosen = self._decide(context, question)
        candidates = question.drawn.candidates
        return MetaBatch(candidates.to(chosen.device)[chosen])

    def _records(self, context: Context) -> bool:
        learner, validation = context.learner, context.validation_images
        assert validation is not None
        held = context.images.device == validation.device == learner.device
        return context.group.alone and held and learner.captures_on(context.images)

    def _question(self, context: Context) -> Question:
        drawn = self._drawn(context)
        random = generator((context.seed, "ats", context.update))
        step = min(int(context.progress * STEPS_OF_PROGRESS), STEPS_OF_PROGRESS - 1)
        temperature = max(LEAST_TEMPERATURE, COOLING**self.steps)
        noise = gumbel(2, len(drawn.candidates), random)
        found = (noise, torch.tensor([step]), torch.tensor([temperature]))
        if context.learner.device.type == "cuda":
            return Question(drawn, *(value.pin_memory() for value in found))
        return Question(drawn, *found)

    def _decide(self, context: Context, question: Question) -> torch.Tensor:
        """Try a batch, learn from it, and choose the real one: its positions [meta_batch]."""
        assert isinstance(context.learner, ANIL | MAML)
        noise, step, temperature = (
            value.to(self.device, non_blocking=True) for value in question[1:]
        )
        with running_statistics(context.learner):
            with context.clock.phase("estimating"):
                candidates = self._look_at(context, question.drawn)
            with context.clock.phase("selecting"):
                self._try(context, candidates, question.drawn, noise[0], step)
        with context.clock.phase("selecting"), one_thread(), torch.no_grad():
            scores = self.scheduler(candidates.signs, step) / temperature
            return sample_in_order(scores, context.meta_batch, noise[1])[0]

    def _look_at(self, context: Context, drawn: Drawn) -> Candidates:
        learner, images, group = context.learner, context.images, context.group
        pool = drawn.candidates
        assert isinstance(learner, ANIL | MAML)
        if group.alone:
            seen = look_at(learner, images, pool, drawn.named)
            return seen._replace(signs=seen.signs.finite_on(self.device))
        part = pool[group.part(len(pool))]
        mine = gradient_agreement(learner, images, part).finite_on(self.device)
        signs = Agreement(*(group.gather(values, len(pool)) for values in mine))
        return Candidates(pool, signs, lambda which: learner.outer_loss(images, pool[which]).loss)

    def _try(
        self,
        context: Context,
        candidates: Candidates,
        drawn: Drawn,
        noise: torch.Tensor,
        step: torch.Tensor,
    ) -> None:
        """Sample a batch that is not trained on, and learn from its reward."""
        with one_thread():
            scores = self.scheduler(candidates.signs, step)
            tried, likelihood = sample_in_order(scores, context.meta_batch, noise)
        reward = self._reward(context, candidates, tried, drawn)
        with one_thread():
            self.optimiser.zero_grad()
            (-likelihood).backward()
            # only now: a scheduler on the CPU works while a GPU is still busy with the reward
            self._learn(context.group.same(reward.to(self.device)))

    def _drawn(self, context: Context) -> Drawn:
        """Candidates and reward tasks, drawn while the last update ran; then start on the next."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead[0] != context.update:
            drawn = self._draw(context, context.update)
        else:
            drawn = ahead[1].result()
        following = context.update + 1
        self._ahead = following, self._drawer.submit(self._draw, context, following)
        return drawn

    def _draw(self, context: Context, update: int) -> Drawn:
        """Candidates share as many different images as one meta-batch has, to cost less."""
        assert context.draw_validation is not None
        if not self._images_per_task:
            task = context.draw(1, "check", 0)
            self._images_per_task = task.support.shape[1] + task.query.shape[1]
        images = context.meta_batch * self._images_per_task
        count = CANDIDATES * context.meta_batch
        candidates = context.draw(count, "candidates", update, images)
        rewarding = context.draw_validation(context.meta_batch, "reward", update, images // 4)
        assert context.validation_images is not None
        device = context.learner.device
        return Drawn(
            *_ready_for(device, candidates, context.images),
            *_ready_for(device, rewarding, context.validation_images),
        )

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

    def _reward(
        self, context: Context, candidates: Candidates, tried: torch.Tensor, drawn: Drawn
    ) -> torch.Tensor:
        """Accuracy on validation tasks (0 … 1) after one SGD step on those tried, then undone."""
        assert context.validation_images is not None
        learner: Any = context.learner
        parameters = [value for value in learner.parameters() if value.requires_grad]
        steps = torch.autograd.grad(candidates.loss(tried), parameters)
        kept = [value.detach().clone() for value in parameters]
        with torch.no_grad():
            torch._foreach_sub_(parameters, steps, alpha=learner.inner_lr)
            named = drawn.rewarding_named if learner.embeds else None
            tasks, images = drawn.rewarding, context.validation_images
            found = accuracies(learner, images, tasks, named).mean()
            torch._foreach_copy_(parameters, kept)
        return found

    def state_dict(self) -> State:
        return {
            "ats_scheduler": self.scheduler.state_dict(),
            "ats_optimiser": self.optimiser.state_dict(),
            "ats_baseline": None if self.baseline is None else float(self.baseline),
            "ats_steps": self.steps,
        }

    def load_state_dict(self, state: State) -> None:
        if "ats_scheduler" in state:  # another strategy's warm-up has none
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
