"""JointTrain, the upper bound: all classes at once, one task, no memory."""

from endocil.methods.finetune import Finetune


class JointTrain(Finetune):
    """Finetune on a scenario of one task; the learner reads `joint` and gives it that."""

    joint = True
