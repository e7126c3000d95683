"""JointTrain, the upper bound: all classes at once, one task, no memory."""

from endocil.methods.finetune import Finetune


class JointTrain(Finetune):
    """Cross-entropy on all classes at once: what could be reached if nothing had to be remembered.

    Finetune on a scenario of one task; the house reads `joint` and gives it that.
    """

    joint = True
