"""From data to decisions with scikit-learn's manners: fit, decide, score."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import cvxpy as cp
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn

from drolayers.conic import Smoothed
from drolayers.errors import ModelError, ShapeError
from drolayers.layer import Decision, DROLayer
from drolayers.learning.data import OutcomeData, Outcomes, matrix
from drolayers.learning.model import SetModel
from drolayers.learning.module import DecisionModule, Pipeline, PredictionModule
from drolayers.learning.pretraining import PredictionLoss
from drolayers.learning.schedule import TemperatureSchedule, smoothing_schedule, temperature_schedule
from drolayers.learning.training import Stage, train
from drolayers.nominal import KNN, NominalDistribution
from drolayers.problem import DecisionProblem
from drolayers.projection import Projection
from drolayers.surrogate.energy import Temperature

FORMAT = 1


class DecisionFocusedLearner(BaseEstimator):  # type: ignore[misc]
    """Learns, from contexts Z and outcomes Y, a set-valued prediction whose robust decisions are good.

    Args:
        problem: the decision problem.
        model: any module from ``(batch, dz)`` to ``(batch, ambiguity.size)``; a :class:`SetModel` unless given.
        nominal: Q_z; the 20 nearest neighbours unless given.
        strategy: "decision" (pre-train, then train on decisions) or "prediction" (pre-train only).
        seed: of everything random.
        hidden: widths of the default model.
        candidates: T of the layer.
        samples: S of the layer.
        temperature: λ: a number (absolute), ``dro.RelativeTemperature``, or a callable from the epoch to either;
            relative and annealed unless given.
        gradient: "exact", "smoothed", or "auto": smoothed, with an annealed level, where the solution map is flat.
        smoothing: the level at which smoothing begins.
        projection: "auto", "closed_form", "conic", "clip", or None to leave θ as the model gives it.
        margin: of the projection, relative to what the nominal distribution needs.
        leave_one_out: whether a training point is kept out of its own nominal distribution.
        pretrain_epochs: epochs of prediction-focused training.
        pretrain_lr: its learning rate.
        epochs: epochs of decision-focused training.
        lr: its learning rate.
        lr_divisor: what both rates are divided by, three times in the course of a training.
        batch_size: items a step.
        gradient_clip: largest norm of a gradient; None for none.
        patience: epochs without a better validation loss before training stops; None never stops early.
        validation_share: share of the data held out where no validation data are given.
        directory: where checkpoints and logs go; None keeps neither.
        resume: continue from the last checkpoint in ``directory``.
        progress: whether to show a progress bar.
        devices: number of processes.
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
        pretrain_lr: float = 1e-2,
        epochs: int = 30,
        lr: float = 1e-3,
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
        self.pipeline_ = self._build(training.Z.shape[1])
        self._calibrate(training)
        data = OutcomeData(training, held_out, self.batch_size, self.seed)
        self.history_: dict[str, list[dict[str, float]]] = {}
        ambiguity = self.problem.ambiguity
        if self.pretrain_epochs and not ambiguity.needs_nominal:
            loss = PredictionLoss(ambiguity, training.Y)
            every = max(1, self.pretrain_epochs // 4)
            module = PredictionModule(
                self.pipeline_, loss, self.pretrain_lr, self.lr_divisor, every, self.pretrain_epochs // 2
            )
            self._train("prediction", module, data, self.pretrain_epochs, "val_prediction_loss")
        if self.strategy == "decision" and self.epochs:
            self._train("decision", self._decision_module(), data, self.epochs, "val_decision_loss")
        self.pipeline_.eval()
        return self

    def _check(self) -> None:
        """Settings that make no sense."""
        if not isinstance(self.problem, DecisionProblem):
            raise ModelError(f"DecisionFocusedLearner needs a dro.DecisionProblem, not {type(self.problem).__name__}.")
        if self.strategy not in ("decision", "prediction"):
            raise ModelError(f"strategy must be 'decision' or 'prediction', not {self.strategy!r}.")
        if self.gradient not in ("auto", "exact", "smoothed"):
            raise ModelError(f"gradient must be 'auto', 'exact' or 'smoothed', not {self.gradient!r}.")
        if self.resume and self.directory is None:
            raise ModelError("resume=True needs directory=..., where the interrupted run kept its checkpoints.")
        if not 0 <= self.validation_share < 1:
            raise ModelError(f"validation_share must lie in [0, 1), not {self.validation_share}.")

    def _split(self, Z: Tensor, Y: Tensor, validation: tuple[Any, Any] | None) -> tuple[Outcomes, Outcomes | None]:
        """Training and validation data."""
        if validation is not None:
            held_out = Outcomes(matrix(validation[0], "validation Z"), matrix(validation[1], "validation Y"), False)
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

    def _build(self, inputs: int) -> Pipeline:
        """Model, nominal distribution, projection and layer."""
        ambiguity = self.problem.ambiguity
        generator = torch.Generator().manual_seed(self.seed)
        model = SetModel(ambiguity, inputs, self.hidden, generator) if self.model is None else self.model
        nominal = self.nominal
        if nominal is None:
            nominal = KNN(k=getattr(ambiguity, "atoms", 20))
        method = self.projection
        projection = None if method is None else Projection(ambiguity, relative=self.margin, method=method)  # type: ignore[arg-type]
        layer = DROLayer(
            self.problem,
            candidates=self.candidates,
            samples=self.samples,
            gradient=Smoothed(self.smoothing) if self._smoothed() else "exact",
            oracle=self.oracle,
            engine=self.engine,
            seed=self.seed,
        )
        return Pipeline(model.double(), nominal, projection, layer)

    def _calibrate(self, training: Outcomes) -> None:
        """Units of the default model, and the data of the nominal distribution."""
        if isinstance(self.pipeline_.model, SetModel):
            self.pipeline_.model.calibrate(self.problem.ambiguity, training.Z, training.Y)
        with torch.no_grad():
            theta = self.pipeline_.model(training.Z[:1])
        if tuple(theta.shape) != (1, self.problem.ambiguity.size):
            size = self.problem.ambiguity.size
            raise ShapeError(f"The model must return shape (batch, {size}), not {tuple(theta.shape)}.")
        assert self.pipeline_.nominal is not None
        self.pipeline_.nominal.fit(training.Z, training.Y)
        if not self.leave_one_out:
            training.training = False

    def _decision_module(self) -> DecisionModule:
        """The second training."""
        smoothing = smoothing_schedule(self.smoothing, self.epochs) if self._smoothed() else None
        every = max(1, self.epochs // 3)
        temperature = temperature_schedule(self.temperature, self.epochs)
        return DecisionModule(self.pipeline_, temperature, smoothing, self.lr, self.lr_divisor, every)

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

    def _decisions(self, Z: Any) -> Decision:
        """Decisions for contexts, in chunks."""
        contexts = self._contexts(Z)
        with torch.no_grad():
            parts = [self.pipeline_(chunk) for chunk in contexts.split(512)]
        return _joined(parts)

    def _contexts(self, Z: Any) -> Tensor:
        """Contexts of the right width."""
        if not hasattr(self, "pipeline_"):
            raise NotFittedError("This learner is not fitted yet: call fit(Z, Y) first.")
        contexts = matrix(Z, "Z")
        assert self.pipeline_.nominal is not None
        width = self.pipeline_.nominal.covariates.shape[1]
        if contexts.shape[1] != width:
            raise ShapeError(f"Z must have {width} columns, as in training, not {contexts.shape[1]}.")
        self.pipeline_.eval()
        return contexts

    def decide(self, Z: Any) -> dict[cp.Variable, Any]:
        """Decisions for contexts, by CVXPY variable: tensors for tensors, arrays otherwise; NaN where none exists."""
        best = self._decisions(Z).best
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
        decision, outcomes = self._decisions(Z), matrix(Y, "Y")
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

    def save(self, path: str | Path) -> None:
        """Write model and nominal distribution to one safetensors file; the problem itself is not saved."""
        if not hasattr(self, "pipeline_"):
            raise NotFittedError("This learner is not fitted yet: call fit(Z, Y) first.")
        assert self.pipeline_.nominal is not None
        tensors = {f"model.{k}": v.contiguous() for k, v in self.pipeline_.model.state_dict().items()}
        tensors |= {f"nominal.{k}": v.contiguous() for k, v in self.pipeline_.nominal.state_dict().items()}
        header = {
            "format": FORMAT,
            "inputs": int(self.pipeline_.nominal.covariates.shape[1]),
            "parameters": {name: list(shape) for name, shape in self.problem.ambiguity.parameters.items()},
            "settings": {k: v for k, v in self.get_params(deep=False).items() if _plain(v)},
        }
        save_file(tensors, str(path), metadata={"drolayers": json.dumps(header)})

    @classmethod
    def load(cls, path: str | Path, problem: DecisionProblem, **settings: Any) -> Self:
        """Read what :meth:`save` wrote, for the same problem; only tensors and JSON are read, never code.

        Args:
            path: the file.
            problem: the decision problem that the learner was made for.
            settings: whatever cannot be written as JSON (``model``, ``nominal``), where it was given.
        """
        try:
            with safe_open(str(path), framework="pt") as stored:
                header = json.loads((stored.metadata() or {}).get("drolayers", "{}"))
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (no mapping)
        except (OSError, SafetensorError, json.JSONDecodeError) as error:
            raise ModelError(f"{path} cannot be read as a saved learner: {error}.") from error
        if header.get("format") != FORMAT or "settings" not in header:
            raise ModelError(f"{path} is not a saved learner of format {FORMAT}.")
        expected = {name: list(shape) for name, shape in problem.ambiguity.parameters.items()}
        if header["parameters"] != expected:
            raise ModelError(f"{path} was saved for a set with parameters {header['parameters']}, not {expected}.")
        learner = cls(problem, **{**header["settings"], **settings})
        learner.pipeline_ = learner._build(header["inputs"])
        for name in ("model", "nominal"):
            state = {k.removeprefix(f"{name}."): v for k, v in tensors.items() if k.startswith(f"{name}.")}
            getattr(learner.pipeline_, name).load_state_dict(state)
        learner.history_ = {}
        learner.pipeline_.eval()
        return learner


def _plain(value: Any) -> bool:
    """Whether JSON can hold a setting."""
    if isinstance(value, list | tuple):
        return all(_plain(v) for v in value)
    return value is None or isinstance(value, bool | int | float | str)


def _joined(parts: list[Decision]) -> Decision:
    """Decisions of chunks, one after another."""
    join: Callable[[list[Tensor]], Tensor] = torch.cat
    first = parts[0]
    return Decision(
        {v: join([p.best[v] for p in parts]) for v in first.best},
        join([p.value for p in parts]),
        join([p.status for p in parts]),
        {v: join([p.candidates[v] for p in parts]) for v in first.candidates},
        join([p.objective for p in parts]),
        join([p.probabilities for p in parts]),
        join([p.effective_sample_size for p in parts]),
    )
