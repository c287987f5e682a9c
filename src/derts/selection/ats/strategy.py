"""ATS, the adaptive task scheduler (Yao et al., NeurIPS 2021): a small network picks the tasks.

It is rewarded by accuracy on validation classes, which no other strategy here sees: say so
wherever its numbers stand beside theirs. Two slips of the code its authors released are not
repeated: the context is a mean over tasks, not over features, and validation tasks come from
validation classes, not from training images.

On a GPU scores, reward and chosen tasks are never read, so that the program waits for none.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor

from derts.config import StrategyConfig
from derts.data.table import Table
from derts.errors import DertsError
from derts.evaluation import accuracies
from derts.hardware import one_thread
from derts.learners import ANIL, MAML
from derts.learners.pool_features import distinct_images, evaluation_mode, in_round_numbers
from derts.selection.ats.network import (
    STEPS_OF_PROGRESS,
    OuterLoss,
    Scheduler,
    gumbel,
    observe_tasks,
    sample_in_order,
)
from derts.selection.strategy import Context, MetaBatch, State, Strategy
from derts.tasks import TaskPool, generator

CANDIDATES = 5  # × the meta-batch
LEAST_TEMPERATURE, COOLING = 0.1, 0.99
LEARNING_RATE = 1e-3
BASELINE_MOMENTUM = 0.9


class DecisionInputs(NamedTuple):
    """All that an update's decision depends on beside learner and scheduler."""

    candidates: TaskPool
    images: Tensor  # this and the next: their `distinct_images`
    places: Tensor
    rewarding: TaskPool  # clean tasks for the reward
    reward_images: Tensor
    reward_places: Tensor
    noise: Tensor  # [2, T]: for trying and for choosing
    step: Tensor  # int64 [1]: this and the next are known last
    temperature: Tensor  # [1]

    def tensors(self) -> list[Tensor]:
        """All of them, in one order."""
        pools = [*self.candidates.tensors().values(), *self.rewarding.tensors().values()]
        return [*pools, *(part for part in self if isinstance(part, Tensor))]

    def pinned_for(self, device: torch.device) -> DecisionInputs:
        """The same from where a GPU can fetch it in the background; for a CPU as it is."""
        parts: Any = self if device.type != "cuda" else (part.pin_memory() for part in self)
        return DecisionInputs(*parts)


CapturedDecision = tuple[torch.cuda.CUDAGraph, DecisionInputs, Tensor]
"""A decision as a CUDA graph, where it finds its inputs, and where it leaves the positions."""


class AdaptiveScheduler(Strategy):
    """Each update: score candidates, try a batch, learn from its reward, then pick the real one.

    Several processes must choose the same to the bit: their schedulers stay on the CPU.
    """

    scheduler: Scheduler
    optimiser: torch.optim.Adam
    device: torch.device  # of the scheduler

    def __init__(self, config: StrategyConfig) -> None:
        self.warmup = config.warmup
        self.baseline: Tensor | None = None
        self.steps = 0
        self._images_per_task = 0
        self._captured: CapturedDecision | None = None
        self._ahead: tuple[int, Future[DecisionInputs]] | None = None
        self._drawer = ThreadPoolExecutor(1, "derts-draw")

    def check(self, context: Context) -> None:
        learner = context.learner
        if not isinstance(learner, ANIL | MAML):
            fix = "use --learner.name anil or maml, or another --strategy.name"
            raise DertsError(f"ats needs a learner that adapts by gradient steps: {fix}")
        if context.validation_images is None:
            raise DertsError("ats needs validation classes: prepare the data with a val split")
        task = context.draw(1, "check", 0)
        self._images_per_task = task.support.shape[1] + task.query.shape[1]
        self.scheduler = Scheduler.from_seed(context.seed)
        on_gpu = context.group.alone and learner.device.type == "cuda"
        self.device = learner.device if on_gpu else torch.device("cpu")
        self.scheduler.to(self.device)
        self.optimiser = torch.optim.Adam(
            self.scheduler.parameters(), lr=LEARNING_RATE, fused=True, capturable=on_gpu
        )

    def next_batch(self, context: Context) -> MetaBatch:
        if context.update < self.warmup:
            return context.random_batch(context.update)
        with context.clock.phase("pool"):
            inputs = self._inputs(context)
        self.steps += 1
        self._captured = self._captured or self._capture(context, inputs)
        if self._captured is not None:
            graph, here, chosen = self._captured
            pairs = list(zip(here.tensors(), inputs.tensors(), strict=True))
            if all(mine.shape == other.shape for mine, other in pairs):
                with context.clock.phase("selecting"):
                    for mine, other in pairs:
                        mine.copy_(other, non_blocking=True)
                    graph.replay()
                    return MetaBatch(here.candidates[chosen])
        chosen = self._decide(context, inputs)
        return MetaBatch(inputs.candidates.to(chosen.device)[chosen])

    def _capture(self, context: Context, inputs: DecisionInputs) -> CapturedDecision | None:
        """A decision as a CUDA graph where that can be, once a plain one has compiled all."""
        learner, validation = context.learner, context.validation_images
        assert validation is not None
        held = context.images.device == validation.device == learner.device
        possible = context.group.alone and held and learner.embeds
        if self.baseline is None or not (possible and learner.embedding.captures(context.images)):
            return None
        parts: Any = (part.to(learner.device).clone() for part in inputs)
        here, graph = DecisionInputs(*parts), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            chosen = self._decide(context, here)
        return graph, here, chosen

    def _inputs(self, context: Context) -> DecisionInputs:
        """Tasks drawn while the last update ran; the thread then starts on the next."""
        ahead, self._ahead = self._ahead, None
        known = ahead[1].result() if ahead and ahead[0] == context.update else None
        drawn = known or self._draw(context, context.update)
        following = context.update + 1
        self._ahead = following, self._drawer.submit(self._draw, context, following)
        step = min(int(context.progress * STEPS_OF_PROGRESS), STEPS_OF_PROGRESS - 1)
        temperature = torch.tensor([max(LEAST_TEMPERATURE, COOLING**self.steps)])
        inputs = drawn._replace(step=torch.tensor([step]), temperature=temperature)
        return inputs.pinned_for(context.learner.device)

    def _draw(self, context: Context, update: int) -> DecisionInputs:
        """Candidates share as many different images as one meta-batch has, to cost less."""
        assert context.draw_validation is not None
        assert context.validation_images is not None
        images = context.meta_batch * self._images_per_task
        count = CANDIDATES * context.meta_batch
        candidates = context.draw(count, "candidates", update, images)
        rewarding = context.draw_validation(context.meta_batch, "reward", update, images // 4)
        noise = gumbel(2, count, generator((context.seed, "ats", update)))
        device = context.learner.device
        return DecisionInputs(
            *_with_images(device, candidates, context.images),
            *_with_images(device, rewarding, context.validation_images),
            noise,
            *(torch.zeros(1),) * 2,
        ).pinned_for(device)

    def _decide(self, context: Context, inputs: DecisionInputs) -> Tensor:
        """Try a batch, learn from its reward, and choose the real one: positions [meta_batch]."""
        learner, clock, count = context.learner, context.clock, context.meta_batch
        assert isinstance(learner, ANIL | MAML)
        noise, step, temperature = (
            value.to(self.device, non_blocking=True)
            for value in (inputs.noise, inputs.step, inputs.temperature)
        )
        distinct, pool, group = (inputs.images, inputs.places), inputs.candidates, context.group
        with evaluation_mode(learner), torch.enable_grad():
            with clock.phase("estimating"):
                seen = observe_tasks(learner, context.images, pool, distinct, group, self.device)
                signals, outer_loss = seen
            with clock.phase("selecting"):
                with one_thread():
                    scores = self.scheduler(signals, step)
                    tried, likelihood = sample_in_order(scores, count, noise[0])
                reward = self._reward(context, outer_loss, tried, inputs)
                with one_thread():
                    self.optimiser.zero_grad()
                    (-likelihood).backward()
                    # only now: a scheduler on the CPU works while a GPU is busy with the reward
                    self._learn(group.same(reward.to(self.device)))
        with clock.phase("selecting"), one_thread(), torch.no_grad():
            scores = self.scheduler(signals, step) / temperature
            return sample_in_order(scores, count, noise[1])[0]

    def _reward(
        self, context: Context, outer_loss: OuterLoss, tried: Tensor, inputs: DecisionInputs
    ) -> Tensor:
        """Accuracy on validation tasks (0 … 1) after one SGD step on those tried, then undone."""
        assert context.validation_images is not None
        learner: Any = context.learner
        parameters = [value for value in learner.parameters() if value.requires_grad]
        steps = torch.autograd.grad(outer_loss(tried), parameters)
        kept = [value.detach().clone() for value in parameters]
        distinct = (inputs.reward_images, inputs.reward_places) if learner.embeds else None
        with torch.no_grad():
            torch._foreach_sub_(parameters, steps, alpha=learner.inner_lr)
            each = accuracies(learner, context.validation_images, inputs.rewarding, distinct)
            torch._foreach_copy_(parameters, kept)
        return each.mean()

    def _learn(self, reward: Tensor) -> None:
        """One REINFORCE step from the gradients of −likelihood; baseline: a running mean."""
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
        self._captured = self.baseline = None
        self.steps, baseline = state["ats_steps"], state["ats_baseline"]
        if baseline is not None:
            self.baseline = torch.tensor(baseline, dtype=torch.float64, device=self.device)


def _with_images(
    device: torch.device, pool: TaskPool, table: Table
) -> tuple[TaskPool, Tensor, Tensor]:
    """A pool and its `distinct_images`; for a GPU the last image is repeated
    `in_round_numbers`: convolutions of a size that they have not met take long to plan.
    """
    images, places = distinct_images(torch.cat((pool.support, pool.query), 1), len(table))
    return pool, in_round_numbers(images) if device.type == "cuda" else images, places
