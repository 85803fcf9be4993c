"""TD3, the twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv 1802.09477).

The defaults are those of OpenAI's Spinning Up.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcrl.catalogue.fields import choice, flag, integer, integers, number, same_number
from hpcrl.catalogue.training import TrainingSettings

TITLE = "TD3"
FAMILY = "off_policy"
FRAMEWORKS = ("numpy", "torch", "tensorflow", "jax", "mxnet")
ACTIONS = ("continuous",)
BOUNDED = True
OBSERVATIONS = ("vector",)
FUSED = False


@dataclass(frozen=True)
class Settings(TrainingSettings):
    """Hyperparameters. Steps, replay and batch are totals over all ranks: each rank takes its share.

    The first `random_steps` actions are random. Later ones are the policy's, with normal noise of the standard deviation `action_noise`.
    The target policy's actions have noise of `target_noise`, of at most `noise_clip`. All noise is in shares of half the range of actions.
    Policy and target copies move at every `policy_delay`-th update of the critics: the copies by `target_share` of the way.

    Three settings are faults of published code. `target_noise_kind` ``uniform`` draws the noise from 0 to 1 instead, so that it has a mean.
    With `shared_noise`, all updates of an interval have the same noise. With `unsynchronized`, no phase waits for its own work, and JAX dispatches
    asynchronously on the CPU, too.
    """

    total_steps: int = integer(100_000)
    hidden: tuple[int, ...] = integers((256, 256))
    activation: str = choice("relu", "tanh")
    learning_rate: float = number(1e-3, above=0)
    final_learning_rate: float | None = same_number(0)
    value_learning_rate: float = number(1e-3, above=0)
    final_value_learning_rate: float | None = same_number(0)
    max_gradient_norm: float = number(0.0, 0)
    gamma: float = number(0.99, 0, 1)
    batch_size: int = integer(100)
    buffer_size: int = integer(1_000_000)
    random_steps: int = integer(10_000, 0)
    learning_starts: int = integer(1_000)
    train_interval: int = integer(50)
    updates: int = integer(50)
    policy_delay: int = integer(2)
    target_share: float = number(0.005, maximum=1, above=0)
    action_noise: float = number(0.1, 0)
    target_noise: float = number(0.2, 0)
    noise_clip: float = number(0.5, 0)
    target_noise_kind: str = choice("normal", "uniform")
    shared_noise: bool = flag(False)
    unsynchronized: bool = flag(False)
    evaluation_interval: int = integer(4_000)

    @property
    def train_unit(self) -> str:
        """Return what `train_interval` counts."""
        return "steps"

    @property
    def epochs(self) -> int:
        """Return how often a batch is learnt from."""
        return 1


def fault(settings: Settings, ranks: int) -> tuple[str, str] | None:
    """Return the setting that `ranks` ranks cannot train with, and why; None if they can."""
    if settings.batch_size > settings.buffer_size:
        return "batch_size", f"{settings.batch_size}: expected at most buffer_size, which is {settings.buffer_size}"
    if settings.batch_size % ranks:
        return "batch_size", f"{ranks} ranks cannot share {settings.batch_size}: expected a multiple of {ranks}"
    if settings.train_interval < ranks:
        return "train_interval", f"{ranks} ranks cannot share {settings.train_interval}: expected at least {ranks}"
    return None
