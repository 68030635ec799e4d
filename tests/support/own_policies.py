"""User-defined policies for learners of run mode async: one in NumPy, and one in PyTorch."""

from __future__ import annotations

import numpy as np


class Table:
    """Q-learning with one weight for each pair of observation and action, for `worlds:World`."""

    def __init__(self, seed=0):
        self.weights = np.zeros((3, 2))
        self.rng = np.random.default_rng(seed)
        self.learned = 0

    def act(self, observations, greedy):
        best = (observations @ self.weights).argmax(-1)
        explores = self.rng.random(len(best)) < (0.0 if greedy else 0.2)
        return np.where(explores, self.rng.integers(0, 2, len(best)), best)

    def learn(self, batch):
        rows = np.arange(len(batch["actions"]))
        values = batch["observations"] @ self.weights
        errors = batch["rewards"] - values[rows, batch["actions"]]
        for action in (0, 1):
            chosen = batch["actions"] == action
            step = (errors[chosen, None] * batch["observations"][chosen]).sum(0) / len(errors)
            self.weights[:, action] += 0.2 * step
        self.learned += 1
        return {"loss": float((errors**2).mean())}

    def get_weights(self):
        return {"table": self.weights}

    def set_weights(self, weights):
        self.weights = np.array(weights["table"], float)

    def get_state(self):
        return {"learned": np.array(self.learned)}

    def set_state(self, arrays):
        self.learned = int(arrays["learned"])


def torch_policy(seed=0):
    """Deep Q-learning with PyTorch, for `worlds:World`."""
    import torch

    class Network:
        def __init__(self):
            torch.set_num_threads(1)
            torch.manual_seed(seed)
            self.net = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
            self.optimizer = torch.optim.Adam(self.net.parameters(), 0.01)
            self.rng = np.random.default_rng(seed)

        @torch.no_grad()
        def act(self, observations, greedy):
            best = self.net(torch.as_tensor(observations)).argmax(-1).numpy()
            explores = self.rng.random(len(best)) < (0.0 if greedy else 0.2)
            return np.where(explores, self.rng.integers(0, 2, len(best)), best)

        def learn(self, batch):
            batch = {name: torch.as_tensor(array) for name, array in batch.items()}
            values = self.net(batch["observations"]).gather(1, batch["actions"].long()[:, None])[:, 0]
            loss = torch.nn.functional.mse_loss(values, batch["rewards"])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            return {"loss": loss.item()}

        def get_weights(self):
            return {name: tensor.numpy() for name, tensor in self.net.state_dict().items()}

        def set_weights(self, weights):
            self.net.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in weights.items()})

    return Network()
