"""The closest parameters whose ambiguity set contains the nominal distribution."""

from drolayers.projection.module import Projection, ProjectionWarning
from drolayers.projection.rule import Report

__all__ = ["Projection", "ProjectionWarning", "Report"]
