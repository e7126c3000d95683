"""Are our RanPAC and SimpleCIL those of PILOT (https://github.com/sun-hailong/LAMDA-PILOT)?

    git clone https://github.com/sun-hailong/LAMDA-PILOT        # tested with commit 2647455; needs scipy and tqdm
    python benchmarks/pilot_parity.py --pilot LAMDA-PILOT

PILOT's own `replace_fc`, `setup_RP` and `optimise_ridge_parameter` learn four tasks of made-up features in float64, and
so do our methods. Both get the same projection. Ours gets PILOT's penalty, because each holds other images back to
choose it; the errors of all penalties on PILOT's held-back images are compared too. The exit status says whether all
differences are below 1e-6.
"""

import argparse
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from endocil.components.ridge import squared_errors
from endocil.methods.ranpac import PENALTIES, PENALTY, RanPAC
from endocil.methods.simplecil import SimpleCIL

D, M, CLASSES, TASKS, EACH = 48, 160, 10, (4, 2, 1, 3), 40
TOLERANCE = 1e-6


class Given(nn.Module):
    """A backbone that returns the features it is given."""

    n_features = D

    def forward(self, features: Tensor) -> Tensor:
        return features


def pilot_learner(module: Any, **values: Any) -> Any:
    """PILOT's learner without its constructor, which would download a ViT."""
    learner: Any = module.Learner.__new__(module.Learner)
    learner._device, learner.args = torch.device("cpu"), {"M": M, "nb_classes": CLASSES}
    network = nn.Module()
    network.backbone = network.extract_vector = Given()
    network.fc = SimpleNamespace(in_features=D, out_features=0, weight=torch.zeros(0, D))  # type: ignore[assignment]
    learner._network = network
    learner.__dict__.update(values)
    return learner


def differences(ranpac: Any, simplecil: Any) -> dict[str, float]:
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(CLASSES).repeat_interleave(EACH)
    centres = torch.randn(CLASSES, D, generator=random)
    features = (centres[labels] + torch.randn(len(labels), D, generator=random)).relu()
    theirs = {"ranpac": pilot_learner(ranpac), "simplecil": pilot_learner(simplecil)}
    ours = {"ranpac": RanPAC(Given(), projected=M), "simplecil": SimpleCIL(Given())}
    theirs["ranpac"].setup_RP()
    found = dict.fromkeys(("RanPAC: head", "RanPAC: penalty", "RanPAC: errors of penalties", "SimpleCIL: scores"), 0.0)
    n_old, known = 0, torch.zeros(0, D)
    for n_new in TASKS:
        n = n_old + n_new
        rows = torch.nonzero((labels >= n_old) & (labels < n)).flatten()
        rows = rows[torch.randperm(len(rows), generator=random)]
        x, y = features[rows], labels[rows]
        for name, learner in theirs.items():
            learner._network.fc.weight = torch.zeros(n, M if name == "ranpac" else D)
            if name == "simplecil":
                learner._network.fc.weight[:n_old] = known
            learner.train_dataset = SimpleNamespace(labels=y.numpy())
            learner.replace_fc([(0, x, y)], learner._network, None)
        known = theirs["simplecil"]._network.fc.weight.clone()
        h = (x @ theirs["ranpac"].W_rand).relu()
        one_hot = torch.eye(CLASSES)[y]
        fit = int(len(h) * 0.8)
        penalty = theirs["ranpac"].optimise_ridge_parameter(h, one_hot)
        mine = squared_errors(h[:fit], one_hot[:fit], h[fit:], one_hot[fit:], PENALTIES)
        if n_new > 1:  # in a task of one class a constant has no error
            found["RanPAC: penalty"] = max(
                found["RanPAC: penalty"], abs(float(PENALTIES[mine.argmin()] / penalty) - 1.0)
            )
        for size, error in zip(PENALTIES, mine, strict=True):
            head = torch.linalg.solve(h[:fit].T @ h[:fit] + size * torch.eye(M), h[:fit].T @ one_hot[:fit])
            direct = (h[fit:] @ head - one_hot[fit:]).square().sum()
            if size >= 1e-2:  # below it a singular matrix has no digits to compare
                gap = float((error - direct).abs() / direct)
                found["RanPAC: errors of penalties"] = max(found["RanPAC: errors of penalties"], gap)
        for method in ours.values():
            method.classifier.grow(n_new, random)
        ours["ranpac"].projection = theirs["ranpac"].W_rand
        ours["ranpac"].statistics[PENALTY] = torch.tensor([penalty])
        for method in ours.values():
            method.double().add(x, y, n)
            method.solve()
        head = theirs["ranpac"]._network.fc.weight
        gap = float((ours["ranpac"].classifier.weight - head).abs().max() / head.abs().max())
        found["RanPAC: head"] = max(found["RanPAC: head"], gap)
        scores = nn.functional.normalize(features) @ nn.functional.normalize(known).T
        gap = float((ours["simplecil"].classify(features) - scores).abs().max())
        found["SimpleCIL: scores"] = max(found["SimpleCIL: scores"], gap)
        n_old = n
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pilot", required=True, help="a checkout of PILOT")
    sys.path.insert(0, parser.parse_args().pilot)
    networks: Any = ModuleType("utils.inc_net")  # PILOT's networks need an old timm, and none of them is used here
    networks.__getattr__ = lambda name: None
    sys.modules["utils.inc_net"] = networks
    import models.ranpac  # type: ignore[import-not-found]
    import models.simplecil  # type: ignore[import-not-found]

    torch.set_default_dtype(torch.float64)
    with torch.no_grad():
        found = differences(models.ranpac, models.simplecil)
    for name, gap in found.items():
        print(f"{name}: largest relative difference {gap:.1e}")
    return int(max(found.values()) > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
