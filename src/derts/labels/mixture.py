"""The model behind `label_trust`: true classes, prototypes, and how labels are confused.

Every image has one true class and one given class. Features of a true class are spread around
its prototype, a given class comes from the true one by a confusion that is the same for all images
of a class. Both are fitted to the given labels alone, by expectation maximisation:

    P(true = c | x)         softmax of −β/2 · ‖x − prototype of c‖², x whitened within classes
    P(given = k | true = c) confusion: one rate of wrong labels for all, or pairs of classes
    trust = P(true = given | x, given)

An image is left out of its own prototype. β, how much the embedding is believed, is fitted as well:
where classes overlap, β is small, and a label is distrusted only where another class is far more
probable than chance. Prototypes are means of images weighted by trust. All that is fitted are sums
over images, so parts of the data in several processes give the same answer.
"""

from collections.abc import Callable, Iterator
from functools import reduce
from operator import add

import torch
from torch import Tensor

from derts.distributed import Group
from derts.errors import DertsError
from derts.labels.trust import Trust

SHRINKAGE = 10.0  # images per dimension with which the spread within classes is half believed
START_WRONG = 0.3  # share of wrong labels that the search for pairs begins with
BLOCK = 1 << 24  # numbers that a block of images may take, features and classes each …
BLOCK_ON_CPU = 1 << 20  # … and as many as stay in its cache
BELIEFS: tuple[float, ...] = tuple(2.0 ** (step / 2) for step in range(-16, 5))  # β, to be tried
NEAR = 2  # places in that list, up and down, from one round to the next
RATES = (0.005, 0.02, 0.05, *(step / 20 for step in range(2, 18)))  # of wrong labels, likewise
CLEAN_GAIN = 0.01  # nats per label by which wrong labels must explain more than none at all
SAMPLED = 5_000  # images, about, by which β is chosen
SUPPOSED_WRONG = 0.1  # share of the labels, to say how many of them would be seen
PRIOR_WRONG = 0.02  # the rate of wrong labels before anything was seen …
PRIOR_IMAGES = 20.0  # … which weighs as much as so many images
FEWEST_CONFUSED = 0.05  # of a class's images, where two classes are a pair that labels confuse
BESIDE_PAIRS = 0.01  # rate of wrong labels between classes that are no pair


class Mixture:
    """The model: prototypes, whitening, belief β, confusion; and each image's trust so far.

    strength  how much a class's confusion is drawn to that of all classes: as by so many images
              for each of its own
    """

    def __init__(
        self, rows: Tensor, given: Tensor, sizes: Tensor, group: Group, strength: float
    ) -> None:
        self.rows, self.given, self.sizes, self.group = rows, given, sizes.to(rows.device), group
        self.count, self.dim = len(sizes), rows.shape[1]
        block = BLOCK_ON_CPU if rows.device.type == "cpu" else BLOCK
        self.block = max(self.count, block // max(self.dim, self.count))
        self.images = float(sizes.sum())
        self.step = max(1, round(self.images / SAMPLED))  # of the images by which β is chosen
        self.trusted = torch.ones(len(rows), device=rows.device)
        self.lengths = torch.zeros(len(rows), dtype=rows.dtype, device=rows.device)  # whitened, ²
        first = self._sum(lambda part: rows[part].double().sum(0))
        self.centre = (first / self.images).to(rows.dtype)
        self.strength, self.belief = strength, 1.0
        self.tried = range(len(BELIEFS))  # which values of β; later those near the best one
        self.pairs: Tensor | None = None  # bool [true, given]: what alone may be confused, if known
        self.common = self._all_alike(START_WRONG)
        # expected numbers [true, given], and what each image adds in its two likeliest cells
        self.counts = self.common * 0
        self.other, self.other_mass = given.clone(), torch.zeros(len(rows), device=rows.device)
        self.own_mass = torch.zeros(len(rows), device=rows.device)
        self.share = self.sizes / self.images  # of true classes
        self._set_prior()

    def _parts(self, step: int = 1) -> Iterator[slice]:
        """Every `step`-th image, a block at a time; of none, one block without images."""
        for start in range(0, max(1, len(self.rows)), self.block * step):
            yield slice(start, start + self.block * step, step)

    def _sum(self, of: Callable[[slice], Tensor], step: int = 1) -> Tensor:
        """Σ over every `step`-th image of all processes of what `of` gives for a part of them."""
        return self.group.total(reduce(add, map(of, self._parts(step))))

    def _all_alike(self, wrong: float) -> Tensor:
        """Confusion [true, given] with the same rate of wrong labels everywhere."""
        others = wrong / (self.count - 1)
        found = torch.full((self.count, self.count), others, dtype=torch.float64)
        return found.fill_diagonal_(1 - wrong).to(self.rows.device)

    def improve(self, one_rate: bool = False, sharper: float = 1.0, whiten: bool = True) -> None:
        """One round: prototypes and whitening by trust, belief, then trust and confusion."""
        self._fit_prototypes(whiten)
        if one_rate:
            self.belief, rate = self._best_belief_and_rate()
            self.common, self.counts = self._all_alike(rate), self.counts * 0
            self.own_mass, self.other_mass = self.own_mass * 0, self.other_mass * 0
            self._set_prior()
        else:
            self.belief = self._best_belief() * sharper
        counts = torch.zeros_like(self.counts)
        for part in self._parts():
            posterior, given = self._posterior(part), self.given[part, None]
            counts.index_add_(0, given[:, 0], posterior.double())
            own = posterior.gather(1, given).squeeze(1).float()
            others = posterior.scatter(1, given, 0.0).max(1)
            self.trusted[part] = self.own_mass[part] = own
            self.other[part], self.other_mass[part] = others.indices, others.values.float()
        self.counts = self.group.total(counts).T
        total, right = self.counts.sum(), self.counts.diagonal().sum()
        wrong = (total - right + PRIOR_WRONG * PRIOR_IMAGES) / (total + PRIOR_IMAGES)
        self.common = self._all_alike(float(wrong))
        if self.pairs is not None:
            self.common = self._all_alike(BESIDE_PAIRS)
            self.counts = self.counts * self.pairs
            total = self.counts.sum()
        self.share = (self.counts.sum(1) + 1) / (total + self.count)
        self._set_prior()

    def keep_pairs(self) -> None:
        """From here on only those classes are confused that are confused often.

        Where classes overlap, every image is a little like many others: taken for wrong labels,
        that hides the pairs which labels do confuse.
        """
        shares = self.counts / self.counts.sum(1, keepdim=True).clamp(min=1e-12)
        self.pairs = (shares > FEWEST_CONFUSED).fill_diagonal_(True)

    @property
    def pairs_found(self) -> int:
        """How many pairs of a true and a given class labels confuse."""
        return 0 if self.pairs is None else int(self.pairs.sum()) - self.count

    def _fit_prototypes(self, whiten: bool) -> None:
        """Means of the given classes weighted by trust."""
        dim = self.dim

        def sums(part: slice) -> Tensor:
            weighted = (self.rows[part] - self.centre) * self.trusted[part, None]
            joined = torch.cat((weighted, self.trusted[part, None].to(weighted)), 1).double()
            found = torch.zeros(self.count, dim + 1, dtype=torch.float64, device=self.rows.device)
            return found.index_add_(0, self.given[part], joined)

        total = self._sum(sums)
        self.weights = total[:, dim]
        self.means = (total[:, :dim] / self.weights[:, None].clamp(min=1e-12)).to(self.rows.dtype)

        if whiten:
            self.whiten = self._whitening()
            for part in self._parts():
                white = (self.rows[part] - self.centre) @ self.whiten
                self.lengths[part] = white.square().sum(1)
        self.prototypes = self.means @ self.whiten
        self.directions = self.whiten @ self.prototypes.T

    def _whitening(self) -> Tensor:
        """[d, d] after which the spread within classes is about the same in all directions."""

        def spread(part: slice) -> Tensor:
            apart = self.rows[part] - self.centre - self.means[self.given[part]]
            return (apart * self.trusted[part, None]).T.double() @ apart.double()

        freedom = float((self.weights - 1).clamp(min=0).sum())
        covariance = self._sum(spread) / max(freedom, 1.0)
        level = float(covariance.diagonal().mean()) or 1.0
        shrinkage = SHRINKAGE * self.dim / (SHRINKAGE * self.dim + freedom)
        identity = torch.eye(self.dim, dtype=covariance.dtype, device=covariance.device)
        mixed = (1 - shrinkage) * covariance + (shrinkage + 1e-6) * level * identity
        if not bool(mixed.isfinite().all()):
            fix = "scale them to numbers of about 1"
            raise DertsError(f"the features are too large to compute their spread: {fix}")
        root = torch.linalg.cholesky(mixed)  # x ↦ x L⁻ᵀ for mixed = L Lᵀ
        found: Tensor = torch.linalg.solve_triangular(root, identity, upper=False).T.to(self.rows)
        return found

    def _distances(self, part: slice) -> Tensor:
        """Squared distances [n, C] to the prototypes, each image left out of its own."""
        lengths = self.prototypes.square().sum(1)
        found = torch.addmm(lengths, self.rows[part] - self.centre, self.directions, alpha=-2)
        found.add_(self.lengths[part, None]).clamp_(min=0)
        given, own = self.given[part, None], self.trusted[part, None]
        mass = self.weights[self.given[part], None].to(own)
        # without itself the mean lies further away; the last one of a class has none
        further = (mass / (mass - own).clamp(min=1e-6)).square().clamp(max=1e4)
        found.scatter_(1, given, found.gather(1, given) * further.to(found))
        empty = self.weights < 1e-6
        return found.masked_fill_(empty, float("inf")) if bool(empty.any()) else found

    def _posterior(self, part: slice) -> Tensor:
        """P(true class | features, given class) [n, C]."""
        return self._distances(part).mul_(-0.5 * self.belief).add_(self._prior(part)).softmax(1)

    def _set_prior(self) -> None:
        """Logarithm of P(true class) · P(given class | true class) [given, true]."""
        size = self.counts.sum(1)
        self.size, self.pull = size, self.strength * size.clamp(min=1)
        mixed = (self.counts + self.pull[:, None] * self.common) / (size + self.pull)[:, None]
        self.prior = (self.share[:, None] * mixed).log().T.to(self.rows.dtype)

    def _prior(self, part: slice) -> Tensor:
        """The same for each image [n, C], left out of what it itself is likely a case of."""
        given = self.given[part]
        found = self.prior[given]
        for true, mass in (given, self.own_mass[part]), (self.other[part], self.other_mass[part]):
            kept = (self.counts[true, given] - mass).clamp(min=0)
            kept = kept + self.pull[true] * self.common[true, given]
            chance = self.share[true] * kept / (self.size[true] - mass + self.pull[true])
            found.scatter_(1, true[:, None], chance.log()[:, None].to(found))
        return found

    def _best_belief_and_rate(self) -> tuple[float, float]:
        """β and the rate of wrong labels under which the given labels are most probable."""
        rates = torch.tensor(RATES, dtype=torch.float64, device=self.rows.device)

        def likelihoods(part: slice) -> Tensor:
            distances, given = self._distances(part), self.given[part, None]
            share = self.share.log().to(distances)
            found = []
            for belief in BELIEFS:
                right = (-0.5 * belief * distances + share).softmax(1).gather(1, given).double()
                mixed = (1 - rates) * right + rates * (1 - right) / (self.count - 1)
                found.append(mixed.clamp(min=1e-300).log().sum(0))
            return torch.stack(found)

        total = self._sum(likelihoods, self.step) * self.step
        total = total + PRIOR_IMAGES * (
            PRIOR_WRONG * rates.log() + (1 - PRIOR_WRONG) * (1 - rates).log()
        )
        place = int(total.argmax())
        if float(total.max() - total[:, 0].max()) < CLEAN_GAIN * self.images:
            place = int(total[:, 0].argmax()) * len(RATES)
        self._look_near(place // len(RATES))
        return BELIEFS[place // len(RATES)], RATES[place % len(RATES)]

    def _look_near(self, best: int) -> None:
        """β changes little from round to round: try a few values alone."""
        self.tried = range(max(best - NEAR, 0), min(best + NEAR + 1, len(BELIEFS)))

    def _best_belief(self) -> float:
        """The β under which the given labels are most probable."""

        def likelihoods(part: slice) -> Tensor:
            distances, prior = self._distances(part), self._prior(part)
            found = [self._explained(distances, prior, BELIEFS[tried]) for tried in self.tried]
            return torch.stack(found)

        best = self.tried[int(self._sum(likelihoods, self.step).argmax())]
        self._look_near(best)
        return BELIEFS[best]

    def _explained(self, distances: Tensor, prior: Tensor, belief: float) -> Tensor:
        """Σ log P(given class | features) of images, from their distances and `_prior` [n, C]."""
        logits = -0.5 * belief * distances
        share = self.share.log().to(distances)
        joint = (logits + prior).logsumexp(1) - (logits + share).logsumexp(1)
        return joint.double().sum()

    def likelihood(self) -> float:
        """The logarithm of how probable the given labels are, all together."""

        def of(part: slice) -> Tensor:
            return self._explained(self._distances(part), self._prior(part), self.belief)

        return float(self._sum(of))

    def would_see(self) -> float:
        """Share that would look wrong of labels wrong by chance, were a tenth of all labels so."""
        most = SUPPOSED_WRONG / (1 - SUPPOSED_WRONG) / (self.count - 1)

        def seen(part: slice) -> Tensor:
            chances = self._distances(part).mul_(-0.5 * self.belief)
            chances = chances.add_(self.share.log().to(chances)).softmax(1)
            found = (chances < most * (1 - chances)).scatter_(1, self.given[part, None], False)
            number = chances.new_tensor(float(len(found)), dtype=torch.float64)
            return torch.stack((found.sum().double(), number))

        total, images = self._sum(seen, self.step).tolist()
        return float(total / (images * (self.count - 1)))

    def trust(self, names: tuple[str, ...], note: str, sees: float) -> Trust:
        """What was found, on the CPU."""
        sure, suggestion = [], []
        counts = torch.zeros(self.count, self.count, dtype=torch.float64, device=self.rows.device)
        for part in self._parts():
            posterior = self._posterior(part)
            counts.index_add_(0, self.given[part], posterior.double())
            most = posterior.max(1)
            sure.append(most.values.float().cpu())
            suggestion.append(most.indices.cpu())
        counts = self.group.total(counts)
        wrong = (counts / counts.sum(1, keepdim=True).clamp(min=1e-12)).T
        own = self.weights[self.given].cpu().float() - self.trusted.cpu()
        found = self.trusted.cpu(), self.given.cpu(), torch.cat(suggestion), torch.cat(sure)
        rests_on, shares = own.clamp(min=0), wrong.float().cpu()
        return Trust(*found, rests_on, shares, names, note, self.pairs_found, sees)
