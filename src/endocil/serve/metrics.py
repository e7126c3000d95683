"""What a server has done, counted for Prometheus."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock

from endocil.notice import NOTICE

EDGES = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds


@dataclass
class Metrics:
    """Counted from several threads."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)  # by route and status
    images: Counter[str] = field(default_factory=Counter)  # answered, unreadable
    passes: int = 0  # forward passes
    passed: int = 0  # images in them
    swaps: Counter[str] = field(default_factory=Counter)  # done, refused
    _seconds: list[int] = field(default_factory=lambda: [0] * (len(EDGES) + 1))
    _total: float = 0.0
    _lock: Lock = field(default_factory=Lock)

    def request(self, route: str, status: int, seconds: float) -> None:
        with self._lock:
            self.requests[route, status] += 1
            if route.endswith("/predict"):
                self._seconds[bisect_left(EDGES, seconds)] += 1
                self._total += seconds

    def passed_through(self, n_images: int) -> None:
        with self._lock:
            self.passes += 1
            self.passed += n_images

    def count(self, counter: Counter[str], what: str, n: int = 1) -> None:
        with self._lock:
            counter[what] += n

    def text(self, waiting: int, held: int) -> str:
        """In the form that Prometheus reads."""
        with self._lock:
            by_route = {
                f'route="{route}",status="{status}"': n
                for (route, status), n in sorted(self.requests.items())
            }
            parts = [
                f"# {NOTICE}",
                *_counter("requests_total", "Requests.", by_route),
                *_counter("images_total", "Images sent.", _labelled("outcome", self.images)),
                *_counter("swaps_total", "Models exchanged.", _labelled("outcome", self.swaps)),
                *_counter("passes_total", "Forward passes.", {"": self.passes}),
                *_counter("passed_images_total", "Images in forward passes.", {"": self.passed}),
                *_of(
                    "gauge", "waiting_images", "Images that are decoded or wait for a model.", {"": waiting}
                ),
                *_of("gauge", "held_bytes", "Bytes of uploads in memory.", {"": held}),
                *self._histogram(),
            ]
        return "\n".join(parts) + "\n"

    def _histogram(self) -> list[str]:
        name, below = "endocil_predict_seconds", 0
        lines = [f"# HELP {name} Seconds from a predict request to its answer.", f"# TYPE {name} histogram"]
        for edge, n in zip((*EDGES, "+Inf"), self._seconds, strict=True):
            below += n
            lines.append(f'{name}_bucket{{le="{edge}"}} {below}')
        return [*lines, f"{name}_sum {self._total:.6f}", f"{name}_count {below}"]


def _labelled(label: str, counter: Mapping[str, int]) -> dict[str, int]:
    return {f'{label}="{value}"': n for value, n in sorted(counter.items())}


def _counter(name: str, what: str, values: Mapping[str, float]) -> list[str]:
    return _of("counter", name, what, values)


def _of(kind: str, name: str, what: str, values: Mapping[str, float]) -> list[str]:
    full = f"endocil_{name}"
    samples = [
        f"{full}{{{labels}}} {value}" if labels else f"{full} {value}" for labels, value in values.items()
    ]
    return [f"# HELP {full} {what}", f"# TYPE {full} {kind}", *samples]
