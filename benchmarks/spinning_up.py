"""TD3's update and VPG's epoch in the form of OpenAI's Spinning Up: a stand-in, because Spinning Up is in no package index.

Written anew, with what makes that code's time: a module for each network, torch.optim.Adam, PyTorch's normal distribution, buffers in
NumPy, and the values that it reads for its log. It differs in two ways, both of which make it faster. The critics are frozen during the
policy's step, as Spinning Up means to do (the iterator of their weights is used up by then, so that it does not). The log is not written.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.distributions import Normal
from torch.optim import Adam

GAMMA, LAMBDA, VALUE_STEPS = 0.99, 0.97, 80
Floats = NDArray[np.float32]


def network(sizes: Sequence[int], between: Any, last: Any = nn.Identity) -> Any:
    """Return dense layers with an activation between them, and one after the last."""
    layers: list[Any] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), between()]
    return nn.Sequential(*layers[:-1], last())


class Td3:
    """The networks and optimisers of TD3, and its update."""

    def __init__(self, observations: int, actions: int, hidden: Sequence[int]) -> None:
        sizes = (observations + actions, *hidden, 1)
        self._policy = network((observations, *hidden, actions), nn.ReLU, nn.Tanh)
        self._critics = nn.ModuleList([network(sizes, nn.ReLU) for _ in range(2)])
        self._networks = nn.ModuleList([self._policy, *self._critics])
        self._copies = copy.deepcopy(self._networks).requires_grad_(False)
        self._policy_optimizer = Adam(self._policy.parameters(), lr=1e-3)
        self._critic_optimizer = Adam(self._critics.parameters(), lr=1e-3)
        self.log: list[Any] = []

    def update(self, batch: Sequence[Any], moves_policy: bool) -> None:
        """Take the critics' step, and with `moves_policy` the policy's and Polyak averaging."""
        observations, actions, rewards, following, terminated = batch
        self._critic_optimizer.zero_grad()
        values = [_value(critic, observations, actions) for critic in self._critics]
        with torch.no_grad():
            policy, *critics = self._copies
            taken = policy(following)
            noise = torch.clamp(0.2 * torch.randn_like(taken), -0.5, 0.5)
            taken = torch.clamp(taken + noise, -1, 1)
            wanted = rewards + GAMMA * (1 - terminated) * torch.min(
                *(_value(each, following, taken) for each in critics)
            )
        loss = ((values[0] - wanted) ** 2).mean() + ((values[1] - wanted) ** 2).mean()
        loss.backward()
        self._critic_optimizer.step()
        self.log = [loss.item(), *(value.detach().numpy() for value in values)]
        if moves_policy:
            self._move_policy(observations)

    def _move_policy(self, observations: Any) -> None:
        self._critics.requires_grad_(False)
        self._policy_optimizer.zero_grad()
        loss = -_value(self._critics[0], observations, self._policy(observations)).mean()
        loss.backward()
        self._policy_optimizer.step()
        self._critics.requires_grad_(True)
        self.log.append(loss.item())
        with torch.no_grad():
            for moved, weight in zip(self._copies.parameters(), self._networks.parameters(), strict=True):
                moved.data.mul_(0.995)
                moved.data.add_(0.005 * weight.data)


def _value(critic: Any, observations: Any, actions: Any) -> Any:
    return critic(torch.cat([observations, actions], dim=-1)).squeeze(-1)


class Vpg:
    """VPG on one environment with continuous actions: a rollout of `steps` steps, one step of the policy, 80 of the values."""

    def __init__(self, environment: Any, steps: int, hidden: Sequence[int]) -> None:
        (inputs,), (actions,) = environment.observation_space.shape, environment.action_space.shape
        self._environment, self._steps = environment, steps
        self._policy = network((inputs, *hidden, actions), nn.Tanh)
        self._log_std = nn.Parameter(torch.full((actions,), -0.5))
        self._values = network((inputs, *hidden, 1), nn.Tanh)
        self._policy_optimizer = Adam([*self._policy.parameters(), self._log_std], lr=3e-4)
        self._value_optimizer = Adam(self._values.parameters(), lr=1e-3)
        self._observations = np.zeros((steps, inputs), np.float32)
        self._actions = np.zeros((steps, actions), np.float32)
        self._rewards, self._estimates, self._logs, self._advantages, self._returns = np.zeros((5, steps), np.float32)
        self.log: list[float] = []

    def epoch(self) -> None:
        """Take a rollout and learn from it. Its last episode ends with it, as in Spinning Up."""
        observation, _ = self._environment.reset()
        begun = 0
        for row in range(self._steps):
            action, value, log = self._act(observation)
            following, reward, terminated, truncated, _ = self._environment.step(action)
            self._observations[row], self._actions[row], self._rewards[row] = observation, action, reward
            self._estimates[row], self._logs[row] = value, log
            observation = following
            if terminated or truncated or row == self._steps - 1:
                self._finish(slice(begun, row + 1), 0.0 if terminated else float(self._act(observation)[1]))
                begun = row + 1
                observation, _ = self._environment.reset()
        self._learn()

    def _act(self, observation: Any) -> tuple[Any, Any, Any]:
        """Return an action, the value of the observation, and the action's log-probability."""
        with torch.no_grad():
            given = torch.as_tensor(observation, dtype=torch.float32)
            chosen = self._distribution(given)
            action = chosen.sample()
            return action.numpy(), self._value(given).numpy(), chosen.log_prob(action).sum(dim=-1).numpy()

    def _distribution(self, observations: Any) -> Any:
        return Normal(self._policy(observations), torch.exp(self._log_std))

    def _value(self, observations: Any) -> Any:
        return self._values(observations).squeeze(-1)

    def _finish(self, path: slice, last: float) -> None:
        """Compute the advantages and returns of an episode or its beginning, after which there is a value of `last`."""
        rewards, values = np.append(self._rewards[path], last), np.append(self._estimates[path], last)
        self._advantages[path] = _discounted(rewards[:-1] + GAMMA * values[1:] - values[:-1], GAMMA * LAMBDA)
        self._returns[path] = _discounted(rewards, GAMMA)[:-1]

    def _learn(self) -> None:
        advantages = (self._advantages - self._advantages.mean()) / self._advantages.std()
        arrays = (self._observations, self._actions, advantages, self._returns, self._logs)
        observations, actions, gains, returns, logs = (torch.as_tensor(array, dtype=torch.float32) for array in arrays)
        self.log = self._losses(observations, actions, gains, returns)
        self._policy_optimizer.zero_grad()
        chosen = self._distribution(observations)
        probable = chosen.log_prob(actions).sum(dim=-1)
        policy_loss = -(probable * gains).mean()
        self.log += [(logs - probable).mean().item(), chosen.entropy().mean().item()]
        policy_loss.backward()
        self._policy_optimizer.step()
        for _ in range(VALUE_STEPS):
            self._value_optimizer.zero_grad()
            value_loss = ((self._value(observations) - returns) ** 2).mean()
            value_loss.backward()
            self._value_optimizer.step()
        self.log += [policy_loss.item(), value_loss.item()]

    def _losses(self, observations: Any, actions: Any, gains: Any, returns: Any) -> list[float]:
        """Return both losses and the entropy before the update, for the log. Spinning Up computes them with gradients, too."""
        chosen = self._distribution(observations)
        policy_loss = -(chosen.log_prob(actions).sum(dim=-1) * gains).mean()
        value_loss = ((self._value(observations) - returns) ** 2).mean()
        return [policy_loss.item(), value_loss.item(), chosen.entropy().mean().item()]


def _discounted(values: Floats, factor: float) -> Floats:
    """Return the discounted sum of each value and all after it."""
    total, sums = 0.0, []
    for value in values[::-1].tolist():
        total = value + factor * total
        sums.append(total)
    return np.array(sums[::-1], np.float32)
