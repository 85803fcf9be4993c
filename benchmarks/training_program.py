"""Run in a framework's own environment: train by CleanRL's settings and print environment steps per second.

python training_program.py FRAMEWORK EXECUTION ACTING [ALGORITHM], or PEER [ALGORITHM]; the peers are at the end
"""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple


class Task(NamedTuple):
    """What is trained, for how many steps, and from which step on time counts, on every side: everything is compiled by then."""

    environment: str
    steps: int
    warm: int
    settings: dict[str, Any]


STEPS = 50_000
# A multiple of PPO's rollouts; and for DQN of the steps from one update to the next.
WARM, DQN_WARM = 12_288, 12_300
# CleanRL's dqn.py and ppo.py: their defaults, but for the number of steps and, for PPO, twice as many environments.
SETTINGS: dict[str, Any] = {
    "total_steps": STEPS, "hidden": [120, 84], "learning_rate": 2.5e-4, "final_learning_rate": 2.5e-4, "batch_size": 128,
    "buffer_size": 10_000, "learning_starts": 10_000, "target_interval": 500, "train_interval": 10, "updates": 1,
    "initial_epsilon": 1.0, "final_epsilon": 0.05, "exploration_fraction": 0.5, "loss": "mse", "max_gradient_norm": 0.0,
    "evaluation_interval": DQN_WARM, "evaluation_episodes": 1,
}  # fmt: skip
PPO: dict[str, Any] = {
    "total_steps": STEPS, "hidden": [64, 64], "learning_rate": 2.5e-4, "final_learning_rate": 0.0, "environments": 8,
    "rollout_steps": 128, "minibatch_size": 256, "epochs": 4, "gamma": 0.99, "gae_lambda": 0.95, "clip_range": 0.2,
    "final_clip_range": 0.2, "clip_values": True, "entropy_weight": 0.01, "value_weight": 0.5, "max_gradient_norm": 0.5,
    "evaluation_interval": WARM, "evaluation_episodes": 1,
}  # fmt: skip
# CleanRL's td3_continuous_action.py: its defaults, but for the number of steps, the random ones among them, and the buffer.
TD3: dict[str, Any] = {
    "total_steps": 14_000, "hidden": [256, 256], "learning_rate": 3e-4, "final_learning_rate": 3e-4,
    "value_learning_rate": 3e-4, "final_value_learning_rate": 3e-4, "batch_size": 256, "buffer_size": 100_000,
    "random_steps": 10_000, "learning_starts": 10_000, "train_interval": 1, "updates": 1, "policy_delay": 2,
    "evaluation_interval": 11_000, "evaluation_episodes": 1,
}  # fmt: skip
# Tianshou's test_rainbow.py with prioritised replay: its defaults, but for the network, which is hpcrl's, and random actions: noise explores.
RAINBOW: dict[str, Any] = {
    "total_steps": STEPS, "hidden": [128, 128], "learning_rate": 1e-3, "final_learning_rate": 1e-3, "optimizer_epsilon": 1e-8,
    "max_gradient_norm": 0.0, "environments": 8, "train_interval": 8, "updates": 1, "batch_size": 64, "buffer_size": 20_000,
    "learning_starts": 512, "target_interval": 2_560, "gamma": 0.9, "n_step": 3, "priority_exponent": 0.6,
    "initial_importance": 0.4, "noise_scale": 0.1, "atoms": 51, "value_minimum": -10.0, "value_maximum": 10.0,
    "evaluation_interval": WARM, "evaluation_episodes": 1,
}  # fmt: skip
TASKS = {
    "dqn": Task("CartPole-v1", STEPS, DQN_WARM, SETTINGS),
    "ppo": Task("CartPole-v1", STEPS, WARM, PPO),
    "rainbow": Task("CartPole-v1", STEPS, WARM, RAINBOW),
    "td3": Task("HalfCheetah-v5", 14_000, 11_000, TD3),
}


class Watch:
    """Seconds from the first step that counts to the last; a reporter of ours, and a callback of others."""

    def __init__(self, warm: int) -> None:
        self._warm = warm
        self._first: tuple[int, float] | None = None
        self._last = (0, 0.0)

    def progress(self, step: int, total: int) -> None:
        self._last = step, time.perf_counter()
        if self._first is None and step >= self._warm:
            self._first = self._last

    def rate(self) -> float:
        """Return steps per second."""
        assert self._first is not None and self._last[0] > self._first[0]
        return (self._last[0] - self._first[0]) / (self._last[1] - self._first[1])


def ours(framework: str, execution: str, acting: str, name: str = "dqn") -> float:
    from functools import partial

    from hpcrl.catalogue.fields import check, names
    from hpcrl.catalogue.registry import algorithms
    from hpcrl.catalogue.training import OffPolicySettings
    from hpcrl.formats.facts import Asked
    from hpcrl.rl.distributed.group import Group
    from hpcrl.rl.envs.make import gymnasium_environment
    from hpcrl.rl.make import make_training
    from hpcrl.rl.runs import Run
    from hpcrl.rl.smoke import Silent
    from hpcrl.run.training import before_import
    from hpcrl.telemetry.phases import PhaseClock

    class Reporter(Watch, Silent):
        """Nothing but the watch."""

    before_import([framework], Asked(1, 1024, 60), Group())
    task = TASKS[name]
    kind = algorithms()[name].settings
    given = task.settings | ({"acting": acting} if "acting" in names(kind) else {})
    if execution == "fused" and issubclass(kind, OffPolicySettings):
        given |= {"environments": 1} if "environments" in given else {}
    reporter = Reporter(task.warm)
    run = Run(1, reporter, PhaseClock())
    training = make_training(
        name,
        check(name, kind, given),
        framework,
        execution,
        partial(gymnasium_environment, task.environment, None),
        run,
    )
    for until in (*range(task.warm, task.steps, task.warm), task.steps):  # no evaluation: the peers have none
        training.loop.advance(until, lambda: False)
    training.loop.close()
    return reporter.rate()


def sb3(name: str = "dqn") -> float:
    import torch
    from stable_baselines3 import DQN, TD3
    from stable_baselines3 import PPO as Ppo
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    if name == "dqn":
        model = DQN(
            "MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [120, 84]}, learning_rate=2.5e-4, batch_size=128,
            buffer_size=10_000, learning_starts=10_000, target_update_interval=500, train_freq=10, gradient_steps=1,
            exploration_initial_eps=1.0, exploration_final_eps=0.05, exploration_fraction=0.5, seed=1, device="cpu",
        )  # fmt: skip
    elif name == "td3":
        model = TD3("MlpPolicy", "HalfCheetah-v4", **_sb3_td3())
    else:
        model = Ppo(
            "MlpPolicy", make_vec_env("CartPole-v1", 8, seed=1), learning_rate=2.5e-4, n_steps=128, batch_size=256, n_epochs=4,
            gamma=0.99, gae_lambda=0.95, clip_range=0.2, clip_range_vf=0.2, ent_coef=0.01, seed=1, device="cpu",
        )  # fmt: skip
    return _sb3_rate(model, TASKS[name])


def sbx(name: str = "td3") -> float:
    """SB3's interface over JAX. Its targets follow at every update, and its actor takes the least of both values."""
    import torch
    from sbx import TD3

    torch.set_num_threads(1)  # its replay buffer is SB3's
    return _sb3_rate(TD3("MlpPolicy", TASKS[name].environment, **_sb3_td3()), TASKS[name])


def _sb3_td3() -> dict[str, Any]:
    from stable_baselines3.common.noise import ActionNoise, NormalActionNoise

    noise: ActionNoise = NormalActionNoise([0.0] * 6, [0.1] * 6)
    return {
        "policy_kwargs": {"net_arch": [256, 256]}, "learning_rate": 3e-4, "batch_size": 256, "buffer_size": 100_000,
        "learning_starts": 10_000, "train_freq": 1, "gradient_steps": 1, "policy_delay": 2, "tau": 0.005, "gamma": 0.99,
        "action_noise": noise, "target_policy_noise": 0.2, "target_noise_clip": 0.5, "seed": 1, "device": "cpu",
    }  # fmt: skip


def _sb3_rate(model: Any, task: Task) -> float:
    from stable_baselines3.common.callbacks import BaseCallback

    watch = Watch(task.warm)

    class Callback(BaseCallback):
        def _on_step(self) -> bool:
            watch.progress(self.num_timesteps, task.steps)
            return True

    model.learn(task.steps, callback=Callback())
    return watch.rate()


def rejax(name: str = "dqn") -> float:
    """One update for every ten steps, as CleanRL has it, takes ten environments here, side by side.

    A run to the last step minus one to the step from which time counts, both compiled before.
    """
    seconds = {}
    for steps in (TASKS[name].warm, STEPS):
        train, key, wanted = (_rejax_dqn if name == "dqn" else _rejax_ppo)(steps)
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            done = train(key)
            best = min(best, time.perf_counter() - start)
        assert done == wanted, (done, wanted)
        seconds[wanted] = best
    (first, before), (last, whole) = seconds.items()
    return (last - first) / (whole - before)


def _rejax_dqn(steps: int) -> tuple[Any, Any, int]:
    from flax import linen
    from rejax import DQN
    from rejax.networks import DiscreteQNetwork, EpsilonGreedyPolicy

    steps -= steps % 10
    algorithm = DQN.create(
        env="CartPole-v1", total_timesteps=steps, eval_freq=steps, skip_initial_evaluation=True, num_envs=10,
        num_epochs=1, buffer_size=10_000, fill_buffer=10_000, batch_size=128, learning_rate=2.5e-4, ddqn=False,
        target_update_freq=500, eps_start=1.0, eps_end=0.05, exploration_fraction=0.5,
    )  # fmt: skip
    network = EpsilonGreedyPolicy(DiscreteQNetwork)((120, 84), action_dim=2, activation=linen.relu)
    return *_compiled(algorithm.replace(agent=network)), steps


def _rejax_ppo(steps: int) -> tuple[Any, Any, int]:
    from rejax import PPO as Ppo

    steps -= steps % 1024
    algorithm = Ppo.create(
        env="CartPole-v1", total_timesteps=steps, eval_freq=steps, skip_initial_evaluation=True, num_envs=8, num_steps=128,
        num_epochs=4, num_minibatches=4, learning_rate=2.5e-4, gamma=0.99, gae_lambda=0.95, clip_eps=0.2, ent_coef=0.01,
        vf_coef=0.5, max_grad_norm=0.5, agent_kwargs={"activation": "tanh", "hidden_layer_sizes": (64, 64)},
    )  # fmt: skip
    return *_compiled(algorithm), steps


def _compiled(algorithm: Any) -> tuple[Any, Any]:
    import jax

    algorithm = algorithm.replace(eval_callback=lambda algorithm, state, key: state.global_step)
    key = jax.random.PRNGKey(1)
    train = jax.jit(lambda key: algorithm.train(key)).lower(key).compile()
    return (lambda key: int(jax.block_until_ready(train(key))[1][0])), key


def tianshou(name: str = "rainbow") -> float:
    """The network is hpcrl's, of Tianshou's noisy layers: one noisy hidden layer, which value and advantages share."""
    import gymnasium
    import torch
    from tianshou.algorithm.modelfree.c51 import C51Policy
    from tianshou.algorithm.modelfree.rainbow import RainbowDQN
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, PrioritizedVectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.trainer import OffPolicyTrainerParams
    from tianshou.utils.net.discrete import NoisyLinear

    task, given = TASKS[name], TASKS[name].settings
    atoms, actions, scale = given["atoms"], 2, given["noise_scale"]

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            first, second = given["hidden"]
            noisy = NoisyLinear(first, second, scale), NoisyLinear(second, (actions + 1) * atoms, scale)
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(4, first), torch.nn.ReLU(), noisy[0], torch.nn.ReLU(), noisy[1]
            )

        def forward(self, obs: Any, state: Any = None, info: Any = None) -> Any:
            output = self.layers(torch.as_tensor(obs, dtype=torch.float32)).view(-1, actions + 1, atoms)
            values = output[:, :1] + output[:, 1:] - output[:, 1:].mean(1, keepdim=True)
            return values.softmax(2), state

    torch.set_num_threads(1)
    torch.manual_seed(1)
    count, watch = given["environments"], Watch(task.warm)
    environments = DummyVectorEnv([lambda: gymnasium.make(task.environment) for _ in range(count)])
    policy = C51Policy(
        model=Network(), action_space=gymnasium.make(task.environment).action_space, num_atoms=atoms,
        v_min=given["value_minimum"], v_max=given["value_maximum"],
    )  # fmt: skip
    algorithm = RainbowDQN(
        policy=policy, optim=AdamOptimizerFactory(lr=given["learning_rate"]), gamma=given["gamma"],
        n_step_return_horizon=given["n_step"], target_update_freq=given["target_interval"] // given["train_interval"],
    )  # fmt: skip
    first_importance = given["initial_importance"]
    replay = PrioritizedVectorReplayBuffer(
        given["buffer_size"], buffer_num=count, alpha=given["priority_exponent"], beta=first_importance, weight_norm=True
    )  # fmt: skip
    collector: Any = Collector(algorithm, environments, replay, exploration_noise=True)
    collector.reset()
    collector.collect(n_step=given["learning_starts"])

    def counted(epoch: int, step: int) -> None:
        replay.set_beta(first_importance + (1 - first_importance) * step / task.steps)
        watch.progress(step, task.steps)

    steps = task.steps - task.steps % count
    algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=collector, test_collector=None, max_epochs=1, epoch_num_steps=steps,
            collection_step_num_env_steps=given["train_interval"], batch_size=given["batch_size"],
            update_step_num_gradient_steps_per_sample=given["updates"] / given["train_interval"],
            training_fn=counted, test_in_training=False, verbose=False, show_progress=False,
        )
    )  # fmt: skip
    return watch.rate()


def torchrl(name: str = "ppo") -> float:
    """The modules and the collector of its own script (sota-implementations/ppo), with one optimiser, as the others have it."""
    import torch
    from tensordict.nn import TensorDictModule
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
    from torchrl.envs import GymEnv, SerialEnv
    from torchrl.modules import MLP, OneHotCategorical, ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    task, given = TASKS[name], TASKS[name].settings
    torch.set_num_threads(1)
    torch.manual_seed(1)
    watch, rollout = Watch(task.warm), given["environments"] * given["rollout_steps"]

    def network(outputs: int) -> Any:
        return MLP(4, outputs, num_cells=given["hidden"], activation_class=torch.nn.Tanh)

    logits = TensorDictModule(network(2), in_keys=["observation"], out_keys=["logits"])
    actor = ProbabilisticActor(logits, in_keys=["logits"], distribution_class=OneHotCategorical, return_log_prob=True)
    critic = ValueOperator(network(1), in_keys=["observation"])
    collector = Collector(
        SerialEnv(given["environments"], lambda: GymEnv(task.environment, device="cpu")), actor,
        frames_per_batch=rollout, total_frames=task.steps - task.steps % rollout, auto_register_policy_transforms=False,
    )  # fmt: skip
    advantages = GAE(gamma=given["gamma"], lmbda=given["gae_lambda"], value_network=critic)
    minibatches = TensorDictReplayBuffer(
        storage=LazyTensorStorage(rollout), sampler=SamplerWithoutReplacement(), batch_size=given["minibatch_size"]
    )
    loss_of = ClipPPOLoss(
        actor, critic, clip_epsilon=given["clip_range"], entropy_coeff=given["entropy_weight"],
        critic_coeff=given["value_weight"], normalize_advantage=True, loss_critic_type="l2", clip_value=True,
    )  # fmt: skip
    optimizer = torch.optim.Adam(loss_of.parameters(), lr=given["learning_rate"], eps=1e-5)
    done = 0
    for number, data in enumerate(collector):
        for group in optimizer.param_groups:
            group["lr"] = given["learning_rate"] * (1 - number * rollout / task.steps)
        with torch.no_grad():
            data = advantages(data)
        for _ in range(given["epochs"]):
            minibatches.extend(data.reshape(-1))
            for minibatch in minibatches:
                losses = loss_of(minibatch)
                (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
                torch.nn.utils.clip_grad_norm_(loss_of.parameters(), given["max_gradient_norm"])
                optimizer.step()
                optimizer.zero_grad()
        collector.update_policy_weights_()
        watch.progress(done := done + rollout, task.steps)
    collector.shutdown()
    return watch.rate()


PEERS = {"sb3": sb3, "sbx": sbx, "rejax": rejax, "tianshou": tianshou, "torchrl": torchrl}

if __name__ == "__main__":
    program = PEERS.get(sys.argv[1])
    print(f"SPS: {program(*sys.argv[2:]) if program else ours(*sys.argv[1:]):.0f}")
