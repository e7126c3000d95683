"""JointTrain, the upper bound: all classes at once, one task, no memory."""

from endocil.methods.finetune import Finetune


class JointTrain(Finetune):
    """Cross-entropy on all classes at once: what could be reached if no class came later.

    Finetune on a scenario of one task; the scenario is joined for a method whose `joint` is true.
    """

    joint = True
    learns_known_classes = False
