"""Examinations: the organ, the device and the look that the images of one patient share."""

from dataclasses import dataclass

from endocil.datasets.synthetic.devices import DEVICES, Colour
from endocil.datasets.synthetic.fields import random_source


@dataclass(frozen=True)
class Organ:
    """What a healthy stretch of this organ looks like."""

    tone: Colour  # gain on the colour that mucosa has under the device's light
    rings: tuple[float, float]  # depth of the folds across the lumen
    ring_spacing: tuple[float, float]
    stripes: tuple[float, float]  # height of the folds along the lumen
    vessels: tuple[float, float]  # how many vessels shine through
    villi: float  # roughness of the surface


ORGANS: dict[str, Organ] = {
    "oesophagus": Organ((1.05, 1.16, 1.14), (0.0, 0.0), (0.4, 0.5), (0.0, 0.03), (0.2, 0.8), 0.3),
    "stomach": Organ((1.00, 0.88, 0.85), (0.0, 0.2), (0.4, 0.6), (0.02, 0.06), (0.0, 0.3), 0.7),
    "small-bowel": Organ((0.97, 1.10, 0.80), (0.25, 0.5), (0.16, 0.26), (0.0, 0.0), (0.0, 0.4), 1.0),
    "colon": Organ((1.00, 1.00, 0.98), (0.3, 0.7), (0.28, 0.5), (0.0, 0.0), (0.3, 1.0), 0.5),
}


@dataclass(frozen=True)
class Patient:
    """What the images of one examination share."""

    device: str
    mucosa: Colour
    rings: float
    ring_spacing: float
    three_sided: float  # how triangular the lumen is, as in the transverse colon
    stripes: float
    stripe_count: int  # the finest fold's number of turns around the lumen
    villi: float
    redness: float  # strength of the patches in the mucosa's colour
    vessels: float
    lumen: float  # width of the dark end


def draw_device(seed: int, finding: str, number: int) -> str:
    """The device of examination `number`: each three in a row are taken by the three devices, shuffled."""
    order = random_source(seed, "devices", finding, number // len(DEVICES)).permutation(sorted(DEVICES))
    return str(order[number % len(DEVICES)])


def draw_patient(seed: int, finding: str, number: int, organs: tuple[str, ...]) -> Patient:
    """The examination `number` of a finding, in one of these organs."""
    device = draw_device(seed, finding, number)
    random = random_source(seed, "patient", finding, number)
    organ = ORGANS[organs[int(random.integers(len(organs)))]]
    warm, bright = random.uniform(-0.025, 0.025), random.uniform(0.95, 1.05)
    red, green, blue = (tone * light for tone, light in zip(organ.tone, DEVICES[device].mucosa, strict=True))
    return Patient(
        device=device,
        mucosa=(red * bright, (green + warm) * bright, (blue + 0.6 * warm) * bright),
        rings=random.uniform(*organ.rings),
        ring_spacing=random.uniform(*organ.ring_spacing),
        three_sided=random.uniform(0.0, 0.15),
        stripes=random.uniform(*organ.stripes),
        stripe_count=int(random.integers(5, 12)),
        villi=organ.villi * random.uniform(0.7, 1.3),
        redness=random.uniform(0.2, 0.7),
        vessels=random.uniform(*organ.vessels),
        lumen=random.uniform(0.2, 0.36),
    )
