"""Optax's optimisers: the aligned formulae of hpcrl.rl.specification.optimizers, and Optax's own defaults."""

from __future__ import annotations

import optax

from hpcrl.catalogue.training import OptimizerSettings
from hpcrl.rl.specification.optimizers import BETA1, BETA2


def make(settings: OptimizerSettings) -> optax.GradientTransformation:
    """Return the direction of an update without its learning rate."""
    framework = settings.defaults == "framework"
    if settings.optimizer == "sgd":
        return optax.identity()
    if settings.optimizer == "adam":
        epsilon = settings.optimizer_epsilon
        return optax.scale_by_adam() if framework else optax.scale_by_adam(b1=BETA1, b2=BETA2, eps=epsilon)
    if framework:
        return optax.scale_by_rms()
    return optax.scale_by_rms(decay=settings.rmsprop_decay, eps=settings.optimizer_epsilon, eps_in_sqrt=False)
