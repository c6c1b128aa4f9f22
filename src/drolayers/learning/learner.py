"""From data to decisions with scikit-learn's manners: fit, decide, score."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, Self

import cvxpy as cp
import numpy as np
import torch
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn

from drolayers.checks import number, whole
from drolayers.conic import Smoothed
from drolayers.errors import ModelError, ShapeError
from drolayers.layer import Decision, DROLayer
from drolayers.learning import storage
from drolayers.learning.data import OutcomeData, Outcomes, column_names, matrix
from drolayers.learning.model import SetModel
from drolayers.learning.module import DecisionModule, Pipeline, PredictionModule
from drolayers.learning.pretraining import PredictionLoss
from drolayers.learning.schedule import (
    RateSchedule,
    TemperatureSchedule,
    rate_schedule,
    smoothing_schedule,
    temperature_schedule,
)
from drolayers.learning.training import Stage, claim, train
from drolayers.nominal import KNN, NominalDistribution
from drolayers.problem import DecisionProblem
from drolayers.projection import Projection
from drolayers.surrogate.energy import Temperature, check_temperature
from drolayers.surrogate.proposal import Proposal

RUNNING = ("problem", "model", "nominal", "directory", "resume", "progress", "devices")
"""Settings that say where and on what a learner runs, not what it is."""


class DecisionFocusedLearner(BaseEstimator):  # type: ignore[misc]
    """Learns, from contexts Z and outcomes Y, a set-valued prediction whose robust decisions are good.

    Args:
        problem: the decision problem.
        model: any module from ``(batch, dz)`` to ``(batch, ambiguity.size)``; a :class:`SetModel` unless given.
        nominal: Q_z; the 20 nearest neighbours unless given.
        strategy: "decision" (pre-train, then train on decisions) or "prediction" (pre-train only).
        seed: of everything random.
        hidden: widths of the default model.
        degree: of the polynomials of the covariates that the default model sees.
        candidates: T of the layer.
        samples: S of the layer.
        proposal: passed to the layer.
        enumerate_up_to: passed to the layer.
        temperature: λ: a number (absolute), ``dro.RelativeTemperature``, or a callable from the epoch to either;
            relative and annealed unless given.
        gradient: "exact", "smoothed", or "auto": smoothed, with an annealed level, where the solution map is flat.
        smoothing: the level at which smoothing begins.
        projection: "auto", "closed_form", "conic", "clip", or None to leave θ as the model gives it.
        margin: of the projection, relative to what the nominal distribution needs.
        leave_one_out: whether a training point is kept out of its own nominal distribution.
        pretrain_epochs: epochs of prediction-focused training.
        pretrain_lr: its learning rate, or a callable from the epoch to one.
        locations: what prediction-focused training fits locations to, "nominal" (Q_z, as in the paper) or "outcomes"
            (those of the training points themselves, without the neighbours' bias).
        epochs: epochs of decision-focused training.
        anchor: weight, beside the decision loss, of the squared distance of locations to outcomes, both in typical
            units; against overfitting.
        lr: its learning rate, or a callable from the epoch to one.
        lr_divisor: what rates that are numbers are divided by, every quarter of the first training and every third of
            the second.
        batch_size: items a step.
        gradient_clip: largest norm of a gradient of the loss in typical units; None for none.
        patience: epochs without a better validation loss before training stops; None never stops early.
        validation_share: share of the data held out where no validation data are given.
        directory: where checkpoints and logs go; None keeps neither.
        resume: continue from the last checkpoint in ``directory``, where there is one.
        progress: whether to show a progress bar.
        devices: number of processes; more than one run the calling script again, as Lightning's DDP does.
        oracle: passed to the layer.
        engine: passed to the layer.
    """

    def __init__(
        self,
        problem: DecisionProblem,
        model: nn.Module | None = None,
        nominal: NominalDistribution | None = None,
        strategy: Literal["decision", "prediction"] = "decision",
        seed: int = 0,
        *,
        hidden: Sequence[int] = (64, 64),
        candidates: int = 3,
        samples: int | Literal["all"] = 4,
        temperature: Temperature | TemperatureSchedule | None = None,
        gradient: Literal["auto", "exact", "smoothed"] = "auto",
        smoothing: float = 1e-2,
        projection: str | None = "auto",
        margin: float = 1e-3,
        leave_one_out: bool = True,
        pretrain_epochs: int = 40,
        pretrain_lr: float | RateSchedule = 1e-2,
        epochs: int = 30,
        lr: float | RateSchedule = 1e-3,
        lr_divisor: float = 3.0,
        batch_size: int = 50,
        gradient_clip: float | None = 1.0,
        patience: int | None = None,
        validation_share: float = 0.2,
        directory: str | Path | None = None,
        resume: bool = False,
        progress: bool = True,
        devices: int = 1,
        oracle: Any = "auto",
        engine: Any = "auto",
        proposal: Proposal | None = None,
        enumerate_up_to: int = 32,
        degree: int = 1,
        locations: Literal["nominal", "outcomes"] = "nominal",
        anchor: float = 0.0,
    ) -> None:
        self.problem, self.model, self.nominal, self.strategy, self.seed = problem, model, nominal, strategy, seed
        self.hidden, self.candidates, self.samples, self.temperature = hidden, candidates, samples, temperature
        self.gradient, self.smoothing, self.projection, self.margin = gradient, smoothing, projection, margin
        self.leave_one_out = leave_one_out
        self.pretrain_epochs, self.pretrain_lr, self.epochs, self.lr = pretrain_epochs, pretrain_lr, epochs, lr
        self.lr_divisor, self.batch_size, self.gradient_clip = lr_divisor, batch_size, gradient_clip
        self.patience, self.validation_share = patience, validation_share
        self.directory, self.resume, self.progress = directory, resume, progress
        self.devices, self.oracle, self.engine = devices, oracle, engine
        self.proposal, self.enumerate_up_to = proposal, enumerate_up_to
        self.degree, self.locations, self.anchor = degree, locations, anchor

    def __sklearn_clone__(self) -> Self:
        """An unfitted copy that shares the problem, so that its decisions are named by the same variables."""
        settings = {name: clone(value, safe=False) for name, value in self._others().items()}
        return type(self)(self.problem, **settings)

    def _others(self) -> dict[str, Any]:
        """All settings but the problem."""
        return {name: value for name, value in self.get_params(deep=False).items() if name != "problem"}

    def fit(self, Z: Any, Y: Any, validation: tuple[Any, Any] | None = None) -> Self:
        """Train on contexts ``Z (n, dz)`` and outcomes ``Y (n, dim)``.

        Args:
            Z: contexts; an array, a data frame or a tensor.
            Y: outcomes.
            validation: contexts and outcomes that decide which epoch is kept; a share of the data unless given.
        """
        self._check()
        contexts, outcomes = matrix(Z, "Z"), matrix(Y, "Y")
        if outcomes.shape[1] != self.problem.ambiguity.y.dim:
            raise ShapeError(f"Y must have {self.problem.ambiguity.y.dim} columns, not {outcomes.shape[1]}.")
        training, held_out = self._split(contexts, outcomes, validation)
        self.n_features_in_ = training.Z.shape[1]
        self.feature_names_in_ = column_names(Z)
        typical = self.problem.ambiguity.typical(training.Y)
        # Distances in typical units: a bound on squares and a mean have no unit in common.
        weights = torch.cat([value.scale.reshape(-1) for value in typical.values()]) ** -2.0
        self.pipeline_ = self._build(self.n_features_in_, weights.tolist())
        self._calibrate(training)
        if self.directory is not None:
            # Both strategies share the first training, so one may continue where the other stopped.
            settings = {
                k: v if storage.plain(v) else repr(v)
                for k, v in self._others().items()
                if k not in (*RUNNING, "strategy", "model", "nominal", "oracle", "engine") and not callable(v)
            }
            assert self.pipeline_.nominal is not None
            settings["nominal"] = storage.described_nominal(self.pipeline_.nominal)
            claim(Path(self.directory), self.resume, training, held_out, settings)
        data = OutcomeData(training, held_out, self.batch_size, self.seed)
        self.history_: dict[str, list[dict[str, float]]] = {}
        self._pretrain(data)
        if self.strategy == "decision" and self.epochs:
            self._train("decision", self._decision_module(training), data, self.epochs, "val_decision_loss")
        self.pipeline_.eval()
        return self

    def _pretrain(self, data: OutcomeData) -> None:
        """The first training, for sets that it means something to."""
        ambiguity = self.problem.ambiguity
        if ambiguity.needs_nominal:
            if self.strategy == "prediction":
                warnings.warn(
                    "Prediction-focused training does not determine the radius of a ball around the data: it stays at "
                    "a typical value. Use strategy='decision' to learn it.",
                    stacklevel=3,
                )
            return
        if not self.pretrain_epochs:
            return
        loss = PredictionLoss(ambiguity, data.training.Y)
        rate = rate_schedule(self.pretrain_lr, self.lr_divisor, self.pretrain_epochs // 4)
        outcomes = self.locations == "outcomes"
        module = PredictionModule(self.pipeline_, loss, rate, self.pretrain_epochs // 2, outcomes)
        self._train("prediction", module, data, self.pretrain_epochs, "val_prediction_loss")

    def _check(self) -> None:
        """Settings that make no sense."""
        if not isinstance(self.problem, DecisionProblem):
            raise ModelError(f"DecisionFocusedLearner needs a dro.DecisionProblem, not {type(self.problem).__name__}.")
        if self.strategy not in ("decision", "prediction"):
            raise ModelError(f"strategy must be 'decision' or 'prediction', not {self.strategy!r}.")
        if self.gradient not in ("auto", "exact", "smoothed"):
            raise ModelError(f"gradient must be 'auto', 'exact' or 'smoothed', not {self.gradient!r}.")
        if self.locations not in ("nominal", "outcomes"):
            raise ModelError(f"locations must be 'nominal' or 'outcomes', not {self.locations!r}.")
        if not number("anchor", self.anchor) >= 0:
            raise ModelError(f"anchor must not be negative, but is {self.anchor!r}.")
        if self.anchor and self.problem.ambiguity.needs_nominal:
            raise ModelError("anchor= needs a moment set: a ball around data has no locations to hold.")
        if self.resume and self.directory is None:
            raise ModelError("resume=True needs directory=..., where the interrupted run kept its checkpoints.")
        if not 0 <= number("validation_share", self.validation_share) < 1:
            raise ModelError(f"validation_share must lie in [0, 1), not {self.validation_share}.")
        for name, least in (
            ("epochs", 0),
            ("pretrain_epochs", 0),
            ("batch_size", 1),
            ("devices", 1),
            ("seed", 0),
            ("degree", 1),
        ):
            whole(name, getattr(self, name), least)
        if self.patience is not None:
            whole("patience", self.patience)
        for name in ("lr", "pretrain_lr", "lr_divisor", "smoothing", "gradient_clip"):
            value = getattr(self, name)
            if value is not None and not callable(value) and not number(name, value) > 0:
                raise ModelError(f"{name} must be positive, not {value!r}.")
        if not isinstance(self.hidden, Sequence) or isinstance(self.hidden, str):
            raise ModelError(f"hidden must be a list of widths such as (64, 64), not {self.hidden!r}.")
        for width in self.hidden:
            whole("Every entry of hidden", width)
        if self.model is not None and not isinstance(self.model, nn.Module):
            raise ModelError(f"model must be a torch.nn.Module, not {self.model!r}.")
        if self.nominal is not None and not isinstance(self.nominal, NominalDistribution):
            raise ModelError(f"nominal must be an object such as dro.nominal.KNN(k=20), not {self.nominal!r}.")
        if self.temperature is not None and not callable(self.temperature):
            check_temperature(self.temperature)

    def _split(self, Z: Tensor, Y: Tensor, validation: tuple[Any, Any] | None) -> tuple[Outcomes, Outcomes | None]:
        """Training and validation data."""
        if validation is not None:
            if not isinstance(validation, tuple | list) or len(validation) != 2:
                raise ShapeError(f"validation must be a pair (Z, Y), not {type(validation).__name__}.")
            held_out = Outcomes(matrix(validation[0], "validation Z"), matrix(validation[1], "validation Y"), False)
            if held_out.Z.shape[1] != Z.shape[1] or held_out.Y.shape[1] != Y.shape[1]:
                raise ShapeError("Validation data must have the columns of the training data.")
            return Outcomes(Z, Y, True), held_out
        everything = Outcomes(Z, Y, True)
        held = int(len(Z) * self.validation_share)
        if not held:
            return everything, None
        order = torch.as_tensor(np.random.default_rng(self.seed).permutation(len(Z)))
        kept, rest = order[held:], order[:held]
        return Outcomes(Z[kept], Y[kept], True), Outcomes(Z[rest], Y[rest], False)

    def _smoothed(self) -> bool:
        """Whether gradients are smoothed."""
        return self.gradient == "smoothed" or (self.gradient == "auto" and self.problem.program.flat)

    def _build(self, inputs: int, weights: list[float] | None, nominal: NominalDistribution | None = None) -> Pipeline:
        """Model, nominal distribution, projection and layer; what the user gave is copied, not changed.

        The weights are those of the projection.
        """
        ambiguity = self.problem.ambiguity
        generator = torch.Generator().manual_seed(self.seed)
        if self.model is None:
            model: nn.Module = SetModel(ambiguity, inputs, self.hidden, generator, self.degree)
        else:
            model = deepcopy(self.model)
        if nominal is None:
            nominal = KNN(k=getattr(ambiguity, "atoms", 20)) if self.nominal is None else deepcopy(self.nominal)
        method = self.projection
        projection = None
        if method is not None:
            projection = Projection(ambiguity, weights, relative=self.margin, method=method)  # type: ignore[arg-type]
        layer = DROLayer(
            self.problem,
            candidates=self.candidates,
            samples=self.samples,
            gradient=Smoothed(self.smoothing) if self._smoothed() else "exact",
            oracle=self.oracle,
            engine=self.engine,
            proposal=self.proposal,
            enumerate_up_to=self.enumerate_up_to,
            seed=self.seed,
        )
        return Pipeline(model.double(), nominal, projection, layer)

    def _calibrate(self, training: Outcomes) -> None:
        """Units of the default model, and the data of the nominal distribution."""
        if self.model is None:
            assert isinstance(self.pipeline_.model, SetModel)
            self.pipeline_.model.calibrate(self.problem.ambiguity, training.Z, training.Y)
        with torch.no_grad():
            theta = self.pipeline_.model(training.Z[:1])
        if tuple(theta.shape) != (1, self.problem.ambiguity.size):
            size = self.problem.ambiguity.size
            raise ShapeError(f"The model must return shape (batch, {size}), not {tuple(theta.shape)}.")
        assert self.pipeline_.nominal is not None
        self.pipeline_.nominal.fit(training.Z, training.Y)
        # A single point cannot be left out.
        if not self.leave_one_out or len(training) == 1:
            training.training = False

    def _decision_module(self, training: Outcomes) -> DecisionModule:
        """The second training."""
        smoothing = smoothing_schedule(self.smoothing, self.epochs) if self._smoothed() else None
        temperature = temperature_schedule(self.temperature, self.epochs)
        rate = rate_schedule(self.lr, self.lr_divisor, self.epochs // 3)
        loss = PredictionLoss(self.problem.ambiguity, training.Y) if self.anchor else None
        unit = self.pipeline_.cost_unit(training.Z[: self.batch_size], training.Y[: self.batch_size])
        return DecisionModule(self.pipeline_, temperature, smoothing, rate, self.anchor, loss, unit)

    def _train(self, name: str, module: Any, data: OutcomeData, epochs: int, monitor: str) -> None:
        """Run one stage and keep its best epoch."""
        stage = Stage(
            name=name,
            epochs=epochs,
            monitor=monitor if data.validation is not None else None,
            patience=self.patience if name == "decision" else None,
            gradient_clip=self.gradient_clip,
            directory=None if self.directory is None else Path(self.directory) / name,
            resume=self.resume,
            progress=self.progress,
            devices=self.devices,
        )
        self.history_[name] = train(stage, module, data)

    def decision(self, Z: Any) -> Decision:
        """Decisions for contexts with their values and statuses."""
        contexts = self._contexts(Z)
        return self.pipeline_.decide(contexts)

    def _check_fitted(self) -> None:
        if not hasattr(self, "pipeline_"):
            raise NotFittedError("This learner is not fitted yet: call fit(Z, Y) first.")

    def _contexts(self, Z: Any) -> Tensor:
        """Contexts of the right width."""
        self._check_fitted()
        contexts, width = matrix(Z, "Z"), self.n_features_in_
        if contexts.shape[1] != width:
            raise ShapeError(f"Z must have {width} columns, as in training, not {contexts.shape[1]}.")
        names, known = column_names(Z), self.feature_names_in_
        if names is not None and known is not None and names != known:
            raise ShapeError(f"Z must have the columns {known}, in this order, as in training, not {names}.")
        self.pipeline_.eval()
        return contexts

    def decide(self, Z: Any) -> dict[cp.Variable, Any]:
        """Decisions for contexts, by CVXPY variable: tensors for tensors, arrays otherwise; NaN where none exists."""
        best = self.decision(Z).best
        return best if isinstance(Z, Tensor) else {variable: value.numpy() for variable, value in best.items()}

    def predict_set(self, Z: Any) -> dict[str, Any]:
        """The (projected) parameters of the predicted ambiguity sets, by name."""
        contexts = self._contexts(Z)
        with torch.no_grad():
            parts = [self.pipeline_.theta(z, self.pipeline_.around(z)) for z in contexts.split(512)]
        values = self.problem.ambiguity.unpack(torch.cat(parts))
        return values if isinstance(Z, Tensor) else {name: value.numpy() for name, value in values.items()}

    def loss(self, Z: Any, Y: Any) -> float:
        """The mean decision loss over the items that have a decision; NaN where none has."""
        decision, outcomes = self.decision(Z), matrix(Y, "Y")
        if len(outcomes) != len(decision.status):
            raise ShapeError(f"Z has {len(decision.status)} rows and Y has {len(outcomes)}.")
        ok = decision.ok
        if not bool(ok.any()):
            return float("nan")
        chosen = {variable: value[ok] for variable, value in decision.best.items()}
        return float(self.problem.loss(chosen, outcomes[ok]).mean())

    def score(self, Z: Any, Y: Any) -> float:
        """The negative decision loss, so that greater is better."""
        return -self.loss(Z, Y)

    def save(self, path: str | Path, note: dict[str, Any] | None = None) -> None:
        """Write model and nominal distribution to one safetensors file; the problem itself is not saved.

        Args:
            path: the file.
            note: anything that JSON can hold, to be found again by ``learning.storage.read_header``.
        """
        self._check_fitted()
        pipeline = self.pipeline_
        assert pipeline.nominal is not None
        model = (
            {"hidden": list(pipeline.model.hidden), "degree": pipeline.model.degree}
            if isinstance(pipeline.model, SetModel)
            else None
        )
        settings = self.get_params(deep=False)
        header = {
            "inputs": self.n_features_in_,
            "columns": self.feature_names_in_,
            "parameters": {name: list(shape) for name, shape in self.problem.ambiguity.parameters.items()},
            "settings": {k: v for k, v in settings.items() if k not in RUNNING and storage.plain(v)},
            "model": model,
            "nominal": storage.described_nominal(pipeline.nominal),
            "projection": self._projection_weights(),
            "note": note,
        }
        storage.write(path, header, {"model": pipeline.model, "nominal": pipeline.nominal})

    def _projection_weights(self) -> list[float] | None:
        """The weights of the projection, flat."""
        projection = self.pipeline_.projection
        if projection is None:
            return None
        return np.concatenate([weight.reshape(-1) for weight in projection.weights.values()]).tolist()

    @classmethod
    def load(cls, path: str | Path, problem: DecisionProblem, **settings: Any) -> Self:
        """Read what :meth:`save` wrote, for the same problem; only tensors and JSON are read, never code.

        Args:
            path: the file.
            problem: the decision problem that the learner was made for.
            settings: those to change, and ``model`` and ``nominal`` where they were of your own making.
        """
        header, tensors = storage.read(path)
        expected = {name: list(shape) for name, shape in problem.ambiguity.parameters.items()}
        if header["parameters"] != expected:
            raise ModelError(f"{path} was saved for a set with parameters {header['parameters']}, not {expected}.")
        known = cls._get_param_names()
        stored = {k: v for k, v in header["settings"].items() if k in known}
        learner = cls(problem, **{**stored, **settings})
        if learner.model is None:
            if header["model"] is None:
                raise ModelError(f"{path} was saved with a model of your own: pass one as model=.")
            learner.hidden, learner.degree = tuple(header["model"]["hidden"]), int(header["model"].get("degree", 1))
        nominal = storage.made_nominal(path, header["nominal"]) if learner.nominal is None else None
        learner.n_features_in_ = int(header["inputs"])
        learner.feature_names_in_ = header.get("columns")
        learner.pipeline_ = learner._build(learner.n_features_in_, header.get("projection"), nominal)
        storage.restore(path, learner.pipeline_.model, "model", tensors)
        assert learner.pipeline_.nominal is not None
        storage.restore(path, learner.pipeline_.nominal, "nominal", tensors)
        learner.history_ = {}
        learner.pipeline_.eval()
        return learner
