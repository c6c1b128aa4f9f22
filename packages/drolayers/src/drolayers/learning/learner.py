"""From data to decisions with scikit-learn's manners: fit, decide, score."""

from __future__ import annotations

import warnings
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Literal, Self

import cvxpy as cp
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn

from conelayers.internals import (
    check_same_index,
    describe_unsolved,
    keyed_as,
    refuse_transforms,
    warns_unsolved,
    whole,
    writing,
)
from drolayers.errors import ModelError, UnsolvedItemsWarning
from drolayers.known import Known
from drolayers.layer import Decision, DROLayer
from drolayers.learning import storage
from drolayers.learning.calibration import Calibration, check_enough, check_unseen, fingerprint
from drolayers.learning.clipping import warn_of_clipped
from drolayers.learning.comparison import Findings
from drolayers.learning.contents import contents, schedules
from drolayers.learning.course import Course
from drolayers.learning.data import check_in_support, check_width, examples, held_back, matrix, same_columns, split
from drolayers.learning.deprecated import OLD, STRATEGIES, upgraded
from drolayers.learning.first import FirstTraining
from drolayers.learning.judged import Judged
from drolayers.learning.model import SetModel
from drolayers.learning.objectives import Objective, WorstCaseQuantile, check_cost_value, checked_objective
from drolayers.learning.pipeline import Pipeline
from drolayers.learning.policy import Decider
from drolayers.learning.pretraining import FITTED
from drolayers.learning.second import SecondTraining
from drolayers.learning.settings import MARGIN, Network, Settings, Stage, Trainer, check_places
from drolayers.learning.training import alone, claim
from drolayers.nominal import KNN, NominalDistribution
from drolayers.problem import DecisionProblem
from drolayers.projection import Projection


class DecisionFocusedLearner(Judged, Decider):
    """Learns, from contexts Z and outcomes Y, a set-valued prediction whose robust decisions are good.

    Args:
        problem: the decision problem.
        model: any module from ``(batch, dz)`` to ``(batch, problem.size)``, or the widths of the default one as a
            :class:`Network`.
        nominal: Q_z; the 20 nearest neighbours unless given.
        projection: onto sets that contain Q_z: a :class:`drolayers.Projection`, the method of a default one, or None to
            leave θ as the model gives it. "auto" is the closed form where there is one, and raises bounds elsewhere.
        layer: a :class:`drolayers.DROLayer` of the problem; a default one unless given.
        pretraining: the first training, which fits sets to data; None for none.
        training: the second, on decisions; None for prediction-focused learning, which stops after the first.
        objective: what the second minimises: "mean", the mean cost, or an object of ``dro.objectives``.
        trainer: where and on which part of the data it trains.
        seed: of everything random.
    """

    def __init__(
        self,
        problem: DecisionProblem,
        model: nn.Module | Network | None = None,
        nominal: NominalDistribution | None = None,
        projection: Projection | str | None = "auto",
        layer: DROLayer | None = None,
        *,
        pretraining: Stage | None = Stage(epochs=40),  # noqa: B008 (immutable)
        training: Stage | None = Stage(),  # noqa: B008
        objective: Objective | Literal["mean"] | None = "mean",
        trainer: Trainer = Trainer(),  # noqa: B008
        seed: int = 0,
        **old: Any,
    ) -> None:
        if projection in STRATEGIES:
            # The fourth argument was the strategy.
            old, projection = {"strategy": projection, **old}, "auto"
        self.problem, self.model, self.nominal = problem, model, nominal
        self.projection, self.layer = projection, layer
        self.pretraining, self.training, self.objective = pretraining, training, objective
        self.trainer, self.seed = trainer, seed
        if old:
            self.__dict__.update(upgraded(problem, self.get_params(deep=False), old))

    def __sklearn_clone__(self) -> Self:
        """An unfitted copy that shares problem and layer, so that its decisions are named by the same variables."""
        settings = self.get_params(deep=False)
        shared = {name: settings.pop(name) for name in ("problem", "layer", "projection", "objective")}
        copy = type(self)(**shared, **{name: clone(value, safe=False) for name, value in settings.items()})
        if hasattr(self, "_metadata_request"):
            # Which method of a copy gets sample_weight from a search or a pipeline.
            copy._metadata_request = deepcopy(self._metadata_request)
        return copy

    def set_params(self, **settings: Any) -> Self:
        """Change settings; those of a stage are reached as ``training__rate``."""
        parts: dict[str, dict[str, Any]] = {}
        for name in [name for name in settings if "__" in name]:
            head, _, tail = name.partition("__")
            parts.setdefault(head, {})[tail] = settings.pop(name)
        old = {name: settings.pop(name) for name in [*settings] if name in OLD}
        super().set_params(**settings)
        if old:
            self.__dict__.update(upgraded(self.problem, self.get_params(deep=False), old))
        for head, changes in parts.items():
            whole_part = getattr(self, head, None)
            if not isinstance(whole_part, Settings):
                raise ModelError(f"{head} is {whole_part!r} and has no settings to change: give a whole one.")
            setattr(self, head, whole_part.but(**changes))
        return self

    def fit(
        self,
        Z: Any,
        Y: Any,
        validation: tuple[Any, ...] | None = None,
        known: Known | None = None,
        calibration_share: float = 0.0,
        sample_weight: Any = None,
    ) -> Self:
        """Train on contexts ``Z (n, dz)`` and outcomes ``Y (n, dim)``.

        Args:
            Z: contexts; an array, a data frame or a tensor.
            Y: outcomes.
            validation: contexts and outcomes that decide which epoch is kept: ``(Z, Y)``, ``(Z, Y, known)`` or
                ``(Z, Y, known, sample_weight)``, of which known may be None. A share of the data unless given.
            known: values of ``problem.known``, one row a context, by name, by parameter or as columns of a data frame.
                The model does not see them unless Z holds them too.
            calibration_share: share of the data that is held out, before anything else, for :meth:`calibrate`.
            sample_weight: nonnegative weights of the rows ``(n,)``; a row of weight zero counts as absent. They weigh
                losses, the nominal distribution and the comparison on validation data. Units, coverage and
                calibration count the remaining rows alike.
        """
        self._check()
        # What was saved before may be loaded.
        check_places(pretraining=self.pretraining, training=self.training)
        before = {name: value for name, value in vars(self).items() if name.endswith("_")}
        try:
            folder = self.trainer.directory
            with writing(folder or gettempdir()), alone(None if folder is None else Path(folder)):
                self._fit(Z, Y, validation, known, calibration_share, sample_weight)
        except BaseException:
            # What is half trained decides nothing.
            for name in [name for name in vars(self) if name.endswith("_")]:
                delattr(self, name)
            self.__dict__.update(before)
            raise
        return self

    def _fit(
        self,
        Z: Any,
        Y: Any,
        validation: tuple[Any, ...] | None,
        known: Known | None,
        calibration_share: float,
        sample_weight: Any,
    ) -> None:
        """Both trainings."""
        everything = examples(self.problem, Z, Y, known, sample_weight=sample_weight)
        check_in_support(self.problem, everything)
        everything, self.calibration_rows_ = held_back(everything, calibration_share, self.seed)
        if self.training is not None and self.training.coverage is not None and self.calibration_rows_ is not None:
            # Rather now than after hours of training.
            check_enough(len(self.calibration_rows_), self.training.coverage)
        training, held_out = split(self.problem, everything, validation, self.trainer.validation_share, self.seed)
        if self.training is not None and self.training.coverage is not None:
            # Sets without a size, or that hold no single outcomes, say so before anything is trained.
            sets = self.problem.sets
            centres = [value.centre.reshape(-1) for value in sets.typical(training.Y).values()]
            sets.scores_anywhere(sets.scaled(torch.cat(centres)[None].double(), 1.0), training.Y[:1])
        self._take_columns(Z, Y, training.Z.shape[1])
        self.seen_ = fingerprint(training, held_out)
        if self.calibration_rows_ is not None:
            check_unseen(self.calibration_rows_, self.seen_, "drop copies before data are split")
        self.calibration_ = None
        self.scores_ = torch.zeros(0, dtype=torch.float64)
        if validation is not None:
            same_columns(validation[0], "validation Z", self.feature_names_in_)
            same_columns(validation[1], "validation Y", self.outcome_names_in_)
        typical = torch.cat([value.scale.reshape(-1) for value in self.problem.sets.typical(training.Y).values()])
        # Distances in typical units: a bound on squares and a mean have no unit in common.
        self.pipeline_ = self._build(self.n_features_in_, (typical**-2.0).tolist())
        own = isinstance(self.model, nn.Module)
        course = Course(self.pipeline_, training, held_out, typical, self.trainer, self.seed, own)
        course.begin()
        if self.trainer.directory is not None:
            folder = Path(self.trainer.directory)
            what = self._described(self.pipeline_) | {"problem": self.problem.program.fingerprint}
            what["parameters"] = list(self.problem.parameters)
            if isinstance(self.model, nn.Module):
                what["answers"] = storage.answers(self.pipeline_.model, training.Z)
            what["own"] = [schedules(self.pretraining), contents(self.nominal)]
            # Learners that differ in the second training only share the first, and each goes on from the other.
            later = {name: what.pop(name) for name in ("training", "objective")} | {"budget": self.trainer.budget}
            later["own"] = [schedules(self.training), contents(self.objective)]
            claim(folder, self.trainer.resume, what, training, held_out)
            if self.training is not None:
                claim(folder / "decision", self.trainer.resume, later)
        first, second = FirstTraining(course, self.pretraining), None
        if self.training is None:
            self._tell_undetermined()
        else:
            second = SecondTraining(course, self.training, self.objective, free=self.projection == "auto")
        comparison = None if second is None else second.comparison(first)
        first.run(comparison)
        if second is not None:
            second.run(comparison)
        self.history_ = {name: rows for name, rows in course.history.items() if "/" not in name}
        self.report_ = Findings() if comparison is None else comparison.keep()
        self.pipeline_.eval()
        self._warn_undecided_rows(training, held_out)
        if self._uncalibrated and self.calibration_rows_ is not None:
            assert self.training is not None
            self.calibrate(coverage=self.training.coverage)

    def _check(self) -> None:
        """Parts that are of the wrong kind."""
        if not isinstance(self.problem, DecisionProblem):
            raise ModelError(f"DecisionFocusedLearner needs a dro.DecisionProblem, not {type(self.problem).__name__}.")
        for name, kinds, example in (
            ("model", (nn.Module, Network), "a torch.nn.Module or dro.Network(hidden=(64, 64))"),
            ("nominal", (NominalDistribution,), "an object such as dro.nominal.KNN(k=20)"),
            ("projection", (Projection, str), "a dro.Projection or the name of a method"),
            ("layer", (DROLayer,), "a dro.DROLayer"),
            ("pretraining", (Stage,), "a dro.Stage(epochs=40, rate=1e-2)"),
            ("training", (Stage,), "a dro.Stage(epochs=30, rate=3e-3)"),
        ):
            value = getattr(self, name)
            if value is not None and not isinstance(value, kinds):
                raise ModelError(f"{name} must be {example}, not {value!r}.")
        if not isinstance(self.trainer, Trainer):
            raise ModelError(f"trainer must be a dro.Trainer(directory=...), not {self.trainer!r}.")
        self.seed = whole("seed", self.seed, 0)
        if isinstance(checked_objective(self.objective), WorstCaseQuantile):
            check_cost_value(self.problem)
        if not self.problem.size:
            raise ModelError("The ambiguity set has no learnable parameters: leave out a value to learn one.")
        if self.layer is not None and self.layer.problem is not self.problem:
            raise ModelError("The layer is of another problem: make it from the one that the learner is given.")
        sets = self.problem.sets
        mine, name = (self.problem.ambiguity, "ambiguity") if len(sets.members) == 1 else (sets, "sets")
        if isinstance(self.projection, Projection) and self.projection.ambiguity is not mine:
            raise ModelError(f"The projection is of another set: make it from problem.{name}.")
        placed = any(isinstance(one, FITTED) for one in sets.members)
        if self.training is not None and self.training.anchor and not placed:
            raise ModelError("anchor= needs a moment set: a ball around data, or a mixture, has no locations to hold.")
        if self.training is not None and self.training.violations is not None and not self.problem.rules:
            raise ModelError(
                "violations= needs constraints with worst cases, such as dro.chance: the problem has none."
            )

    def _build(self, inputs: int, weights: list[float] | None, nominal: NominalDistribution | None = None) -> Pipeline:
        """Model, nominal distribution, projection and layer; what the user gave is copied, not changed.

        The weights are those of a default projection.
        """
        sets = self.problem.sets
        if isinstance(self.model, nn.Module):
            model = deepcopy(self.model)
        else:
            recipe = self.model or Network()
            generator = torch.Generator().manual_seed(self.seed)
            model = SetModel(sets, inputs, recipe.hidden, generator, recipe.degree, recipe.extrapolate)
        if nominal is None:
            nominal = KNN(k=sets.atoms or 20) if self.nominal is None else deepcopy(self.nominal)
        projection = self.projection
        if isinstance(projection, str):
            method: Any = "direct" if projection == "auto" else projection
            projection = Projection(sets, weights, MARGIN, method)
        layer = DROLayer(self.problem, seed=self.seed) if self.layer is None else self.layer.twin()
        return Pipeline(model.double(), nominal, projection, layer)

    def _tell_undetermined(self) -> None:
        """Warn of what the first training alone leaves as it is."""
        members = self.problem.sets.members
        if any(part.size and not isinstance(part, FITTED) for one in members for part in one.events or (one,)):
            warnings.warn(
                "Prediction-focused training does not determine the radius of a ball around the data: it stays at a "
                "typical value. Give training=dro.Stage() to learn it.",
                stacklevel=4,
            )

    def decision(self, Z: Any, known: Known | None = None) -> Decision:
        """Decisions for contexts, and known data where the problem has some, with their values and statuses.

        Warns of rows without a decision (``dro.UnsolvedItemsWarning``).
        """
        decision = self._decision(Z, known)
        _warn_undecided(decision)
        return decision

    def _decision(self, Z: Any, known: Known | None) -> Decision:
        contexts = self._contexts(Z)
        check_same_index({"Z": Z, "known": known})
        return self.pipeline_.decide(contexts, self.problem.known_data.table(known, len(contexts)))

    def _check_fitted(self) -> None:
        if not hasattr(self, "pipeline_"):
            raise NotFittedError("This learner is not fitted yet: call fit(Z, Y) first.")

    def _contexts(self, Z: Any, sized: bool = True) -> Tensor:
        """Contexts of the right width, for sets that have their size."""
        self._check_fitted()
        if sized and self._uncalibrated:
            raise ModelError(
                "Training with coverage= leaves sets without a size of their own: call calibrate(Z, Y, coverage=...) "
                "first, or fit with calibration_share=0.2."
            )
        if isinstance(Z, Tensor):
            # Gradients end here, which torch.func would take for zeros.
            refuse_transforms(Z)
        contexts, width = matrix(Z, "Z"), self.n_features_in_
        check_width(Z, contexts, width)
        same_columns(Z, "Z", self.feature_names_in_)
        self.pipeline_.eval()
        return contexts

    def decide(self, Z: Any, known: Known | None = None) -> dict[cp.Variable, Any]:
        """Decisions for contexts, by CVXPY variable: tensors for tensors, arrays otherwise; NaN where none exists.

        Warns of rows without a decision (``dro.UnsolvedItemsWarning``), and of the share of contexts outside the range
        seen in training (:class:`ClippedInputsWarning`).
        """
        decision = self._decision(Z, known)
        _warn_undecided(decision)
        warn_of_clipped(self.pipeline_.model, self._contexts(Z), self.feature_names_in_)
        best = decision.best
        if isinstance(Z, Tensor):
            return best
        return keyed_as(best, {variable: value.numpy() for variable, value in best.items()})

    def predict_set(self, Z: Any, known: Known | None = None) -> dict[str, Any]:
        """The parameters of the predicted sets, none of them empty, by name; a support with known data needs them.

        A :class:`ClippedInputsWarning` gives the share of contexts outside the range seen in training.
        """
        contexts, pipeline = self._contexts(Z), self.pipeline_
        check_same_index({"Z": Z, "known": known})
        warn_of_clipped(pipeline.model, contexts, self.feature_names_in_)
        needed = self.problem.sets.known
        table = self.problem.known_data.table(known, len(contexts)) if needed else contexts[:, :0]
        with torch.no_grad():
            parts = [
                pipeline.theta(z, None, told) for z, told in zip(contexts.split(512), table.split(512), strict=True)
            ]
        values = self.problem.unpack(torch.cat(parts))
        return values if isinstance(Z, Tensor) else {name: value.numpy() for name, value in values.items()}

    def _described(self, pipeline: Pipeline) -> dict[str, Any]:
        """What this learner is, as JSON can hold it."""
        assert pipeline.nominal is not None
        own = pipeline.model
        model = None
        if type(own) is SetModel:
            model = {"hidden": list(own.hidden), "degree": own.degree, "extrapolate": own.extrapolate}
        return {
            "model": model,
            "structure": repr(own),
            "nominal": storage.described_nominal(pipeline.nominal),
            "projection": storage.described_projection(self.projection, pipeline.projection),
            "layer": storage.described_layer(self.layer),
            "pretraining": storage.described(self.pretraining),
            "training": storage.described(self.training),
            "objective": storage.shown(self.objective),
            "seed": self.seed,
            "leave_one_out": self.trainer.leave_one_out,
        }

    def save(self, path: str | Path, note: dict[str, Any] | None = None) -> None:
        """Write model and nominal distribution to one safetensors file; the problem itself is not saved.

        Args:
            path: the file.
            note: anything that JSON can hold, to be found again by ``learning.storage.read_header``.
        """
        self._check_fitted()
        pipeline = self.pipeline_
        header = {
            "inputs": self.n_features_in_,
            "columns": self.feature_names_in_,
            "outcomes": self.outcome_names_in_,
            "parameters": {name: list(shape) for name, shape in self.problem.parameters.items()},
            "known": {name: list(shape) for name, shape in self.problem.known.items()},
            "program": self.problem.program.fingerprint,
            **self._described(pipeline),
            "share": pipeline.share,
            "calibration": None if self.calibration_ is None else asdict(self.calibration_),
            "note": note,
        }
        assert pipeline.nominal is not None
        storage.write(
            path,
            header,
            {"model": pipeline.model, "nominal": pipeline.nominal},
            {"seen": self.seen_, "scores": self.scores_},
        )

    @classmethod
    def load(cls, path: str | Path, problem: DecisionProblem, **settings: Any) -> Self:
        """Read what :meth:`save` wrote, for the same problem; only tensors and JSON are read, never code.

        Args:
            path: the file.
            problem: the decision problem that the learner was made for.
            settings: those to change, and ``model``, ``nominal``, ``projection`` and ``layer`` where they were of your
                own making.
        """
        header, tensors = storage.read(path)
        expected = {name: list(shape) for name, shape in problem.parameters.items()}
        if header["parameters"] != expected:
            raise ModelError(f"{path} was saved for a set with parameters {header['parameters']}, not {expected}.")
        known = {name: list(shape) for name, shape in problem.known.items()}
        if header.get("known", {}) != known:
            raise ModelError(f"{path} was saved for a problem with known data {header.get('known', {})}, not {known}.")
        learner = cls(problem, **{**storage.restored(path, header, settings), **settings})
        storage.check_same(path, "nominal", storage.described_nominal(learner.nominal), header["nominal"])
        nominal = storage.made_nominal(path, header["nominal"]) if learner.nominal is None else None
        learner.n_features_in_ = header["inputs"]
        learner.feature_names_in_, learner.outcome_names_in_ = header.get("columns"), header.get("outcomes")
        learner._check()
        weights = (header["projection"] or {}).get("weights")
        learner.pipeline_ = learner._build(learner.n_features_in_, weights, nominal)
        found = storage.described_projection(learner.projection, learner.pipeline_.projection)
        storage.check_same(path, "projection", found, header["projection"])
        storage.restore(path, learner.pipeline_.model, "model", tensors)
        assert learner.pipeline_.nominal is not None
        storage.restore(path, learner.pipeline_.nominal, "nominal", tensors)
        saved, dim = learner.pipeline_.nominal.outcomes.shape[1], problem.ambiguity.y.dim
        if header["nominal"] is not None and saved != dim:
            raise ModelError(f"{path} was saved with outcomes of {saved} entries, and y of the problem has {dim}.")
        learner.history_, learner.report_, learner.calibration_rows_ = {}, Findings(), None
        learner.seen_ = tensors.get("seen", torch.zeros(0, dtype=torch.int64))
        learner.scores_ = tensors.get("scores", torch.zeros(0, dtype=torch.float64))
        learner.calibration_ = storage.restored_calibration(path, header)
        learner.pipeline_.share = float(header.get("share", 0.0))
        learner.pipeline_.scale = 1.0 if learner.calibration_ is None else learner.calibration_.scale
        if header.get("program", program := problem.program.fingerprint) != program:
            learner.scores_ = torch.zeros(0, dtype=torch.float64)
            if (calibration := learner.calibration_) is not None:
                # The scale stays, its promise was about another problem.
                learner.calibration_ = Calibration(calibration.scale, "choice", None, calibration.rows)
            warnings.warn(
                f"{path} was saved for a problem with another cost, other constraints or another set: its sets were "
                "trained for that one, and promise nothing here until calibrate(...) is called.",
                stacklevel=2,
            )
        learner.pipeline_.eval()
        return learner


def _warn_undecided(decision: Decision) -> None:
    """Warn the caller of a public method of the rows that have no decision."""
    if warns_unsolved() and not bool(decision.ok.all()):
        message = f"{describe_unsolved(decision.statuses, 'rows')} Their decisions are NaN."
        warnings.warn(message, UnsolvedItemsWarning, stacklevel=3)
